/* The policy that acts without torch: a batch of rows through the layers of a plan.
 *
 * The products are those of the update (layers.c), so both compute the same bits. A row's bits do
 * not depend on the other rows of the batch; the last block is filled up with rows of zeros.
 */
#include "network/forward.h"

#include <stddef.h>
#include <string.h>

#include "network/dense.h"
#include "network/scan.h"
#include "simd/fastmath.h"

#define MAX_OFFSET ((int64_t)1 << 40)

/* The buffer that a layer writes; columns of the output have an extra one. */
static int64_t slot(const int64_t *layer) { return layer[DST] < 0 ? MAX_BUFFERS : layer[DST]; }

/* The reason why a layer is invalid after the layers before it, or NULL. */
static const char *layer_fault(const int64_t *layer, const Layout *layout) {
    if (layer[SRC] < 0 || layer[SRC] >= MAX_BUFFERS || layer[DST] < -1 || layer[DST] == 0 ||
        layer[DST] >= MAX_BUFFERS || layer[DST] == layer[SRC])
        return "a layer names an invalid buffer";
    if (layout->width[layer[SRC]] != layer[N_IN])
        return "a layer reads a buffer of another width, or one not written yet";
    if (layer[W_OFFSET] < 0 || layer[B_OFFSET] < 0 || layer[W_OFFSET] > MAX_OFFSET ||
        layer[B_OFFSET] > MAX_OFFSET)
        return "an offset lies outside the parameters";
    return NULL;
}

/* Read the row of an image, if there is one; return NULL, or the reason why it is invalid. */
static const char *image_row(const int64_t *row, Layout *layout) {
    if (row[KIND] != IMAGE) return NULL;
    int64_t bytes = row[N_IN], channels = row[CHANNELS], places = row[WIDTH];
    if (row[SRC] != 0 || row[DST] != 0 || bytes != row[N_OUT] || bytes < 1 || channels < 1 ||
        places < 1 || channels > bytes || places > bytes || bytes > MAX_WIDTH ||
        bytes % (channels * places) || row[SIZE] < 0 || row[SIZE] > 1 || row[STRIDE] < 1 ||
        row[STRIDE] > 255)
        return "the row of an image has sizes that do not fit each other";
    layout->first = 1;
    layout->image = (Image){bytes / (channels * places), channels, places, row[SIZE], row[STRIDE]};
    return NULL;
}

/* Place every buffer; it is as wide as the widest layer that writes to it. */
static void place_buffers(const int64_t *plan, int64_t layers, Layout *layout) {
    int64_t widest[MAX_BUFFERS + 1] = {0};
    widest[0] = row_of(layout->inputs);
    for (int64_t i = layout->first; i < layers; i++) {
        const int64_t *layer = plan + i * PLAN_COLUMNS;
        widest[slot(layer)] = most(widest[slot(layer)], row_of(layer[N_OUT]));
    }
    for (int i = 0; i <= MAX_BUFFERS; i++) {
        layout->start[i] = layout->floats;
        layout->floats += widest[i];
    }
}

/* Take a layer into the layout; return NULL, or the reason why it is invalid. */
static const char *add_to_layout(const int64_t *row, Layout *layout) {
    Shape shape;
    const char *fault = shape_of(row, &shape);
    if (!fault) fault = layer_fault(row, layout);
    if (fault) return fault;
    layout->width[slot(row)] = shape.out;
    layout->outputs += row[DST] < 0 ? shape.out : 0;
    layout->packed += shape_forward_floats(&shape);
    if (shape.kind == SCAN) layout->memory = most(layout->memory, shape.channels + shape.out);
    layout->params = most(layout->params, row[W_OFFSET] + shape_weights(&shape));
    layout->params = most(layout->params, row[B_OFFSET] + shape_biases(&shape));
    return NULL;
}

const char *plan_layout(const int64_t *plan, int64_t layers, Layout *layout) {
    memset(layout, 0, sizeof *layout);
    if (layers < 1) return "the plan has no layer";
    layout->inputs = layout->width[0] = plan[N_IN];
    const char *fault = image_row(plan, layout);
    if (!fault && layers <= layout->first) fault = "the plan has no layer";
    for (int64_t i = layout->first; i < layers && !fault; i++)
        fault = add_to_layout(plan + i * PLAN_COLUMNS, layout);
    if (!fault) place_buffers(plan, layers, layout);
    return fault;
}

