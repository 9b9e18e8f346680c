/* All products of convolutions: one tile, and its three walks. */
#include "network/conv.h"

#include <string.h>

#include "network/dense.h"
#include "simd/fastmath.h"
#include "simd/lanes.h"

#if FASTPPO_WIDEST >= 512
#include <immintrin.h>
#endif

enum { NEAR = 5120 }; /* floats of dy that stay in the level-1 cache meanwhile */

/* A walk through the floats of an operand: `inner` steps, then a jump from where they began. */
typedef struct {
    int64_t step, jump;
} Steps;

/* The sum of a tile: rows[r] is where row r of the left operand begins, y[r] where its sixteen
 * results lie. They begin at `start`, or at what y[r] holds where that is NULL. */
typedef struct {
    const float *rows[TALL], *lanes, *start;
    float *y[TALL];
    Steps row_steps, lane_steps;
    int64_t inner, outer;
    int64_t lanes_apart, y_apart; /* from these sixteen lanes and results to the next ones */
} Product;

/* Where the sums of row r begin, of the first sixteen lanes or the next ones (panel 0 or 1). */
ALWAYS_INLINE const float *start_of(const Product *p, int r, int64_t panel) {
    return p->start ? p->start + panel * p->lanes_apart : p->y[r] + panel * p->y_apart;
}

/* Four rows, in separate variables (see lanes.h). */
ALWAYS_INLINE void four_rows(const Product *p) {
    Vec a0, a1, b0, b1, c0, c1, d0, d1, left, right;
    load_two(&a0, &a1, start_of(p, 0, 0));
    load_two(&b0, &b1, start_of(p, 1, 0));
    load_two(&c0, &c1, start_of(p, 2, 0));
    load_two(&d0, &d1, start_of(p, 3, 0));
    for (int64_t t = 0; t < p->outer; t++) {
        int64_t jump = t * p->row_steps.jump;
        const float *a = p->rows[0] + jump, *b = p->rows[1] + jump;
        const float *c = p->rows[2] + jump, *d = p->rows[3] + jump;
        const float *lanes = p->lanes + t * p->lane_steps.jump;
        for (int64_t k = 0, at = 0; k < p->inner; k++) {
            load_two(&left, &right, lanes);
            multiply_add(a[at], &left, &a0);
            multiply_add(a[at], &right, &a1);
            multiply_add(b[at], &left, &b0);
            multiply_add(b[at], &right, &b1);
            multiply_add(c[at], &left, &c0);
            multiply_add(c[at], &right, &c1);
            multiply_add(d[at], &left, &d0);
            multiply_add(d[at], &right, &d1);
            at += p->row_steps.step, lanes += p->lane_steps.step;
        }
    }
    store_two(p->y[0], &a0, &a1);
    store_two(p->y[1], &b0, &b1);
    store_two(p->y[2], &c0, &c1);
    store_two(p->y[3], &d0, &d1);
}

/* One row, of one panel. */
ALWAYS_INLINE void one_row(const Product *p, int r, int64_t panel) {
    Vec a0, a1, left, right;
    load_two(&a0, &a1, start_of(p, r, panel));
    for (int64_t t = 0; t < p->outer; t++) {
        const float *a = p->rows[r] + t * p->row_steps.jump;
        const float *lanes = p->lanes + panel * p->lanes_apart + t * p->lane_steps.jump;
        for (int64_t k = 0; k < p->inner; k++) {
            load_two(&left, &right, lanes);
            multiply_add(*a, &left, &a0);
            multiply_add(*a, &right, &a1);
            a += p->row_steps.step, lanes += p->lane_steps.step;
        }
    }
    store_two(p->y[r] + panel * p->y_apart, &a0, &a1);
}

#if FASTPPO_WIDEST >= 512
#define START(r) __m512 sum##r = _mm512_loadu_ps(start_of(p, r, 0));
#define ADD(r) sum##r = _mm512_fmadd_ps(_mm512_set1_ps(p->rows[r][at]), sixteen, sum##r);
#define STORE(r) _mm512_storeu_ps(p->y[r], sum##r);
#define START_OTHER(r) __m512 other##r = _mm512_loadu_ps(start_of(p, r, 1));
#define ADD_BOTH(r)                                     \
    factor = _mm512_set1_ps(p->rows[r][at]);            \
    sum##r = _mm512_fmadd_ps(factor, sixteen, sum##r);  \
    other##r = _mm512_fmadd_ps(factor, more, other##r);
