/* All matrix products of the networks: a loop over panels of outputs, then over tiles of rows. */
#include "network/dense.h"

#include <string.h>

#include "simd/fastmath.h"
#include "simd/lanes.h"
#include "network/forward.h"

#if FASTPPO_WIDEST >= 512
#include <immintrin.h>
#endif

enum { GROUP = 128 }; /* inputs whose gradients share the reads of delta */

ALWAYS_INLINE int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The width of the next panel, for `live` remaining outputs; that of the next tile, which is two
 * panels where the registers hold them. */
ALWAYS_INLINE int64_t panel_of(int64_t live) { return live > NARROW ? WIDE : NARROW; }
ALWAYS_INLINE int64_t lanes_of(int64_t bits, int64_t live) {
    return bits >= 512 && live > WIDE + NARROW ? BROAD : panel_of(live);
}

int64_t packed_floats(int64_t n, int64_t out) { return (n + 1) * rounded_up(out, NARROW); }

ALWAYS_INLINE void load_four(Vec *a, Vec *b, Vec *c, Vec *d, const float *from, int64_t row) {
    load(a, from);
    load(b, from + row);
    load(c, from + 2 * row);
    load(d, from + 3 * row);
}

ALWAYS_INLINE void store_four(float *to, int64_t row, const Vec *a, const Vec *b, const Vec *c,
                              const Vec *d) {
    store(to, a);
    store(to + row, b);
    store(to + 2 * row, c);
    store(to + 3 * row, d);
}

/* y [8 8]: as wide_tile, for few outputs; rows a to h. */
ALWAYS_INLINE void narrow_tile(Walk w, Walk x, int64_t n, Walk start, float *y, int64_t y_row) {
    Vec a, b, c, d, e, f, g, h, lanes;
    load_four(&a, &b, &c, &d, start.at, start.row);
    load_four(&e, &f, &g, &h, start.at + 4 * start.row, start.row);
    for (int64_t k = 0; k < n; k++, w.at += w.step, x.at += x.step) {
        const float *top = x.at, *low = top + 4 * x.row;
        load(&lanes, w.at);
        multiply_add(top[0], &lanes, &a);
        multiply_add(top[x.row], &lanes, &b);
        multiply_add(top[2 * x.row], &lanes, &c);
        multiply_add(top[3 * x.row], &lanes, &d);
        multiply_add(low[0], &lanes, &e);
        multiply_add(low[x.row], &lanes, &f);
        multiply_add(low[2 * x.row], &lanes, &g);
        multiply_add(low[3 * x.row], &lanes, &h);
    }
    store_four(y, y_row, &a, &b, &c, &d);
    store_four(y + 4 * y_row, y_row, &e, &f, &g, &h);
}

#if FASTPPO_WIDEST >= 512
/* With intrinsics, and not inlined: gcc 12 makes sixteen instructions of a loop over sixteen lanes.
 */
#define START(r) __m512 sum##r = _mm512_loadu_ps(start.at + r * start.row);
#define ADD(r) sum##r = _mm512_fmadd_ps(_mm512_set1_ps(x.at[r * x.row]), lanes, sum##r);
#define STORE(r) _mm512_storeu_ps(y + r * y_row, sum##r);
#define START_OTHER(r) __m512 other##r = _mm512_loadu_ps(start.at + r * start.row + start.apart);
#define ADD_BOTH(r)                                    \
    factor = _mm512_set1_ps(x.at[r * x.row]);          \
    sum##r = _mm512_fmadd_ps(factor, lanes, sum##r);   \
    other##r = _mm512_fmadd_ps(factor, more, other##r);
#define STORE_OTHER(r) _mm512_storeu_ps(y + r * y_row + WIDE, other##r);

/* y [8 16]: as wide_tile, where sixteen floats fit into one register. */
__attribute__((target("avx512f"))) static void tall_tile(Walk w, Walk x, int64_t n, Walk start,
                                                         float *y, int64_t y_row) {
    EACH_OF_TALL(START)
    for (int64_t k = 0; k < n; k++, w.at += w.step, x.at += x.step) {
        __m512 lanes = _mm512_loadu_ps(w.at);
        EACH_OF_TALL(ADD)
    }
    EACH_OF_TALL(STORE)
}

