/* Dense layers forwards and backwards, on blocks of rows.
 *
 * Lanes run over independent outputs and a reduced axis is walked in index order with explicit
 * fma, so neither the size of a tile nor the instruction set changes a bit of any result.
 * In a block, a row of n floats takes row_of(n); what lies behind its n floats is never used.
 */
#ifndef FASTPPO_DENSE_H
#define FASTPPO_DENSE_H

#include <stdint.h>

/* Outputs are made WIDE or NARROW at a time, for HIGH or TALL rows; blocks have whole TALLs. */
enum { WIDE = 16, NARROW = 8, HIGH = 4, TALL = 8 };

/* Floats between two rows of a block; not a multiple of 1 KiB, which would put all rows of a column
 * into four sets of the level-1 cache. */
static inline int64_t row_of(int64_t n) {
    int64_t row = (n + WIDE - 1) / WIDE * WIDE;
    return row % 256 ? row : row + WIDE;
}

/* Floats that pack_forward or pack_backward writes for `out` outputs of n inputs. */
int64_t packed_floats(int64_t n, int64_t out);

/* Pack weight [out n] and bias [out] for y = x weight^T + bias, n to out. */
void pack_forward(const float *weight, const float *bias, int64_t n, int64_t out, float *packed);

/* Pack weight [out n] for x = y weight, out to n. */
void pack_backward(const float *weight, int64_t n, int64_t out, float *packed);

/* y [rows out] = x [rows n] times what was packed; added to what is there where `adds`. */
void dense(const float *packed, const float *x, int64_t n, int64_t rows, int64_t adds, float *y,
           int64_t out);

/* weight [out n] = delta^T x, bias [out] = the sum of delta, over `live` rows of x and delta; added
 * to what is there where `adds`. */
void dense_gradient(const float *x, int64_t n, const float *delta, int64_t out, int64_t live,
                    int64_t adds, float *weight, float *bias);

/* y = activation(y), one of mlp.h's, for n floats. */
void dense_activate(float *y, int64_t n, int64_t activation);

/* delta *= the slope of the activation where its value is y, for n floats. */
void dense_slope(const float *y, float *delta, int64_t n, int64_t activation);

#endif
