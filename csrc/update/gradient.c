/* The gradient of a shard: blocks of its rows go forward through the layers, then backward. */
#include "update/update.h"

#include <string.h>

#include "network/dense.h"
#include "network/forward.h"
#include "network/scan.h"
#include "simd/fastmath.h"
#include "update/loss.h"

/* A block of rows: `live` samples, and `rows` with those that fill it up. */
typedef struct {
    const Network *network;
    const Batch *batch;
    const int64_t *index;
    int64_t live, rows;
    float *work;
} Block;

/* The input of a layer from row r on; an image is read for one row at a time. */
static float *input_of(const Block *block, const Layer *layer, int64_t r) {
    const Network *network = block->network;
    if (layer->source < 0) return block->work + network->x;
    return block->work + network->layer[layer->source].y + r * row_of(layer->shape.n);
}

/* Copy a layer's rows [rows out] from `first` on to its columns of the output [out BLOCK]. */
static void copy_to_output(const Block *block, const Layer *layer, int64_t first, int64_t rows) {
    int64_t row = row_of(layer->shape.out);
    const float *y = block->work + layer->y + first * row;
    float *out = block->work + block->network->out + layer->column * BLOCK;
    for (int64_t o = 0; o < layer->shape.out; o++)
        for (int64_t r = 0; r < rows; r++) out[o * BLOCK + r] = y[r * row + o];
}

/* delta = this layer's columns of the output's gradient; 0 from row `live` on. */
static void copy_from_output(const Block *block, const Layer *layer, int64_t first, int64_t rows,
                             int64_t live) {
    int64_t row = row_of(layer->shape.out);
    const float *out = block->work + block->network->out + layer->column * BLOCK;
    float *delta = block->work + layer->delta + first * row;
    memset(delta, 0, (size_t)(rows * row) * sizeof *delta);
    for (int64_t o = 0; o < layer->shape.out; o++)
        for (int64_t r = 0; r < live; r++) delta[r * row + o] = out[o * BLOCK + r];
}

static void read_image_of(const Block *block, int64_t r) {
    const Network *network = block->network;
    const Batch *batch = block->batch;
    const uint8_t *obs = batch->obs;
    int64_t row = block->index[r];
    image_read(&network->image, batch->stacks ? obs : obs + row * network->inputs,
               batch->stacks ? batch->stacks + row * network->image.frames : NULL,
               block->work + network->x);
}

/* The number of layers from `layer` on that take one row at a time; a row goes through all of them
 * while it is in the cache. */
static int64_t stretch(const Network *network, const Layer *layer) {
    const Layer *end = network->layer + network->layers, *next = layer;
    while (next < end && by_rows(&next->shape)) next++;
    return next - layer;
}

static void forward_rows(const Block *block, const Layer *layer, int64_t count) {
    const Layer *last = layer + count - 1;
    int64_t row = row_of(last->shape.out);
    for (int64_t r = 0; r < block->live; r++) {
        if (layer->source < 0) read_image_of(block, r);
        for (const Layer *one = layer; one <= last; one++)
            row_forward(&one->shape, block->work + one->forward, input_of(block, one, r),
                        block->work + one->y + r * row_of(one->shape.out));
    }
    memset(block->work + last->y + block->live * row, 0,
           (size_t)((block->rows - block->live) * row) * sizeof *block->work);
}

/* The memory of a scan before row r of a block: where a sequence begins, that of the sample. A
 * sequence of the caller's that is longer than a block is cut there. */
static const float *before_row(const Block *block, const Layer *layer, int64_t r) {
    const Batch *batch = block->batch;
    int64_t sample = block->index[r];
    if (!r || batch->first[sample])
        return batch->state + sample * block->network->memory + layer->shape.channels;
    return block->work + layer->y + (r - 1) * row_of(layer->shape.out);
}

