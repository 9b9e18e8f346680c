/* The gradient of a shard: blocks of its rows go forward through the layers, then backward. */
#include "update/update.h"

#include <string.h>

#include "mlp/dense.h"
#include "simd/fastmath.h"
#include "mlp/mlp.h"
#include "update/loss.h"

/* The input of a layer. */
static float *input_of(const Network *network, const Layer *layer, float *work) {
    return work + (layer->source < 0 ? network->x : network->layer[layer->source].y);
}

/* Copy a layer's rows [rows out] to its columns of the output [out BLOCK]. */
static void copy_to_output(const Network *network, const Layer *layer, int64_t rows, float *work) {
    const float *y = work + layer->y;
    float *out = work + network->out + layer->column * BLOCK;
    int64_t row = row_of(layer->out);
    for (int64_t o = 0; o < layer->out; o++)
        for (int64_t r = 0; r < rows; r++) out[o * BLOCK + r] = y[r * row + o];
}

static void forward_pass(const Network *network, int64_t rows, float *work) {
    for (int64_t i = 0; i < network->layers; i++) {
        const Layer *layer = network->layer + i;
        float *y = work + layer->y;
        mlp_layer(work + layer->forward, input_of(network, layer, work), layer->n, rows,
                  layer->activation, y, layer->out);
        if (layer->column >= 0) copy_to_output(network, layer, rows, work);
    }
}

/* delta = this layer's columns of the output's gradient; 0 from row `live` on. */
static void copy_from_output(const Network *network, const Layer *layer, int64_t live, int64_t rows,
                             float *work) {
    const float *out = work + network->out + layer->column * BLOCK;
    float *delta = work + layer->delta;
    int64_t row = row_of(layer->out);
    memset(delta, 0, (size_t)(rows * row) * sizeof *delta);
    for (int64_t o = 0; o < layer->out; o++)
        for (int64_t r = 0; r < live; r++) delta[r * row + o] = out[o * BLOCK + r];
}

static void backward_pass(const Network *network, int64_t live, int64_t rows, int64_t adds,
                          float *work, float *grad) {
    for (int64_t i = network->layers - 1; i >= 0; i--) {
        const Layer *layer = network->layer + i;
        float *delta = work + layer->delta;
        if (layer->column >= 0) copy_from_output(network, layer, live, rows, work);
        dense_slope(work + layer->y, delta, rows * row_of(layer->out), layer->activation);
        dense_gradient(input_of(network, layer, work), layer->n, delta, layer->out, live, adds,
                       grad + layer->weight, grad + layer->bias);
        if (layer->source >= 0)
            dense(work + layer->backward, delta, layer->out, rows, layer->adds,
                  work + network->layer[layer->source].delta, layer->n);
    }
}

int64_t update_shards(int64_t rows) { return most(1, least(MAX_SHARDS, rows / SHARD_ROWS)); }

/* The first row of a shard: a multiple of TALL, so that only the last block has idle rows. */
static int64_t shard_start(int64_t rows, int64_t shard) {
    int64_t shards = update_shards(rows);
    return shard == shards ? rows : rows * shard / shards / TALL * TALL;
}

void update_shard(const Network *network, const Batch *batch, const Minibatch *part,
                  const Coefs *coefs, int64_t shard, const float *params, float *work,
                  float *grad, double *sums) {
    int64_t first = shard_start(part->rows, shard), end = shard_start(part->rows, shard + 1);
    const float *log_std = params + most(network->log_std, 0);
    float *log_std_grad = network->log_std < 0 ? NULL : grad + network->log_std;
    memset(sums, 0, SUMS * sizeof *sums);
    if (log_std_grad) memset(log_std_grad, 0, (size_t)(network->outputs - 1) * sizeof *grad);
    for (int64_t adds = 0; first < end; first += BLOCK, adds = 1) {
        const int64_t *index = part->index + first;
        int64_t live = least(BLOCK, end - first), rows = (live + TALL - 1) / TALL * TALL;
        mlp_read(&batch->normaliser, batch->obs, index, network->inputs, live, rows,
                 work + network->x);
        forward_pass(network, rows, work);
        update_loss(batch, part, coefs, index, live, network->outputs, log_std,
                    work + network->out, work + network->scratch, log_std_grad, sums);
        backward_pass(network, live, rows, adds, work, grad);
    }
}