/* y [8 32]: two tall tiles, so that a number read of x serves both. */
__attribute__((target("avx512f"))) static void broad_tile(Walk w, Walk x, int64_t n, Walk start,
                                                          float *y, int64_t y_row) {
    EACH_OF_TALL(START)
    EACH_OF_TALL(START_OTHER)
    for (int64_t k = 0; k < n; k++, w.at += w.step, x.at += x.step) {
        __m512 lanes = _mm512_loadu_ps(w.at), more = _mm512_loadu_ps(w.at + w.apart), factor;
        EACH_OF_TALL(ADD_BOTH)
    }
    EACH_OF_TALL(STORE)
    EACH_OF_TALL(STORE_OTHER)
}
#else
#define tall_tile wide_tile
#define broad_tile wide_tile
#endif

ALWAYS_INLINE int64_t height_of(int64_t bits, int64_t lanes) {
    return lanes == WIDE && bits < 512 ? HIGH : TALL;
}

ALWAYS_INLINE void tile(int64_t bits, int64_t lanes, Walk w, Walk x, int64_t n, Walk start,
                        float *y, int64_t y_row) {
    if (lanes == NARROW)
        narrow_tile(w, x, n, start, y, y_row);
    else if (bits < 512)
        wide_tile(w, x, n, start, y, y_row);
    else if (lanes == BROAD)
        broad_tile(w, x, n, start, y, y_row);
    else
        tall_tile(w, x, n, start, y, y_row);
}

/* A panel of the packed weights holds the biases of its outputs, then their weights for every
 * input. */
ALWAYS_INLINE void dense_body(int64_t bits, const float *packed, const float *x, int64_t n,
                              int64_t rows, int64_t adds, float *y, int64_t out) {
    int64_t x_row = row_of(n), y_row = row_of(out);
    if (rows <= HIGH) bits = least(bits, 256); /* half of a tall tile would be unused */
    int64_t lanes, panel;
    for (int64_t first = 0; first < out; first += lanes) {
        lanes = lanes_of(bits, out - first), panel = least(lanes, WIDE);
        Walk w = {packed + panel, 0, panel, (n + 1) * panel};
        for (int64_t r = 0; r < rows; r += height_of(bits, lanes)) {
            float *to = y + r * y_row + first;
            Walk from = {x + r * x_row, x_row, 1, 0};
            Walk start = {adds ? to : packed, adds * y_row, 0, adds ? WIDE : w.apart};
            tile(bits, lanes, w, from, n, start, to, y_row);
        }
        packed += (n + 1) * lanes;
    }
}

DISPATCH_BITS(dense,
              (const float *packed, const float *x, int64_t n, int64_t rows, int64_t adds,
               float *y, int64_t out),
              (packed, x, n, rows, adds, y, out))

/* to[r * to_row + i * to_lane] = from[r * from_row + i * from_lane] for `height` x `width`. */
ALWAYS_INLINE void copy(const float *from, int64_t from_row, int64_t from_lane, float *to,
                        int64_t to_row, int64_t to_lane, int64_t height, int64_t width) {
    for (int64_t r = 0; r < height; r++)
        for (int64_t i = 0; i < width; i++)
            to[r * to_row + i * to_lane] = from[r * from_row + i * from_lane];
}

/* A tile [height width] of a gradient, whose rows and lanes are `row` and `lane` apart in grad. One
 * that is cut off by the edge, or whose lanes are apart, is computed in a buffer. */
ALWAYS_INLINE void gradient_tile(int64_t bits, int64_t lanes, Walk w, Walk x, int64_t live,
                                 int64_t adds, float *grad, int64_t row, int64_t lane,
                                 int64_t height, int64_t width) {
    float edge[TALL * BROAD];
    static const float zeros[BROAD] = {0};
    int64_t whole = lane == 1 && height == height_of(bits, lanes) && width == lanes;
    float *y = whole ? grad : edge;
    int64_t y_row = whole ? row : lanes;
    if (adds && !whole) {
        memset(edge, 0, sizeof edge);
        copy(grad, row, lane, edge, lanes, 1, height, width);
    }
    Walk start = {adds ? y : zeros, adds * y_row, 0, WIDE};
    tile(bits, lanes, w, x, live, start, y, y_row);
    if (!whole) copy(edge, lanes, 1, grad, row, lane, height, width);
}