static void scan_rows(const Block *block, const Layer *layer) {
    int64_t row = row_of(layer->shape.out);
    float *y = block->work + layer->y;
    for (int64_t r = 0; r < block->live; r++)
        scan_step(layer->shape.out, input_of(block, layer, r), before_row(block, layer, r),
                  y + r * row);
    memset(y + block->live * row, 0, (size_t)((block->rows - block->live) * row) * sizeof *y);
}

static void forward_pass(const Block *block) {
    const Network *network = block->network;
    const Layer *layer = network->layer, *end = layer + network->layers;
    while (layer < end) {
        int64_t count = stretch(network, layer);
        if (count) {
            forward_rows(block, layer, count);
            layer += count;
            continue;
        }
        if (layer->shape.kind == SCAN)
            scan_rows(block, layer);
        else
            block_forward(&layer->shape, block->work + layer->forward, input_of(block, layer, 0),
                          block->rows, block->work + layer->y);
        layer++;
    }
}

/* Row r of the gradient of a layer's output. */
static float *delta_of(const Block *block, const Layer *layer, int64_t r) {
    return block->work + layer->delta + r * layer->delta_row;
}

static void backward_row(const Block *block, const Layer *layer, int64_t r, int64_t adds,
                         float *grad) {
    float *work = block->work, *delta = delta_of(block, layer, r);
    row_gradient(&layer->shape, input_of(block, layer, r),
                 work + layer->y + r * row_of(layer->shape.out), delta, adds || r,
                 work + layer->panels, grad + layer->bias);
    if (layer->source >= 0)
        row_data(&layer->shape, work + layer->backward, delta,
                 delta_of(block, block->network->layer + layer->source, r));
}

/* The layers from `layer` back to the one behind a dense layer, or to the first. */
static const Layer *backward_rows(const Block *block, const Layer *last, int64_t adds,
                                  float *grad) {
    const Layer *first = last;
    while (first > block->network->layer && by_rows(&first[-1].shape)) first--;
    for (int64_t r = 0; r < block->live; r++) {
        if (first->source < 0) read_image_of(block, r);
        for (const Layer *layer = last; layer >= first; layer--)
            backward_row(block, layer, r, adds, grad);
    }
    return first;
}

/* The gradient of a scan's input: back through time, to the beginning of each sequence. */
static void scan_back_rows(const Block *block, const Layer *layer) {
    const Layer *source = block->network->layer + layer->source;
    int64_t size = layer->shape.out, row = row_of(layer->shape.n);
    float *carry = block->work + layer->carry, *delta = block->work + source->delta;
    memset(carry, 0, (size_t)size * sizeof *carry);
    memset(delta + block->live * row, 0,
           (size_t)((block->rows - block->live) * row) * sizeof *delta);
    for (int64_t r = block->live - 1; r >= 0; r--) {
        scan_back(size, input_of(block, layer, r), before_row(block, layer, r),
                  delta_of(block, layer, r), carry, delta + r * row);
        if (block->batch->first[block->index[r]]) memset(carry, 0, (size_t)size * sizeof *carry);
    }
}

static void backward_pass(const Block *block, int64_t adds, float *grad) {
    const Network *network = block->network;
    float *work = block->work;
    for (const Layer *layer = network->layer + network->layers; layer-- > network->layer;) {
        if (by_rows(&layer->shape)) {
            layer = backward_rows(block, layer, adds, grad);
            continue;
        }
        if (layer->shape.kind == SCAN) {
            scan_back_rows(block, layer);
            continue;
        }
        float *delta = work + layer->delta;
        block_gradient(&layer->shape, input_of(block, layer, 0), work + layer->y, delta,
                       block->live, block->rows, adds, grad + layer->weight, grad + layer->bias);
        if (layer->source >= 0)
            block_data(&layer->shape, work + layer->backward, delta, block->rows, layer->adds,
                       work + network->layer[layer->source].delta);
    }
}