#define STORE_OTHER(r) _mm512_storeu_ps(p->y[r] + p->y_apart, other##r);

/* Eight rows, where sixteen floats fit into one register. */
__attribute__((target("avx512f"))) static void eight_rows(const Product *p) {
    EACH_OF_TALL(START)
    for (int64_t t = 0; t < p->outer; t++) {
        const float *lanes = p->lanes + t * p->lane_steps.jump;
        int64_t at = t * p->row_steps.jump;
        for (int64_t k = 0; k < p->inner; k++) {
            __m512 sixteen = _mm512_loadu_ps(lanes);
            EACH_OF_TALL(ADD)
            at += p->row_steps.step, lanes += p->lane_steps.step;
        }
    }
    EACH_OF_TALL(STORE)
}

/* The same with sixteen more lanes, so that a number read of a row serves both. */
__attribute__((target("avx512f"))) static void eight_broad_rows(const Product *p) {
    EACH_OF_TALL(START)
    EACH_OF_TALL(START_OTHER)
    for (int64_t t = 0; t < p->outer; t++) {
        const float *lanes = p->lanes + t * p->lane_steps.jump;
        int64_t at = t * p->row_steps.jump;
        for (int64_t k = 0; k < p->inner; k++) {
            __m512 sixteen = _mm512_loadu_ps(lanes), factor;
            __m512 more = _mm512_loadu_ps(lanes + p->lanes_apart);
            EACH_OF_TALL(ADD_BOTH)
            at += p->row_steps.step, lanes += p->lane_steps.step;
        }
    }
    EACH_OF_TALL(STORE)
    EACH_OF_TALL(STORE_OTHER)
}
#else
#define eight_rows four_rows
#define eight_broad_rows four_rows
#endif

ALWAYS_INLINE int tile_height(int64_t bits) { return bits < 512 ? HIGH : TALL; }

/* The lanes of the next tile, of `live` ones. */
ALWAYS_INLINE int64_t lanes_of(int64_t bits, int64_t live) {
    return bits >= 512 && live > WIDE ? BROAD : WIDE;
}

/* The tile of `height` rows, of sixteen lanes or, where `broad`, of 32. */
ALWAYS_INLINE void product(int64_t bits, const Product *p, int height, int broad) {
    if (height == TALL && broad)
        eight_broad_rows(p);
    else if (height == TALL)
        eight_rows(p);
    else if (bits < 512 && height == HIGH)
        four_rows(p);
    else
        for (int r = 0; r < height; r++)
            for (int64_t panel = 0; panel <= broad; panel++) one_row(p, r, panel);
}

/* Floats of a row of a window; of that, whole sixteens; of a window. */
ALWAYS_INLINE int64_t run_of(const Conv *conv) { return conv->size * conv->channels; }
ALWAYS_INLINE int64_t wide_run(const Conv *conv) { return (run_of(conv) + WIDE - 1) / WIDE * WIDE; }
ALWAYS_INLINE int64_t window_of(const Conv *conv) { return conv->size * run_of(conv); }
ALWAYS_INLINE int64_t places_of(const Conv *conv) { return conv->high * conv->wide; }
ALWAYS_INLINE int64_t row_floats(const Conv *conv) { return conv->width * conv->channels; }

Conv conv_of(int64_t inputs, int64_t floats, int64_t channels, int64_t width, int64_t size,
             int64_t stride, const char **fault) {
    Conv conv = {channels, 0, width, size, stride, 0, 0, 0};
    *fault = "a convolution has sizes that do not fit each other";
    if (channels < 1 || width < 1 || size < 1 || stride < 1 || size > width) return conv;
    if (inputs % (channels * width)) return conv;
    conv.height = inputs / (channels * width);
    if (size > conv.height) return conv;
    conv.high = (conv.height - size) / stride + 1;
    conv.wide = (width - size) / stride + 1;
    if (floats % places_of(&conv)) return conv;
    conv.outputs = floats / places_of(&conv);
    *fault = conv.outputs % WIDE ? "a convolution has no multiple of 16 outputs" : NULL;
    return conv;
}

