/* Inference of multilayer perceptrons that a plan describes as data.
 *
 * A plan has one row per layer, in execution order:
 *     (src, dst, n_in, n_out, w_offset, b_offset, activation)
 * `src` and `dst` are buffers: 0 is the normalised observation, 1.. are the plan's own, and dst =
 * -1 appends columns to the output. `w_offset` and `b_offset` point into the flat parameters, in
 * torch's layout: weight [n_out n_in] row-major, bias [n_out]. A shared trunk is two layers with
 * the same src.
 */
#ifndef FASTPPO_MLP_H
#define FASTPPO_MLP_H

#include <stdint.h>

enum { PLAN_COLUMNS = 7 };
enum { SRC, DST, N_IN, N_OUT, W_OFFSET, B_OFFSET, ACTIVATION };
enum { NONE, TANH, RELU, ELU, ACTIVATIONS };

/* Rows that go through the layers together: a TALL of dense.h. */
enum { ROWS = 8 };

/* The number of buffers of a plan; the widest layer; the floats of one row's buffers up to which
 * the stack is used (192 KiB) instead of the caller's memory. */
enum { MAX_BUFFERS = 64, MAX_WIDTH = 1 << 20, STACK_FLOATS = 6144 };

/* The memory layout of a plan: the place of each buffer of a row, and all sizes. */
typedef struct {
    int64_t start[MAX_BUFFERS + 1], width[MAX_BUFFERS + 1]; /* the last: the output */
    int64_t floats, outputs, packed, params, inputs;
} Layout;

/* The normalisation of observations: clip((obs - mean) * scale, -limit, limit). */
typedef struct {
    const float *mean, *scale; /* [inputs]; both NULL: observations as they are */
    float limit;
} Normaliser;

/* Fill `layout`; return NULL, or the reason why the plan is invalid. */
const char *mlp_layout(const int64_t *plan, int64_t layers, Layout *layout);

/* Copy `params` [layout.params] to `packed` [layout.packed], in the order of mlp_forward. */
void mlp_pack(const int64_t *plan, int64_t layers, const float *params, float *packed);

/* x [rows row_of(inputs)] = the normalised observations: those of `index` [live], or the first
 * `live` where it is NULL; 0 from row `live` on. */
void mlp_read(const Normaliser *normaliser, const float *obs, const int64_t *index, int64_t inputs,
              int64_t live, int64_t rows, float *x);

/* y [rows out] = activation(x [rows n] times a packed layer), in blocks as dense.h describes. */
void mlp_layer(const float *packed, const float *x, int64_t n, int64_t rows, int64_t activation,
               float *y, int64_t out);

/* out [n layout.outputs] = the networks at obs [n layout.inputs]. `work` [ROWS * layout.floats] is
 * read and written where layout.floats is above STACK_FLOATS. */
void mlp_forward(const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
                 const Normaliser *normaliser, const float *obs, int64_t n, float *work,
                 float *out);

#endif
