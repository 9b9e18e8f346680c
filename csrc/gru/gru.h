/* A GRU cell over packed sequences, forward and backward through time.
 *
 * The equations and the order of gates (r z n) are those of torch.nn.GRU on a PackedSequence. The
 * input part of the gates and the gradients of weights are products over all samples, which the
 * caller computes. There is no LSTM: torch's own, from oneDNN, was faster than one like this.
 */
#ifndef FASTPPO_GRU_H
#define FASTPPO_GRU_H

#include <stdint.h>

enum { GATES = 3, KEPT = 4 }; /* floats per sample, in units of the cell's size */

/* Samples are ordered by step, and within a step by falling length of their sequence. */
typedef struct {
    int64_t size, steps;
    const int64_t *sizes; /* [steps] the number of sequences that have this step */
} Unroll;

/* The number of floats of `work` for `rows` sequences, forward or backward. */
int64_t unroll_work(int64_t size, int64_t rows);

/* out [n h] from x [n 3h], the input part of the gates with its bias, weight [3h h], bias [3h] and
 * state [sizes[0] h]. Fills prev [n h], the h before each sample, and kept [n 4h] for the way
 * back. */
void unroll_forward(const Unroll *unroll, const float *x, const float *weight, const float *bias,
                    const float *state, float *work, float *prev, float *kept, float *out);

/* From dout, the gradient of out: dx [n 3h], the gradient of x, and inner [n 3h], the gradient of
 * the hidden part of the gates. */
void unroll_backward(const Unroll *unroll, const float *weight, const float *dout,
                     const float *prev, const float *kept, float *work, float *dx, float *inner);

#endif