int64_t conv_packed(const Conv *conv) { return (window_of(conv) + 1) * conv->outputs; }
int64_t conv_panels(const Conv *conv) { return conv->size * wide_run(conv) * conv->outputs; }

/* The place of weight [o c y x] in torch's order. */
ALWAYS_INLINE int64_t weight_at(const Conv *conv, int64_t o, int64_t y, int64_t x, int64_t c) {
    return ((o * conv->channels + c) * conv->size + y) * conv->size + x;
}

/* For each sixteen outputs: their biases, then for every float of the window their weights. */
void conv_pack_forward(const Conv *conv, const float *weight, const float *bias, float *packed) {
    for (int64_t first = 0; first < conv->outputs; first += WIDE) {
        memcpy(packed, bias + first, WIDE * sizeof *packed);
        packed += WIDE;
        for (int64_t y = 0; y < conv->size; y++)
            for (int64_t x = 0; x < conv->size; x++)
                for (int64_t c = 0; c < conv->channels; c++, packed += WIDE)
                    for (int64_t o = 0; o < WIDE; o++)
                        packed[o] = weight[weight_at(conv, first + o, y, x, c)];
    }
}

/* For each sixteen floats of the window: for every output their weights. */
void conv_pack_backward(const Conv *conv, const float *weight, float *packed) {
    for (int64_t y = 0; y < conv->size; y++)
        for (int64_t first = 0; first < run_of(conv); first += WIDE)
            for (int64_t o = 0; o < conv->outputs; o++, packed += WIDE)
                for (int64_t i = 0; i < WIDE; i++) {
                    int64_t k = first + i;
                    packed[i] = weight[weight_at(conv, o, y, k / conv->channels,
                                                 k % conv->channels)];
                }
}

/* The next places of y: how many, and in `windows` where their windows begin in x. */
typedef struct {
    const Conv *conv;
    int64_t place, y, x;
} Places;

ALWAYS_INLINE int next_places(Places *at, int height, int64_t *windows) {
    const Conv *conv = at->conv;
    int count = (int)least(height, places_of(conv) - at->place);
    for (int r = 0; r < count; r++) {
        windows[r] = (at->y * conv->width + at->x) * conv->stride * conv->channels;
        at->y += at->x + 1 == conv->wide;
        at->x = at->x + 1 == conv->wide ? 0 : at->x + 1;
    }
    at->place += count;
    return count;
}

ALWAYS_INLINE void conv_forward_body(int64_t bits, const Conv *conv, const float *packed,
                                     const float *x, float *y) {
    int64_t run = run_of(conv), windows[TALL];
    int64_t panel = (window_of(conv) + 1) * WIDE;
    Product p = {.row_steps = {1, row_floats(conv)}, .lane_steps = {WIDE, run * WIDE},
                 .inner = run, .outer = conv->size, .lanes_apart = panel, .y_apart = WIDE};
    for (int64_t o = 0, lanes; o < conv->outputs; o += lanes, packed += lanes / WIDE * panel) {
        lanes = lanes_of(bits, conv->outputs - o);
        p.start = packed, p.lanes = packed + WIDE;
        for (Places at = {conv, 0, 0, 0}; at.place < places_of(conv);) {
            int64_t first = at.place;
            int count = next_places(&at, tile_height(bits), windows);
            for (int r = 0; r < count; r++) {
                p.rows[r] = x + windows[r];
                p.y[r] = y + (first + r) * conv->outputs + o;
            }
            product(bits, &p, count, lanes > WIDE);
        }
    }
}

DISPATCH_BITS(conv_forward, (const Conv *conv, const float *packed, const float *x, float *y),
              (conv, packed, x, y))

/* The sixteen lanes of one place must not reach those of the next one, nor the end of a run. */
const char *conv_data_fault(const Conv *conv) {
    return run_of(conv) % WIDE || conv->stride * conv->channels < WIDE
               ? "a convolution behind another one reads no multiple of 16 channels"
               : NULL;
}

