/* Vectors of eight floats, and the tile of sums that a matrix product is made of.
 *
 * Vec is a generic vector of gcc and clang, which need not have a register of its size.
 */
#ifndef FASTPPO_LANES_H
#define FASTPPO_LANES_H

#include <string.h>

#include "simd/fastmath.h"

typedef float Vec __attribute__((vector_size(32)));

/* sum += x * w. gcc 12 makes one instruction of this loop, but only for separate variables: arrays
 * of sums (sum[r][j]) end in memory or in scalars, at a tenth of the speed. */
ALWAYS_INLINE void multiply_add(float x, const Vec *w, Vec *sum) {
    for (int i = 0; i < 8; i++) (*sum)[i] = fma32(x, (*w)[i], (*sum)[i]);
}

ALWAYS_INLINE void load(Vec *to, const float *from) { memcpy(to, from, sizeof *to); }
ALWAYS_INLINE void store(float *to, const Vec *from) { memcpy(to, from, sizeof *from); }

/* Something for each row of a tall tile: gcc 12 keeps an array of sums in memory before and after
 * a loop. */
#define EACH_OF_TALL(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)

/* An operand of a tile: element (row, k) is at[row * row + k * step]; the second panel of a tile
 * that has two lies `apart` from the first. */
typedef struct {
    const float *at;
    int64_t row, step, apart;
} Walk;

ALWAYS_INLINE void load_two(Vec *left, Vec *right, const float *from) {
    load(left, from);
    load(right, from + 8);
}

ALWAYS_INLINE void store_two(float *to, const Vec *left, const Vec *right) {
    store(to, left);
    store(to + 8, right);
}

/* y [4 16] = start + sum over k < n of x[:, k] w[k, :], for rows a b c d. Eight independent sums
 * cover the latency of fma. */
ALWAYS_INLINE void wide_tile(Walk w, Walk x, int64_t n, Walk start, float *y, int64_t y_row) {
    Vec a0, a1, b0, b1, c0, c1, d0, d1, left, right;
    load_two(&a0, &a1, start.at);
    load_two(&b0, &b1, start.at + start.row);
    load_two(&c0, &c1, start.at + 2 * start.row);
    load_two(&d0, &d1, start.at + 3 * start.row);
    for (int64_t k = 0; k < n; k++, w.at += w.step, x.at += x.step) {
        load_two(&left, &right, w.at);
        float a = x.at[0], b = x.at[x.row], c = x.at[2 * x.row], d = x.at[3 * x.row];
        multiply_add(a, &left, &a0);
        multiply_add(a, &right, &a1);
        multiply_add(b, &left, &b0);
        multiply_add(b, &right, &b1);
        multiply_add(c, &left, &c0);
        multiply_add(c, &right, &c1);
        multiply_add(d, &left, &d0);
        multiply_add(d, &right, &d1);
    }
    store_two(y, &a0, &a1);
    store_two(y + y_row, &b0, &b1);
    store_two(y + 2 * y_row, &c0, &c1);
    store_two(y + 3 * y_row, &d0, &d1);
}

#endif
