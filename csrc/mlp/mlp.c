/* The torch-free actor: a batch of rows through the layers of a plan.
 *
 * A row's bits do not depend on the batch around it: SIMD lanes run over independent outputs,
 * inputs are summed in index order with explicit fma, and a short last block has rows of zeros.
 */
#include "mlp/mlp.h"

#include <stddef.h>
#include <string.h>

#include "mlp/dense.h"
#include "simd/fastmath.h"
#include "simd/lanes.h"

#define MAX_OFFSET ((int64_t)1 << 40)

static int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

/* The buffer a layer writes: columns of the output go through one of their own. */
static int64_t slot(const int64_t *layer) { return layer[DST] < 0 ? MAX_BUFFERS : layer[DST]; }

/* What is wrong with one layer, given the buffers written before it. */
static const char *layer_fault(const int64_t *layer, const Layout *layout) {
    if (layer[SRC] < 0 || layer[SRC] >= MAX_BUFFERS || layer[DST] < -1 || layer[DST] == 0 ||
        layer[DST] >= MAX_BUFFERS || layer[DST] == layer[SRC])
        return "a layer names a buffer that it cannot";
    if (layer[N_IN] < 1 || layer[N_IN] > MAX_WIDTH || layer[N_OUT] < 1 || layer[N_OUT] > MAX_WIDTH)
        return "a layer is empty, or wider than 1048576";
    if (layout->width[layer[SRC]] != layer[N_IN])
        return "a layer reads a buffer of another width, or one not written yet";
    if (layer[W_OFFSET] < 0 || layer[B_OFFSET] < 0 || layer[W_OFFSET] > MAX_OFFSET ||
        layer[B_OFFSET] > MAX_OFFSET)
        return "an offset lies outside the parameters";
    if (layer[ACTIVATION] < NONE || layer[ACTIVATION] >= ACTIVATIONS)
        return "an activation is not one of 0 none, 1 tanh, 2 relu, 3 elu";
    return NULL;
}

/* Give every buffer its place: as wide as the widest layer that writes to it. */
static void place(const int64_t *plan, int64_t layers, Layout *layout) {
    int64_t widest[MAX_BUFFERS + 1] = {0};
    widest[0] = padded(layout->inputs);
    for (int64_t i = 0; i < layers; i++) {
        const int64_t *layer = plan + i * PLAN_COLUMNS;
        widest[slot(layer)] = most(widest[slot(layer)], padded(layer[N_OUT]));
    }
    for (int i = 0; i <= MAX_BUFFERS; i++) {
        layout->start[i] = layout->floats;
        layout->floats += widest[i];
    }
}

const char *mlp_layout(const int64_t *plan, int64_t layers, Layout *layout) {
    memset(layout, 0, sizeof *layout);
    if (layers < 1) return "the plan has no layer";
    layout->inputs = layout->width[0] = plan[N_IN];
    for (int64_t i = 0; i < layers; i++) {
        const int64_t *layer = plan + i * PLAN_COLUMNS;
        const char *fault = layer_fault(layer, layout);
        if (fault) return fault;
        int64_t in = layer[N_IN], out = layer[N_OUT];
        layout->width[slot(layer)] = out;
        layout->outputs += layer[DST] < 0 ? out : 0;
        layout->packed += padded(out) * (in + 1);
        layout->params = most(layout->params, layer[W_OFFSET] + in * out);
        layout->params = most(layout->params, layer[B_OFFSET] + out);
    }
    place(plan, layers, layout);
    return NULL;
}

/* One tile: the bias of sixteen outputs, then for every input its weight to each of them. */
static float *pack_tile(const int64_t *layer, const float *params, int64_t first, float *packed) {
    int64_t in = layer[N_IN], live = layer[N_OUT] - first;
    const float *weight = params + layer[W_OFFSET] + first * in;
    const float *bias = params + layer[B_OFFSET] + first;
    for (int64_t lane = 0; lane < LANES; lane++) {
        packed[lane] = lane < live ? bias[lane] : 0.0f;
        for (int64_t i = 0; i < in; i++)
            packed[(i + 1) * LANES + lane] = lane < live ? weight[lane * in + i] : 0.0f;
    }
    return packed + (in + 1) * LANES;
}

