/* The policy that acts without torch: a batch of rows through the layers of a plan.
 *
 * The products are those of the update (dense.c), so both compute the same bits. A row's bits do
 * not depend on the other rows of the batch; the last block is filled up with rows of zeros.
 */
#include "mlp/mlp.h"

#include <stddef.h>
#include <string.h>

#include "mlp/dense.h"
#include "simd/fastmath.h"

#define MAX_OFFSET ((int64_t)1 << 40)

/* The buffer that a layer writes; columns of the output have an extra one. */
static int64_t slot(const int64_t *layer) { return layer[DST] < 0 ? MAX_BUFFERS : layer[DST]; }

/* The reason why a layer is invalid after the layers before it, or NULL. */
static const char *layer_fault(const int64_t *layer, const Layout *layout) {
    if (layer[SRC] < 0 || layer[SRC] >= MAX_BUFFERS || layer[DST] < -1 || layer[DST] == 0 ||
        layer[DST] >= MAX_BUFFERS || layer[DST] == layer[SRC])
        return "a layer names an invalid buffer";
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

/* Place every buffer; it is as wide as the widest layer that writes to it. */
static void place_buffers(const int64_t *plan, int64_t layers, Layout *layout) {
    int64_t widest[MAX_BUFFERS + 1] = {0};
    widest[0] = row_of(layout->inputs);
    for (int64_t i = 0; i < layers; i++) {
        const int64_t *layer = plan + i * PLAN_COLUMNS;
        widest[slot(layer)] = most(widest[slot(layer)], row_of(layer[N_OUT]));
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
        layout->packed += packed_floats(in, out);
        layout->params = most(layout->params, layer[W_OFFSET] + in * out);
        layout->params = most(layout->params, layer[B_OFFSET] + out);
    }
    place_buffers(plan, layers, layout);
    return NULL;
}

void mlp_pack(const int64_t *plan, int64_t layers, const float *params, float *packed) {
    for (int64_t i = 0; i < layers; i++, plan += PLAN_COLUMNS) {
        int64_t in = plan[N_IN], out = plan[N_OUT];
        pack_forward(params + plan[W_OFFSET], params + plan[B_OFFSET], in, out, packed);
        packed += packed_floats(in, out);
    }
}

ALWAYS_INLINE void mlp_read_body(const Normaliser *normaliser, const float *obs,
                                 const int64_t *index, int64_t inputs, int64_t live, int64_t rows,
                                 float *x) {
    int64_t row = row_of(inputs);
    const float *mean = normaliser->mean, *scale = normaliser->scale;
    float limit = normaliser->limit;
    for (int64_t r = 0; r < live; r++, x += row) {
        const float *from = obs + (index ? index[r] : r) * inputs;
        if (mean)
            for (int64_t i = 0; i < inputs; i++)
                x[i] = clamp((from[i] - mean[i]) * scale[i], -limit, limit);
        else
            memcpy(x, from, (size_t)inputs * sizeof *x);
    }
    memset(x, 0, (size_t)((rows - live) * row) * sizeof *x);
}

DISPATCH(mlp_read,
         (const Normaliser *normaliser, const float *obs, const int64_t *index, int64_t inputs,
          int64_t live, int64_t rows, float *x),
         (normaliser, obs, index, inputs, live, rows, x))

void mlp_layer(const float *packed, const float *x, int64_t n, int64_t rows, int64_t activation,
               float *y, int64_t out) {
    dense(packed, x, n, rows, 0, y, out);
    dense_activate(y, rows * row_of(out), activation);
}

/* `live` rows of the batch through every layer, in `scratch` [ROWS * layout->floats]. */
static void forward_block(const int64_t *plan, int64_t layers, const Layout *layout,
                          const float *packed, int64_t live, float *scratch, float *out) {
    for (int64_t i = 0, column = 0; i < layers; i++, plan += PLAN_COLUMNS) {
        const float *x = scratch + ROWS * layout->start[plan[SRC]];
        float *y = scratch + ROWS * layout->start[slot(plan)];
        int64_t outputs = plan[N_OUT];
        mlp_layer(packed, x, plan[N_IN], live, plan[ACTIVATION], y, outputs);
        packed += packed_floats(plan[N_IN], outputs);
        if (plan[DST] >= 0) continue;
        for (int64_t r = 0; r < live; r++)
            memcpy(out + r * layout->outputs + column, y + r * row_of(outputs),
                   (size_t)outputs * sizeof *y);
        column += outputs;
    }
}

void mlp_forward(const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
                 const Normaliser *normaliser, const float *obs, int64_t n, float *work,
                 float *out) {
    _Alignas(64) float near[ROWS * STACK_FLOATS];
    float *scratch = layout->floats > STACK_FLOATS ? work : near;
    /* Tiles read rows that no layer has written; denormal numbers there would be slow. */
    if (n <= HIGH) memset(scratch, 0, (size_t)(ROWS * layout->floats) * sizeof *scratch);
    for (int64_t row = 0; row < n; row += ROWS) {
        int64_t live = least(ROWS, n - row);
        mlp_read(normaliser, obs + row * layout->inputs, NULL, layout->inputs, live, ROWS, scratch);
        forward_block(plan, layers, layout, packed, live, scratch, out + row * layout->outputs);
    }
}