/* grad[r * row + i * lane] = sum over `live` k of x[k, r] w[k, i], for `rows` r and `wide` i. */
ALWAYS_INLINE void gradient_of(int64_t bits, const float *w, int64_t wide, int64_t w_row,
                               const float *x, int64_t rows, int64_t x_row, int64_t live,
                               int64_t adds, float *grad, int64_t row, int64_t lane) {
    for (int64_t group = 0; group < wide; group += GROUP)
        for (int64_t r = 0; r < rows; r += TALL)
            for (int64_t i = group, lanes; i < least(wide, group + GROUP); i += lanes) {
                lanes = lanes_of(bits, wide - i);
                int64_t high = height_of(bits, lanes);
                for (int64_t top = r; top < least(rows, r + TALL); top += high)
                    gradient_tile(bits, lanes, (Walk){w + i, 0, w_row, WIDE},
                                  (Walk){x + top, 1, x_row, 0}, live, adds,
                                  grad + top * row + i * lane, row, lane, least(high, rows - top),
                                  least(lanes, wide - i));
            }
}

/* bias [width] = the sum of the rows of delta, added to bias where `adds`. */
ALWAYS_INLINE void add_rows(const float *delta, int64_t row, int64_t live, int64_t adds,
                            float *bias, int64_t width) {
    float edge[WIDE] = {0};
    Vec left, right, a, b;
    if (adds) memcpy(edge, bias, (size_t)width * sizeof *bias);
    load_two(&left, &right, edge);
    for (int64_t r = 0; r < live; r++, delta += row) {
        load_two(&a, &b, delta);
        left += a;
        right += b;
    }
    store_two(edge, &left, &right);
    memcpy(bias, edge, (size_t)width * sizeof *bias);
}

ALWAYS_INLINE void dense_gradient_body(int64_t bits, const float *x, int64_t n, const float *delta,
                                       int64_t out, int64_t live, int64_t adds, float *weight,
                                       float *bias) {
    int64_t x_row = row_of(n), delta_row = row_of(out);
    if (n <= NARROW && n < out) /* few inputs would leave lanes idle */
        gradient_of(bits, delta, out, delta_row, x, n, x_row, live, adds, weight, 1, n);
    else
        gradient_of(bits, x, n, x_row, delta, out, delta_row, live, adds, weight, n, 1);
    for (int64_t o = 0; o < out; o += WIDE)
        add_rows(delta + o, delta_row, live, adds, bias + o, least(WIDE, out - o));
}

DISPATCH_BITS(dense_gradient,
              (const float *x, int64_t n, const float *delta, int64_t out, int64_t live,
               int64_t adds, float *weight, float *bias),
              (x, n, delta, out, live, adds, weight, bias))

ALWAYS_INLINE void dense_activate_body(float *y, int64_t n, int64_t activation) {
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) y[i] = fast_tanh(y[i]);
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) y[i] = choose(y[i] < 0.0f, 0.0f, y[i]);
    else if (activation == ELU)
        for (int64_t i = 0; i < n; i++) y[i] = fast_elu(y[i]);
}

DISPATCH(dense_activate, (float *y, int64_t n, int64_t activation), (y, n, activation))

ALWAYS_INLINE void dense_slope_body(const float *restrict y, float *restrict delta, int64_t n,
                                    int64_t activation) {
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) delta[i] *= fma32(-y[i], y[i], 1.0f);
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) delta[i] = choose(y[i] > 0.0f, delta[i], 0.0f);
    else if (activation == ELU)
        for (int64_t i = 0; i < n; i++) delta[i] *= choose(y[i] > 0.0f, 1.0f, y[i] + 1.0f);
}

DISPATCH(dense_slope, (const float *y, float *delta, int64_t n, int64_t activation),
         (y, delta, n, activation))

typedef int32_t Lanes __attribute__((vector_size(32)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Lanes){__VA_ARGS__})
#endif

