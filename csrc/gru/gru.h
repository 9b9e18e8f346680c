/* A GRU cell over packed sequences, forwards and backwards through time.
 *
 * Twin of torch.nn.GRU on a PackedSequence: its equations, its order of gates (r z n). What the
 * cell makes of its inputs, and the weights' gradients, are products over all samples at once and
 * left to whoever calls. No LSTM: torch's own, oneDNN's, was faster than one like this.
 */
#ifndef FASTPPO_RECURRENT_H
#define FASTPPO_RECURRENT_H

#include <stdint.h>

enum { GATES = 3, KEPT = 4 }; /* floats of a sample in units of the cell's size */

/* Samples stand step by step, those of the longest sequence first. */
typedef struct {
    int64_t size, steps;
    const int64_t *sizes; /* [steps] sequences that have such a step */
} Unroll;

/* Floats of `work` for `rows` sequences; either way. */
int64_t unroll_work(int64_t size, int64_t rows);

/* out [n h] from x [n 3h], inputs' part of the gates with its bias, weight [3h h], bias [3h] and
 * state [sizes[0] h]; prev [n h] is what each sample's h was before, kept [n 4h] for later. */
void unroll_forward(const Unroll *unroll, const float *x, const float *weight, const float *bias,
                    const float *state, float *work, float *prev, float *kept, float *out);

/* From the gradient of out: dx [n 3h], that of x, and inner [n 3h], that of the hidden part of the
 * gates. */
void unroll_backward(const Unroll *unroll, const float *weight, const float *dout,
                     const float *prev, const float *kept, float *work, float *dx, float *inner);

#endif
