/* Colours of a screen by table, and the mean over the area of each new pixel. */
#include "pixels/screen.h"

#include <string.h>

#include "simd/fastmath.h"

enum { CHUNK = 16 }; /* bytes compared at once */

/* Shrink [*low, *high) from both ends while the bytes of two rows are equal there. */
ALWAYS_INLINE void trim_equal(const uint8_t *a, const uint8_t *b, int64_t *low, int64_t *high) {
    if (memcmp(a, b, (size_t)*high) == 0) *high = 0;
    while (*low + CHUNK <= *high && memcmp(a + *low, b + *low, CHUNK) == 0) *low += CHUNK;
    while (*low + CHUNK <= *high && memcmp(a + *high - CHUNK, b + *high - CHUNK, CHUNK) == 0)
        *high -= CHUNK;
}

int screen_recolour(const uint8_t *indices, int64_t rows, int64_t columns, const int16_t *table,
                    uint8_t *out) {
    int all = 0;
    for (int64_t r = 0; r < rows; r++, indices += columns, out += columns) {
        int64_t low = 0, high = columns;
        if (r > 0) {
            trim_equal(indices, indices - columns, &low, &high);
            memcpy(out, out - columns, (size_t)columns);
        }
        for (int64_t i = low; i < high; i++) {
            all |= table[indices[i]];
            out[i] = (uint8_t)table[indices[i]];
        }
    }
    return all >= 0;
}

/* Most pixels of a line of n that one of m new pixels lies over. */
ALWAYS_INLINE int64_t most_below(int64_t n, int64_t m) { return least((n + m - 1) / m + 1, n); }

/* The pixels below each of m new pixels of a line of n: from first[d] on, with their shares in it.
 * None is behind the last pixel; shares of pixels that are not below are 0. */
typedef struct {
    int64_t n, m, below;
    int64_t *first; /* [m] */
    float *share;   /* [m below] */
} Axis;

/* Lengths are in units of 1 / (n m), so the shares are rounded only once. */
ALWAYS_INLINE void fill_axis(const Axis *axis) {
    int64_t n = axis->n, m = axis->m, at = 0;
    float *share = axis->share;
    for (int64_t d = 0; d < m; d++) {
        while ((at + 1) * m <= d * n) at++;
        axis->first[d] = least(at, n - axis->below);
        for (int64_t s = axis->first[d]; s < axis->first[d] + axis->below; s++) {
            int64_t common = least((d + 1) * n, (s + 1) * m) - most(d * n, s * m);
            *share++ = (float)most(common, 0) / (float)n;
        }
    }
}

/* The parts of `work`. */
typedef struct {
    Axis down, across;
    float *line;   /* [columns channels] a row of the image */
    float *narrow; /* [new_columns channels] the same row with the new columns */
    float *sum;    /* [new_columns channels] */
} Work;

ALWAYS_INLINE Work work_of(const Sizes *z, void *memory) {
    Work work = {
        .down = {.n = z->rows, .m = z->new_rows, .below = most_below(z->rows, z->new_rows)},
        .across = {.n = z->columns,
                   .m = z->new_columns,
                   .below = most_below(z->columns, z->new_columns)}};
    work.down.first = memory;
    work.across.first = work.down.first + z->new_rows;
    work.down.share = (float *)(work.across.first + z->new_columns);
    work.across.share = work.down.share + z->new_rows * work.down.below;
    work.line = work.across.share + z->new_columns * work.across.below;
    work.narrow = work.line + z->columns * z->channels;
    work.sum = work.narrow + z->new_columns * z->channels;
    return work;
}

int64_t screen_work(const Sizes *z) {
    int64_t shares = z->new_rows * most_below(z->rows, z->new_rows) +
                     z->new_columns * most_below(z->columns, z->new_columns);
    int64_t floats = shares + (z->columns + 2 * z->new_columns) * z->channels;
    return (8 * (z->new_rows + z->new_columns) + 4 * floats + 63) / 64 * 64;
}

void screen_prepare(const Sizes *sizes, void *memory) {
    Work work = work_of(sizes, memory);
    fill_axis(&work.down);
    fill_axis(&work.across);
}