/* Transpose the left halves of rows a b c d, and their right halves, each 4 x 4, in place. */
ALWAYS_INLINE void transpose_halves(Vec *a, Vec *b, Vec *c, Vec *d) {
    Vec high_a = *a, high_b = *b;
    Vec ab = SHUFFLE(*a, *b, 0, 8, 1, 9, 4, 12, 5, 13);
    Vec cd = SHUFFLE(*c, *d, 0, 8, 1, 9, 4, 12, 5, 13);
    *a = SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13);
    *b = SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    ab = SHUFFLE(high_a, high_b, 2, 10, 3, 11, 6, 14, 7, 15);
    cd = SHUFFLE(*c, *d, 2, 10, 3, 11, 6, 14, 7, 15);
    *c = SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13);
    *d = SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
}

/* Store the left halves of two rows at `to`, and their right halves four rows below. */
ALWAYS_INLINE void store_halves(float *to, int64_t row, const Vec *top, const Vec *low) {
    Vec left = SHUFFLE(*top, *low, 0, 1, 2, 3, 8, 9, 10, 11);
    Vec right = SHUFFLE(*top, *low, 4, 5, 6, 7, 12, 13, 14, 15);
    store(to, &left);
    store(to + 4 * row, &right);
}

/* to[i * to_row + r] = from[r * from_row + i] for 8 x 8. */
ALWAYS_INLINE void transpose(const float *from, int64_t from_row, float *to, int64_t to_row) {
    Vec a, b, c, d, e, f, g, h;
    load_four(&a, &b, &c, &d, from, from_row);
    load_four(&e, &f, &g, &h, from + 4 * from_row, from_row);
    transpose_halves(&a, &b, &c, &d);
    transpose_halves(&e, &f, &g, &h);
    store_halves(to, to_row, &a, &e);
    store_halves(to + to_row, to_row, &b, &f);
    store_halves(to + 2 * to_row, to_row, &c, &g);
    store_halves(to + 3 * to_row, to_row, &d, &h);
}

/* packed [n lanes] = weight [live n] transposed, filled up with 0. */
ALWAYS_INLINE void pack_transposed(const float *weight, int64_t n, int64_t live, int64_t lanes,
                                   float *packed) {
    int64_t whole = live < lanes ? 0 : n / 8 * 8;
    for (int64_t o = 0; o < lanes; o += 8)
        for (int64_t i = 0; i < whole; i += 8)
            transpose(weight + o * n + i, n, packed + i * lanes + o, lanes);
    memset(packed + whole * lanes, 0, (size_t)((n - whole) * lanes) * sizeof *packed);
    for (int64_t o = 0; o < least(live, lanes); o++)
        for (int64_t i = whole; i < n; i++) packed[i * lanes + o] = weight[o * n + i];
}

ALWAYS_INLINE void pack_forward_body(const float *weight, const float *bias, int64_t n, int64_t out,
                                     float *packed) {
    for (int64_t first = 0; first < out; first += WIDE) {
        int64_t live = out - first, lanes = panel_of(live);
        for (int64_t o = 0; o < lanes; o++) packed[o] = o < live ? bias[first + o] : 0.0f;
        pack_transposed(weight + first * n, n, live, lanes, packed + lanes);
        packed += (n + 1) * lanes;
    }
}

DISPATCH(pack_forward,
         (const float *weight, const float *bias, int64_t n, int64_t out, float *packed),
         (weight, bias, n, out, packed))

ALWAYS_INLINE void pack_backward_body(const float *weight, int64_t n, int64_t out, float *packed) {
    for (int64_t first = 0; first < n; first += WIDE) {
        int64_t live = n - first, lanes = panel_of(live);
        const float *from = weight + first;
        for (int64_t i = 0; i < lanes; i++) packed[i] = 0.0f;
        packed += lanes;
        for (int64_t o = 0; o < out; o++, packed += lanes, from += n)
            if (live >= WIDE) /* a constant size is one load and store */
                memcpy(packed, from, WIDE * sizeof *packed);
            else
                for (int64_t i = 0; i < lanes; i++) packed[i] = i < live ? from[i] : 0.0f;
    }
}

DISPATCH(pack_backward, (const float *weight, int64_t n, int64_t out, float *packed),
         (weight, n, out, packed))