ALWAYS_INLINE void conv_data_body(int64_t bits, const Conv *conv, const float *packed,
                                  const float *dy, float *dx) {
    int64_t windows[TALL], outputs = conv->outputs;
    Product p = {.row_steps = {1, 0}, .lane_steps = {WIDE, 0}, .inner = outputs, .outer = 1,
                 .lanes_apart = outputs * WIDE, .y_apart = WIDE};
    memset(dx, 0, (size_t)(conv->height * row_floats(conv)) * sizeof *dx);
    for (int64_t top = 0; top < conv->size; top++)
        for (int64_t k = 0, lanes; k < run_of(conv); k += lanes, packed += outputs * lanes) {
            lanes = conv->stride * conv->channels < BROAD ? WIDE : lanes_of(bits, run_of(conv) - k);
            float *to = dx + top * row_floats(conv) + k;
            p.lanes = packed;
            for (Places at = {conv, 0, 0, 0}; at.place < places_of(conv);) {
                int64_t first = at.place;
                int count = next_places(&at, tile_height(bits), windows);
                for (int r = 0; r < count; r++) {
                    p.rows[r] = dy + (first + r) * outputs;
                    p.y[r] = to + windows[r];
                }
                product(bits, &p, count, lanes > WIDE);
            }
        }
}

DISPATCH_BITS(conv_data, (const Conv *conv, const float *packed, const float *dy, float *dx),
              (conv, packed, dy, dx))

/* bias [outputs] += the sum of dy [places outputs]. */
ALWAYS_INLINE void add_places(const Conv *conv, const float *dy, float *bias) {
    for (int64_t p = 0; p < places_of(conv); p++)
        for (int64_t o = 0; o < conv->outputs; o++) bias[o] += dy[p * conv->outputs + o];
}

/* The gradient of all weights by the rows [from, to) of y. A panel has [outputs 16]. */
ALWAYS_INLINE void add_rows_of_y(int64_t bits, const Conv *conv, const float *x, const float *dy,
                                 int64_t from, int64_t to, float *panels) {
    int height = tile_height(bits);
    int64_t outputs = conv->outputs, step = conv->stride * conv->channels;
    Product p = {.row_steps = {outputs, conv->wide * outputs},
                 .lane_steps = {step, conv->stride * row_floats(conv)},
                 .inner = conv->wide, .outer = to - from,
                 .lanes_apart = WIDE, .y_apart = outputs * WIDE};
    for (int64_t top = 0; top < conv->size; top++)
        for (int64_t k = 0, lanes; k < run_of(conv); k += lanes, panels += outputs * lanes) {
            lanes = lanes_of(bits, run_of(conv) - k);
            p.lanes = x + (from * conv->stride + top) * row_floats(conv) + k;
            float *panel = panels;
            for (int64_t o = 0; o < outputs; o += height, panel += height * WIDE) {
                for (int r = 0; r < height; r++) {
                    p.rows[r] = dy + from * p.row_steps.jump + o + r;
                    p.y[r] = panel + r * WIDE;
                }
                product(bits, &p, height, lanes > WIDE);
            }
        }
}

ALWAYS_INLINE void conv_gradient_body(int64_t bits, const Conv *conv, const float *x,
                                      const float *dy, int64_t adds, float *panels, float *bias) {
    int64_t rows = most(1, NEAR / (conv->wide * conv->outputs));
    if (!adds) {
        memset(panels, 0, (size_t)conv_panels(conv) * sizeof *panels);
        memset(bias, 0, (size_t)conv->outputs * sizeof *bias);
    }
    add_places(conv, dy, bias);
    for (int64_t from = 0; from < conv->high; from += rows)
        add_rows_of_y(bits, conv, x, dy, from, least(conv->high, from + rows), panels);
}

DISPATCH_BITS(conv_gradient,
              (const Conv *conv, const float *x, const float *dy, int64_t adds, float *panels,
               float *bias),
              (conv, x, dy, adds, panels, bias))

void conv_unpack(const Conv *conv, const float *panels, float *weight) {
    for (int64_t y = 0; y < conv->size; y++)
        for (int64_t first = 0; first < run_of(conv); first += WIDE)
            for (int64_t o = 0; o < conv->outputs; o++, panels += WIDE)
                for (int64_t i = 0; i < least(WIDE, run_of(conv) - first); i++) {
                    int64_t k = first + i;
                    weight[weight_at(conv, o, y, k / conv->channels, k % conv->channels)] =
                        panels[i];
                }
}