/* Fill new columns [low, high) of `narrow` from `line`. */
ALWAYS_INLINE void narrow_by(const Work *work, int64_t below, int64_t channels, int64_t low,
                             int64_t high) {
    for (int64_t d = low; d < high; d++)
        for (int64_t c = 0; c < channels; c++) {
            const float *x = work->line + work->across.first[d] * channels + c;
            float sum = 0.0f;
            for (int64_t k = 0; k < below; k++)
                sum += work->across.share[d * below + k] * x[k * channels];
            work->narrow[d * channels + c] = sum;
        }
}

/* Fill `line` at [low, high) from a row; returns a number below 0 if a colour has no entry. */
ALWAYS_INLINE int read_row(const Screen *screen, int64_t start, int64_t low, int64_t high,
                           float *line) {
    const uint8_t *row = screen->image + start;
    const uint8_t *index = screen->indices ? screen->indices + start : row;
    int all = 0;
    for (int64_t i = low; i < high; i++) {
        int colour = screen->indices ? screen->table[index[i]] : 0;
        all |= colour;
        line[i] = (float)(colour > row[i] ? colour : row[i]);
    }
    return all;
}

/* Fill `narrow` from row s, where it differs from row `done`, of which it is made (-1: none).
 * Returns as read_row. A game's screen has its own loop, with known bounds. */
ALWAYS_INLINE int narrow_row(const Sizes *z, const Work *work, const Screen *screen, int64_t s,
                             int64_t done) {
    int64_t bytes = z->columns * z->channels, low = 0, high = bytes;
    if (done >= 0) {
        int64_t low_too = 0, high_too = bytes;
        trim_equal(screen->image + s * bytes, screen->image + done * bytes, &low, &high);
        if (screen->indices) {
            trim_equal(screen->indices + s * bytes, screen->indices + done * bytes, &low_too,
                       &high_too);
            low = high == 0 ? low_too : high_too == 0 ? low : least(low, low_too);
            high = most(high, high_too);
        }
    }
    if (low >= high) return 0;
    int all = read_row(screen, s * bytes, low, high, work->line);
    low = low / z->channels * z->new_columns / z->columns;
    high = (high + z->channels - 1) / z->channels * z->new_columns;
    high = least((high + z->columns - 1) / z->columns, z->new_columns);
    if (work->across.below == 3 && z->channels == 1)
        narrow_by(work, 3, 1, low, high);
    else
        narrow_by(work, work->across.below, z->channels, low, high);
    return all;
}

ALWAYS_INLINE void add_row(float share, const float *restrict row, int64_t n,
                           float *restrict sum) {
    for (int64_t i = 0; i < n; i++) sum[i] += share * row[i];
}

/* To the nearest integer, half to even: the float's own rounding where its unit is 1. */
ALWAYS_INLINE void store_rounded(const float *restrict sum, int64_t n, uint8_t *restrict out) {
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint8_t)(as_bits(sum[i] + ROUNDER) - as_bits(ROUNDER));
}

ALWAYS_INLINE void screen_resize_body(const Sizes *z, const Screen *screen, void *memory,
                                      uint8_t *out, int *known) {
    Work work = work_of(z, memory);
    int64_t n = z->new_columns * z->channels;
    int64_t done = -1; /* the row of which `narrow` is made */
    int all = 0;
    for (int64_t d = 0; d < z->new_rows; d++, out += n) {
        memset(work.sum, 0, (size_t)n * sizeof *work.sum);
        for (int64_t k = 0; k < work.down.below; k++) {
            float share = work.down.share[d * work.down.below + k];
            int64_t s = work.down.first[d] + k;
            if (share == 0.0f) continue;
            if (s != done) all |= narrow_row(z, &work, screen, s, done);
            done = s;
            add_row(share, work.narrow, n, work.sum);
        }
        store_rounded(work.sum, n, out);
    }
    *known = all >= 0;
}

DISPATCH(screen_resize,
         (const Sizes *sizes, const Screen *screen, void *work, uint8_t *out, int *known),
         (sizes, screen, work, out, known))
