/* Dense layers, forward and backward, on blocks of rows; acting, the update and the GRU share
 * them.
 *
 * SIMD lanes hold independent outputs, and sums run in index order with explicit fma, so neither
 * the size of a tile nor the instruction set changes a bit of any result. In a block, a row of n
 * floats occupies row_of(n) floats; the rest of the row is never used.
 */
#ifndef FASTPPO_DENSE_H
#define FASTPPO_DENSE_H

#include <stdint.h>

/* A tile has BROAD, WIDE or NARROW outputs for HIGH or TALL rows; a block has a multiple of TALL
 * rows. */
enum { WIDE = 16, NARROW = 8, HIGH = 4, TALL = 8, BROAD = 2 * WIDE };

/* The stride of a block's rows in floats. It is no multiple of 1 KiB: with one, all rows of a
 * column would share four sets of the level-1 cache. */
static inline int64_t row_of(int64_t n) {
    int64_t row = (n + WIDE - 1) / WIDE * WIDE;
    return row % 256 ? row : row + WIDE;
}

/* The number of floats that pack_forward and pack_backward write for `out` outputs of n inputs. */
int64_t packed_floats(int64_t n, int64_t out);

/* Pack weight [out n] and bias [out] for dense to compute y = x weight^T + bias. */
void pack_forward(const float *weight, const float *bias, int64_t n, int64_t out, float *packed);

/* Pack weight [out n] for dense to compute x = y weight. */
void pack_backward(const float *weight, int64_t n, int64_t out, float *packed);

/* y [rows out] = x [rows n] times the packed weights, added to y where `adds`. Reads and writes up
 * to the next multiple of TALL rows. */
void dense(const float *packed, const float *x, int64_t n, int64_t rows, int64_t adds, float *y,
           int64_t out);

/* weight [out n] = delta^T x and bias [out] = the sum of delta, over `live` rows of x and delta;
 * added to weight and bias where `adds`. */
void dense_gradient(const float *x, int64_t n, const float *delta, int64_t out, int64_t live,
                    int64_t adds, float *weight, float *bias);

/* y = activation(y) for n floats; the codes of activations are in layers.h. */
void dense_activate(float *y, int64_t n, int64_t activation);

/* delta *= the derivative of the activation, computed from its value y, for n floats. */
void dense_slope(const float *y, float *delta, int64_t n, int64_t activation);

#endif
