/* Convolutions without padding, forward and backward, one image at a time, without im2col.
 *
 * An image lies in memory as [height width channels]. A row of a window is one run of floats, and a
 * window is `size` runs, a row of the image apart. So all three products are one tile: rows times
 * sixteen lanes, summed over a walk of `outer` x `inner` steps.
 *
 *     forward    y[p, o] = bias[o] + sum over the window's floats k  x[p, k] w[o, k]
 *     gradient   dw[o, k] += sum over places p                       dy[p, o] x[p, k]
 *     data       dx[p, k] += sum over outputs o                      dy[p, o] w[o, k]
 *
 * As in dense.h, lanes hold independent results and sums run in index order with explicit fma, so
 * neither the size of a tile nor the instruction set changes a bit.
 */
#ifndef FASTPPO_CONV_H
#define FASTPPO_CONV_H

#include <stdint.h>

/* A convolution from [height width channels] to [high wide outputs], by square windows. */
typedef struct {
    int64_t channels, height, width, size, stride;
    int64_t outputs, high, wide;
} Conv;

/* The convolution of these sizes; NULL, or the reason why there is none, in `fault`. */
Conv conv_of(int64_t inputs, int64_t floats, int64_t channels, int64_t width, int64_t size,
             int64_t stride, const char **fault);

/* The number of floats of a packed convolution, for each of the two directions. */
int64_t conv_packed(const Conv *conv);

/* Pack weight [outputs channels size size] and bias [outputs] for conv_forward. */
void conv_pack_forward(const Conv *conv, const float *weight, const float *bias, float *packed);

/* Pack weight for conv_data. */
void conv_pack_backward(const Conv *conv, const float *weight, float *packed);

/* y = the convolution of x. */
void conv_forward(const Conv *conv, const float *packed, const float *x, float *y);

/* dx = the gradient of x for dy, the gradient of y; conv_data_fault has the reason why it cannot be
 * computed, or NULL. */
const char *conv_data_fault(const Conv *conv);
void conv_data(const Conv *conv, const float *packed, const float *dy, float *dx);

/* The number of floats of `panels`. */
int64_t conv_panels(const Conv *conv);

/* Adds the gradient of the weights to `panels`, and that of the bias [outputs] to `bias`; where
 * `adds` is 0 both are replaced. Reads up to fifteen floats behind x, and ignores them. */
void conv_gradient(const Conv *conv, const float *x, const float *dy, int64_t adds, float *panels,
                   float *bias);

/* weight [outputs channels size size] = the gradient in `panels`. */
void conv_unpack(const Conv *conv, const float *panels, float *weight);

#endif
