/* Inference of the networks that a plan describes as data.
 *
 * A plan has one row per layer, in execution order:
 *     (src, dst, n_in, n_out, w_offset, b_offset, activation, kind, channels, width, size, stride)
 * `src` and `dst` are buffers: 0 is the normalised observation, 1.. are the plan's own, and dst =
 * -1 appends columns to the output. `w_offset` and `b_offset` point into the flat parameters, in
 * torch's layout: weight [n_out n_in] row-major, bias [n_out]. A shared trunk is two layers with
 * the same src.
 *
 * The last four are 0 in a dense layer. A convolution (conv.h) has the channels and the width of
 * its input, and the size and stride of its windows; its input and output are [height width
 * channels]. A layer that flattens has channels. Where the observation is an image, the first row
 * has its layout (image.h): src and dst 0, n_in = n_out = its bytes, the channels of a frame, in
 * `width` the places of a frame, `size` 1 if the channels are last, and in `stride` the byte that
 * becomes 1. A scan has in `channels` its place in the memory of a row, and in `width` the length
 * of the longest sequence of an update.
 */
#ifndef FASTPPO_FORWARD_H
#define FASTPPO_FORWARD_H

#include <stdint.h>

#include "network/layers.h"

/* Rows that go through the layers together: a TALL of dense.h. */
enum { ROWS = 8 };

/* The number of buffers of a plan; the floats of one row's buffers up to which the stack is used
 * (192 KiB) instead of the caller's memory. */
enum { MAX_BUFFERS = 64, STACK_FLOATS = 6144 };

/* The memory layout of a plan: the place of each buffer of a row, and all sizes. */
typedef struct {
    int64_t start[MAX_BUFFERS + 1], width[MAX_BUFFERS + 1]; /* the last: the output */
    int64_t floats, outputs, packed, params, inputs;
    int64_t first;  /* the first row that is a layer: 1 behind the row of an image */
    int64_t memory; /* the numbers that a row remembers */
    Image image;
} Layout;

/* The normalisation of observations: clip((obs - mean) * scale, -limit, limit). */
typedef struct {
    const float *mean, *scale; /* [inputs]; both NULL: observations as they are */
    float limit;
} Normaliser;

/* Fill `layout`; return NULL, or the reason why the plan is invalid. */
const char *plan_layout(const int64_t *plan, int64_t layers, Layout *layout);

/* Copy `params` [layout.params] to `packed` [layout.packed], in the order of plan_forward. */
void plan_pack(const int64_t *plan, int64_t layers, const float *params, float *packed);

/* x [rows row_of(inputs)] = the normalised observations: those of `index` [live], or the first
 * `live` where it is NULL; 0 from row `live` on. */
void read_rows(const Normaliser *normaliser, const float *obs, const int64_t *index, int64_t inputs,
              int64_t live, int64_t rows, float *x);

/* The memory [n layout.memory] of rows before and after a step; `after` may be NULL. */
typedef struct {
    const float *before;
    float *after;
} Memory;

/* out [n layout.outputs] = the networks at obs [n layout.inputs], float32, or the bytes of images.
 * `work` [ROWS * layout.floats] is read and written where layout.floats is above STACK_FLOATS. */
void plan_forward(const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
                  const Normaliser *normaliser, const void *obs, int64_t n, Memory memory,
                  float *work, float *out);

#endif