void mlp_pack(const int64_t *plan, int64_t layers, const float *params, float *packed) {
    for (int64_t i = 0; i < layers; i++, plan += PLAN_COLUMNS)
        for (int64_t first = 0; first < plan[N_OUT]; first += LANES)
            packed = pack_tile(plan, params, first, packed);
}

/* One layer of a block, x to y; returns where the weights of the following layer begin. */
ALWAYS_INLINE const float *run_layer(const int64_t *layer, const float *w, const float *x,
                                     int64_t live, float *y) {
    int64_t in = layer[N_IN], in_stride = padded(in), out_stride = padded(layer[N_OUT]);
    for (int64_t first = 0; first < layer[N_OUT]; first += LANES) {
        Walk weights = {w + LANES, 0, LANES}, rows = {x, in_stride, 1}, biases = {w, 0, 0};
        wide_tile(weights, rows, in, biases, y + first, out_stride);
        w += (in + 1) * LANES;
    }
    dense_activate(y, live * out_stride, layer[ACTIVATION]);
    return w;
}

/* x [ROWS ...] = clip((obs - mean) * scale, +-limit), or obs as they are; 0 from row `live` on. */
ALWAYS_INLINE void read_obs(const float *mean, const float *scale, const float *obs,
                            const Layout *layout, int64_t live, float *x) {
    int64_t inputs = layout->inputs, stride = padded(inputs);
    float limit = layout->limit;
    for (int64_t r = 0; r < ROWS; r++, x += stride, obs += inputs) {
        if (r >= live)
            for (int64_t i = 0; i < inputs; i++) x[i] = 0.0f;
        else if (mean)
            for (int64_t i = 0; i < inputs; i++)
                x[i] = clamp((obs[i] - mean[i]) * scale[i], -limit, limit);
        else
            memcpy(x, obs, (size_t)inputs * sizeof *x);
    }
}

/* `live` rows of the batch through every layer, in `scratch` [ROWS * layout->floats]. */
ALWAYS_INLINE void mlp_block_body(const int64_t *plan, int64_t layers, const Layout *layout,
                                  const float *packed, const float *mean, const float *scale,
                                  const float *obs, int64_t live, float *scratch, float *out) {
    read_obs(mean, scale, obs, layout, live, scratch);
    for (int64_t i = 0, column = 0; i < layers; i++, plan += PLAN_COLUMNS) {
        float *y = scratch + ROWS * layout->start[slot(plan)];
        packed = run_layer(plan, packed, scratch + ROWS * layout->start[plan[SRC]], live, y);
        if (plan[DST] >= 0) continue;
        for (int64_t r = 0; r < live; r++)
            memcpy(out + r * layout->outputs + column, y + r * padded(plan[N_OUT]),
                   (size_t)plan[N_OUT] * sizeof *y);
        column += plan[N_OUT];
    }
}

DISPATCH(mlp_block,
         (const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
          const float *mean, const float *scale, const float *obs, int64_t live, float *scratch,
          float *out),
         (plan, layers, layout, packed, mean, scale, obs, live, scratch, out))

void mlp_forward(const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
                 const float *mean, const float *scale, const float *obs, int64_t n, float *work,
                 float *out) {
    _Alignas(64) float near[ROWS * STACK_FLOATS];
    float *scratch = layout->floats > STACK_FLOATS ? work : near;
    for (int64_t row = 0; row < n; row += ROWS)
        mlp_block(plan, layers, layout, packed, mean, scale, obs + row * layout->inputs,
                  least(ROWS, n - row), scratch, out + row * layout->outputs);
}
