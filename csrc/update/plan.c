/* Makes the layers of an update from a plan: their inputs, and their places in the workspace. */
#include <stddef.h>
#include <string.h>

#include "network/dense.h"
#include "simd/fastmath.h"
#include "network/forward.h"
#include "update/update.h"
#include "update/loss.h"

/* The layer that writes `buffer` before layer `i`; -1: none, so it is the observation. */
static int64_t writer(const int64_t *plan, int64_t i, int64_t buffer) {
    for (i--; i >= 0 && buffer; i--)
        if (plan[i * PLAN_COLUMNS + DST] == buffer) return i;
    return -1;
}

/* A range of the parameters. */
typedef struct {
    int64_t start, size;
} Span;

/* The reason if a parameter does not belong to exactly one layer or log_std: each gradient is
 * written once, and a parameter without a gradient would be updated by stale moments. */
static const char *cover_fault(const Network *network) {
    Span span[2 * MAX_LAYERS + 1] = {{network->log_std, 0}};
    int64_t spans = 1, total = 0;
    if (network->log_std >= 0) span[0].size = network->outputs - 1;
    for (const Layer *layer = network->layer; layer < network->layer + network->layers; layer++) {
        span[spans++] = (Span){layer->weight, shape_weights(&layer->shape)};
        span[spans++] = (Span){layer->bias, shape_biases(&layer->shape)};
    }
    for (int64_t i = 0; i < spans; i++) {
        total += span[i].size;
        for (int64_t j = 0; j < i; j++)
            if (span[i].start < span[j].start + span[j].size &&
                span[j].start < span[i].start + span[i].size)
                return "two layers share parameters";
    }
    return total == network->params ? NULL : "it leaves parameters out";
}

/* The reason why the update cannot use a plan that acting could, or NULL. */
static const char *network_fault(const Network *network) {
    if (network->outputs < 2) return "the output has no action parameters beside the value";
    for (int64_t i = 0; i < network->layers; i++) {
        int64_t readers = network->layer[i].column >= 0;
        for (int64_t j = i + 1; j < network->layers; j++)
            readers += network->layer[j].source == i;
        if (!readers) return "a layer's output is read by none, or overwritten";
        const Layer *layer = network->layer + i;
        if (by_rows(&layer->shape) && readers > 1)
            return "two layers read a layer that is not dense";
        if (layer->shape.kind == SCAN &&
            (layer->source < 0 || network->layer[layer->source].shape.kind != DENSE || layer->adds))
            return "a scan does not read a dense layer alone";
        if (layer->shape.kind == DENSE && layer->source < 0 && network->image.places)
            return "a dense layer reads the image";
        const char *fault = layer->source < 0 ? NULL : row_data_fault(&layer->shape);
        if (fault) return fault;
    }
    return cover_fault(network);
}

/* Reserve `floats` of the workspace; returns their place. */
static int64_t reserve(Network *network, int64_t floats) {
    int64_t start = network->floats;
    network->floats += (floats + WIDE - 1) / WIDE * WIDE;
    return start;
}

/* True if a layer's only reader takes one row at a time. */
static int64_t read_by_rows(const Network *network, int64_t i) {
    for (int64_t j = i + 1; j < network->layers; j++)
        if (network->layer[j].source == i) return by_rows(&network->layer[j].shape);
    return 0;
}

static void place_arrays(Network *network) {
    int64_t rows = network->most_rows;
    network->x = reserve(network, (network->image.places ? 1 : rows) * row_of(network->inputs));
    network->out = reserve(network, BLOCK * network->outputs);
    network->scratch = reserve(network, HEAD_FLOATS(network->outputs));
    network->own = network->params > MANY_PARAMS ? reserve(network, network->params) : -1;
    for (int64_t i = 0; i < network->layers; i++) {
        Layer *layer = network->layer + i;
        layer->y = reserve(network, rows * row_of(layer->shape.out));
        layer->delta_row = read_by_rows(network, i) ? 0 : row_of(layer->shape.out);
        layer->delta = reserve(network, most(rows * layer->delta_row, row_of(layer->shape.out)));
        layer->carry = reserve(network, layer->shape.kind == SCAN ? layer->shape.out : 0);
        layer->forward = reserve(network, shape_forward_floats(&layer->shape));
        layer->backward = reserve(network, shape_backward_floats(&layer->shape));
        layer->panels = reserve(network, shape_panel_floats(&layer->shape));
    }
}

static void add_layer(const int64_t *plan, int64_t i, Network *network) {
    const int64_t *row = plan + i * PLAN_COLUMNS;
    int64_t source = writer(plan, i, row[SRC]), hidden = row[DST] >= 0;
    network->layer[i] = (Layer){.weight = row[W_OFFSET], .bias = row[B_OFFSET], .source = source,
                                .column = hidden ? -1 : network->outputs};
    shape_of(row, &network->layer[i].shape);
    if (row[KIND] == SCAN)
        network->most_rows = most(network->most_rows, (row[WIDTH] + TALL - 1) / TALL * TALL);
    for (int64_t j = 0; j < i; j++) network->layer[j].adds |= network->layer[j].source == source;
    network->outputs += hidden ? 0 : row[N_OUT];
}

const char *update_network(const int64_t *plan, int64_t layers, int64_t log_std,
                           Network *network) {
    Layout layout;
    const char *fault = plan_layout(plan, layers, &layout);
    if (fault) return fault;
    if (layers > MAX_LAYERS) return "it has more than 64 layers";
    if (log_std < -1 || log_std > layout.params) return "log_std lies outside the parameters";
    memset(network, 0, sizeof *network);
    network->layers = layers - layout.first, network->log_std = log_std;
    network->inputs = layout.inputs, network->params = layout.params;
    network->image = layout.image, network->memory = layout.memory, network->most_rows = BLOCK;
    for (int64_t i = 0; i < network->layers; i++)
        add_layer(plan + layout.first * PLAN_COLUMNS, i, network);
    if (log_std >= 0) network->params = most(network->params, log_std + network->outputs - 1);
    place_arrays(network);
    return network_fault(network);
}

void update_pack(const Network *network, const float *params, float *work) {
    for (int64_t i = 0; i < network->layers; i++) {
        const Layer *layer = network->layer + i;
        const float *weight = params + layer->weight;
        shape_pack_forward(&layer->shape, weight, params + layer->bias, work + layer->forward);
        if (layer->source >= 0)
            shape_pack_backward(&layer->shape, weight, work + layer->backward);
    }
}
