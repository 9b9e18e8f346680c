/* Multilayer perceptrons described by a plan: what an actor-critic is, as data.
 *
 * A plan has one row per layer, in execution order:
 *     (src, dst, n_in, n_out, w_offset, b_offset, activation)
 * `src` and `dst` are buffers: 0 is the normalised observation, 1.. are the caller's, and dst = -1
 * appends to the columns of the output. `w_offset` and `b_offset` point into the flat parameters,
 * in torch's layout: weight [n_out n_in] row-major, bias [n_out]. A shared trunk is two layers with
 * the same src.
 */
#ifndef FASTPPO_MLP_H
#define FASTPPO_MLP_H

#include <stdint.h>

enum { PLAN_COLUMNS = 7 };
enum { SRC, DST, N_IN, N_OUT, W_OFFSET, B_OFFSET, ACTIVATION };
enum { NONE, TANH, RELU, ELU, ACTIVATIONS };

/* Rows are inferred four at a time, outputs sixteen at a time. */
enum { ROWS = 4, LANES = 16 };

/* Buffers a plan may name; the widest layer; floats of one row's buffers that need no memory of the
 * caller's (96 KiB of stack). */
enum { MAX_BUFFERS = 64, MAX_WIDTH = 1 << 20, STACK_FLOATS = 6144 };

/* What a plan comes to: where each buffer of a row lies, and the sizes of everything. */
typedef struct {
    int64_t start[MAX_BUFFERS + 1], width[MAX_BUFFERS + 1]; /* the last: the output's */
    int64_t floats, outputs, packed, params, inputs;
    float limit; /* of a normalised observation, the caller's to set */
} Layout;

/* Fill `layout`; return NULL, or what is wrong with the plan. */
const char *mlp_layout(const int64_t *plan, int64_t layers, Layout *layout);

/* Copy `params` [layout.params] to `packed` [layout.packed], as mlp_forward reads them. */
void mlp_pack(const int64_t *plan, int64_t layers, const float *params, float *packed);

/* out [n layout.outputs] = the networks at obs [n layout.inputs]; mean = NULL: obs as they are,
 * else within layout.limit. `work` [ROWS * layout.floats] is read and written where layout.floats is
 * above STACK_FLOATS. */
void mlp_forward(const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
                 const float *mean, const float *scale, const float *obs, int64_t n, float *work,
                 float *out);

#endif
