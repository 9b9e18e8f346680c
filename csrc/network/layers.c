/* Selects the products of a layer's kind. */
#include "network/layers.h"

#include <stddef.h>
#include <string.h>

#include "network/dense.h"
#include "simd/fastmath.h"

const char *shape_of(const int64_t *row, Shape *shape) {
    const char *fault = NULL;
    *shape = (Shape){.kind = row[KIND], .n = row[N_IN], .out = row[N_OUT],
                     .activation = row[ACTIVATION], .channels = row[CHANNELS]};
    if (shape->n < 1 || shape->n > MAX_WIDTH || shape->out < 1 || shape->out > MAX_WIDTH)
        return "a layer is empty, or wider than 1048576";
    if (shape->activation < NONE || shape->activation >= ACTIVATIONS)
        return "an activation is not one of 0 none, 1 tanh, 2 relu, 3 elu";
    if (shape->kind == CONVOLUTION)
        shape->conv = conv_of(shape->n, shape->out, row[CHANNELS], row[WIDTH], row[SIZE],
                              row[STRIDE], &fault);
    else if (shape->kind == FLATTEN && (shape->n != shape->out || shape->channels < 1 ||
                                        shape->n % shape->channels))
        fault = "a layer that flattens has another size, or channels that do not divide it";
    else if (shape->kind == SCAN && (shape->n != 2 * shape->out || shape->channels < 0 ||
                                     shape->channels > MAX_WIDTH || row[WIDTH] > MAX_WIDTH))
        fault = "a scan has another size than half of its input, or no place in the memory";
    else if (shape->kind != DENSE && shape->kind != FLATTEN && shape->kind != SCAN)
        fault = "a layer is not one of 0 dense, 1 a convolution, 2 flatten, 4 a scan";
    return fault;
}

int64_t by_rows(const Shape *shape) { return shape->kind != DENSE && shape->kind != SCAN; }

int64_t shape_weights(const Shape *shape) {
    if (shape->kind == CONVOLUTION) return conv_packed(&shape->conv) - shape->conv.outputs;
    return shape->kind == DENSE ? shape->n * shape->out : 0;
}

int64_t shape_biases(const Shape *shape) {
    if (shape->kind == CONVOLUTION) return shape->conv.outputs;
    return shape->kind == DENSE ? shape->out : 0;
}

int64_t shape_forward_floats(const Shape *shape) {
    if (shape->kind == CONVOLUTION) return conv_packed(&shape->conv);
    return shape->kind == DENSE ? packed_floats(shape->n, shape->out) : 0;
}

int64_t shape_backward_floats(const Shape *shape) {
    if (shape->kind == CONVOLUTION) return conv_packed(&shape->conv);
    return shape->kind == DENSE ? packed_floats(shape->out, shape->n) : 0;
}

int64_t shape_panel_floats(const Shape *shape) {
    return shape->kind == CONVOLUTION ? conv_panels(&shape->conv) : 0;
}

void shape_pack_forward(const Shape *shape, const float *weight, const float *bias,
                        float *packed) {
    if (shape->kind == CONVOLUTION)
        conv_pack_forward(&shape->conv, weight, bias, packed);
    else if (shape->kind == DENSE)
        pack_forward(weight, bias, shape->n, shape->out, packed);
}

void shape_pack_backward(const Shape *shape, const float *weight, float *packed) {
    if (shape->kind == CONVOLUTION)
        conv_pack_backward(&shape->conv, weight, packed);
    else if (shape->kind == DENSE)
        pack_backward(weight, shape->n, shape->out, packed);
}

void block_forward(const Shape *shape, const float *packed, const float *x, int64_t rows,
                   float *y) {
    dense(packed, x, shape->n, rows, 0, y, shape->out);
    dense_activate(y, rows * row_of(shape->out), shape->activation);
}

void row_forward(const Shape *shape, const float *packed, const float *x, float *y) {
    if (shape->kind == CONVOLUTION)
        conv_forward(&shape->conv, packed, x, y);
    else
        image_transpose(x, shape->n / shape->channels, shape->channels, y);
    dense_activate(y, shape->out, shape->activation);
}

void block_gradient(const Shape *shape, const float *x, const float *y, float *delta, int64_t live,
                    int64_t rows, int64_t adds, float *weight, float *bias) {
    dense_slope(y, delta, rows * row_of(shape->out), shape->activation);
    dense_gradient(x, shape->n, delta, shape->out, live, adds, weight, bias);
}

void row_gradient(const Shape *shape, const float *x, const float *y, float *delta, int64_t adds,
                  float *panels, float *bias) {
    dense_slope(y, delta, shape->out, shape->activation);
    if (shape->kind == CONVOLUTION) conv_gradient(&shape->conv, x, delta, adds, panels, bias);
}

void row_unpack(const Shape *shape, const float *panels, float *weight) {
    if (shape->kind == CONVOLUTION) conv_unpack(&shape->conv, panels, weight);
}

void block_data(const Shape *shape, const float *packed, const float *delta, int64_t rows,
                int64_t adds, float *dx) {
    dense(packed, delta, shape->out, rows, adds, dx, shape->n);
}

void row_data(const Shape *shape, const float *packed, const float *delta, float *dx) {
    if (shape->kind == CONVOLUTION)
        conv_data(&shape->conv, packed, delta, dx);
    else
        image_transpose(delta, shape->channels, shape->n / shape->channels, dx);
}

const char *row_data_fault(const Shape *shape) {
    return shape->kind == CONVOLUTION ? conv_data_fault(&shape->conv) : NULL;
}