void plan_pack(const int64_t *plan, int64_t layers, const float *params, float *packed) {
    for (int64_t i = 0; i < layers; i++, plan += PLAN_COLUMNS) {
        Shape shape;
        if (plan[KIND] == IMAGE) continue;
        shape_of(plan, &shape);
        shape_pack_forward(&shape, params + plan[W_OFFSET], params + plan[B_OFFSET], packed);
        packed += shape_forward_floats(&shape);
    }
}

ALWAYS_INLINE void read_rows_body(const Normaliser *normaliser, const float *obs,
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

DISPATCH(read_rows,
         (const Normaliser *normaliser, const float *obs, const int64_t *index, int64_t inputs,
          int64_t live, int64_t rows, float *x),
         (normaliser, obs, index, inputs, live, rows, x))

/* The rows of a block that no row of the batch uses are read by tiles; denormal numbers there would
 * be slow. */
static void clear_unused(const int64_t *plan, int64_t layers, const Layout *layout,
                         float *scratch) {
    for (int64_t i = layout->first; i < layers; i++) {
        const int64_t *row = plan + i * PLAN_COLUMNS;
        if (row[KIND] != CONVOLUTION)
            memset(scratch + ROWS * layout->start[slot(row)], 0,
                   (size_t)(ROWS * row_of(row[N_OUT])) * sizeof *scratch);
    }
}

/* A step of `live` rows, which leave their h in y, and in the memory of those rows. */
static void remember(const Shape *shape, const Layout *layout, Memory memory, const float *x,
                     int64_t live, float *y) {
    for (int64_t r = 0; r < live; r++, x += row_of(shape->n), y += row_of(shape->out)) {
        int64_t at = r * layout->memory + shape->channels;
        scan_step(shape->out, x, memory.before + at, y);
        if (memory.after) memcpy(memory.after + at, y, (size_t)shape->out * sizeof *y);
    }
}

/* One layer for `live` rows, of the observations `obs` if they are images. */
static void forward_layer(const int64_t *row, const Shape *shape, const Layout *layout,
                          const float *packed, const uint8_t *obs, int64_t live, Memory memory,
                          float *scratch) {
    float *x = scratch + ROWS * layout->start[row[SRC]];
    float *y = scratch + ROWS * layout->start[slot(row)];
    if (shape->kind == DENSE) {
        block_forward(shape, packed, x, live, y);
        return;
    }
    if (shape->kind == SCAN) {
        remember(shape, layout, memory, x, live, y);
        return;
    }
    for (int64_t r = 0; r < live; r++) {
        float *from = x + r * row_of(shape->n);
        if (row[SRC] == 0) image_read(&layout->image, obs + r * layout->inputs, NULL, from);
        row_forward(shape, packed, from, y + r * row_of(shape->out));
    }
}

/* `live` rows of the batch through every layer, in `scratch` [ROWS * layout->floats]. */
static void forward_block(const int64_t *plan, int64_t layers, const Layout *layout,
                          const float *packed, const uint8_t *obs, int64_t live, Memory memory,
                          float *scratch, float *out) {
    for (int64_t i = layout->first, column = 0; i < layers; i++) {
        const int64_t *row = plan + i * PLAN_COLUMNS;
        const float *y = scratch + ROWS * layout->start[slot(row)];
        Shape shape;
        shape_of(row, &shape);
        forward_layer(row, &shape, layout, packed, obs, live, memory, scratch);
        packed += shape_forward_floats(&shape);
        if (row[DST] >= 0) continue;
        for (int64_t r = 0; r < live; r++)
            memcpy(out + r * layout->outputs + column, y + r * row_of(row[N_OUT]),
                   (size_t)row[N_OUT] * sizeof *y);
        column += row[N_OUT];
    }
}

void plan_forward(const int64_t *plan, int64_t layers, const Layout *layout, const float *packed,
                  const Normaliser *normaliser, const void *obs, int64_t n, Memory memory,
                  float *work, float *out) {
    _Alignas(64) float near[ROWS * STACK_FLOATS];
    float *scratch = layout->floats > STACK_FLOATS ? work : near;
    int64_t inputs = layout->inputs;
    if (n <= HIGH || layout->first || layout->memory) clear_unused(plan, layers, layout, scratch);
    for (int64_t row = 0; row < n; row += ROWS) {
        int64_t live = least(ROWS, n - row);
        if (!layout->first)
            read_rows(normaliser, (const float *)obs + row * inputs, NULL, inputs, live, ROWS,
                     scratch);
        Memory rows = {memory.before, memory.after};
        if (rows.before) rows.before += row * layout->memory;
        if (rows.after) rows.after += row * layout->memory;
        forward_block(plan, layers, layout, packed, (const uint8_t *)obs + row * inputs, live, rows,
                      scratch, out + row * layout->outputs);
    }
}