int64_t update_shards(const Network *network, int64_t rows) {
    int large = network->params > MANY_PARAMS && rows >= 4 * SHARD_ROWS;
    int64_t smallest = large ? 2 * SHARD_ROWS : SHARD_ROWS;
    return most(1, least(MAX_SHARDS, rows / smallest));
}

/* The first row of a shard: a multiple of TALL, so that only the last block has idle rows, or with
 * memory the next beginning of a sequence. */
static int64_t shard_start(const Network *network, const Batch *batch, const Minibatch *part,
                           int64_t shard) {
    int64_t rows = part->rows, shards = update_shards(network, rows);
    int64_t start = shard == shards ? rows : rows * shard / shards / TALL * TALL;
    if (network->memory)
        while (start < rows && !batch->first[part->index[start]]) start++;
    return start;
}

/* The number of the next rows, of `left`, that fit into a block; with memory whole sequences, where
 * one fits. */
static int64_t block_rows(const Network *network, const Batch *batch, const int64_t *index,
                          int64_t left) {
    int64_t rows = least(network->most_rows, left), whole = rows;
    if (!network->memory || rows == left) return rows;
    while (whole > 0 && !batch->first[index[whole]]) whole--;
    return whole ? whole : rows;
}

/* The loss of all rows of a block, and its gradient in the deltas of the layers that end it. */
static void block_loss(const Block *block, const Minibatch *part, const Coefs *coefs,
                       const float *log_std, float *log_std_grad, double *sums) {
    const Network *network = block->network;
    const Layer *end = network->layer + network->layers;
    for (int64_t first = 0; first < block->rows; first += BLOCK) {
        int64_t rows = least(BLOCK, block->rows - first), live = least(rows, block->live - first);
        for (const Layer *layer = network->layer; layer < end; layer++)
            if (layer->column >= 0) copy_to_output(block, layer, first, rows);
        update_loss(block->batch, part, coefs, block->index + first, live, network->outputs,
                    log_std, block->work + network->out, block->work + network->scratch,
                    log_std_grad, sums);
        for (const Layer *layer = network->layer; layer < end; layer++)
            if (layer->column >= 0) copy_from_output(block, layer, first, rows, live);
    }
}

void update_shard(const Network *network, const Batch *batch, const Minibatch *part,
                  const Coefs *coefs, int64_t shard, const float *params, float *work,
                  float *grad, double *sums) {
    int64_t first = shard_start(network, batch, part, shard);
    int64_t end = shard_start(network, batch, part, shard + 1);
    memset(sums, 0, SUMS * sizeof *sums);
    if (first == end) { /* between the beginnings of two sequences */
        memset(grad, 0, (size_t)network->params * sizeof *grad);
        return;
    }
    const float *log_std = params + most(network->log_std, 0);
    float *own = network->own < 0 ? grad : work + network->own;
    float *log_std_grad = network->log_std < 0 ? NULL : own + network->log_std;
    if (log_std_grad) memset(log_std_grad, 0, (size_t)(network->outputs - 1) * sizeof *grad);
    for (int64_t adds = 0, rows; first < end; first += rows, adds = 1) {
        rows = block_rows(network, batch, part->index + first, end - first);
        Block block = {network, batch, part->index + first, rows, 0, work};
        block.rows = (block.live + TALL - 1) / TALL * TALL;
        if (!network->image.places)
            read_rows(&batch->normaliser, batch->obs, block.index, network->inputs, block.live,
                     block.rows, work + network->x);
        forward_pass(&block);
        block_loss(&block, part, coefs, log_std, log_std_grad, sums);
        backward_pass(&block, adds, own);
    }
    for (const Layer *layer = network->layer; layer < network->layer + network->layers; layer++)
        row_unpack(&layer->shape, work + layer->panels, own + layer->weight);
    if (own != grad) memcpy(grad, own, (size_t)network->params * sizeof *grad);
}
