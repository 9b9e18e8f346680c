/* One layer of a network, forward and backward, of any kind. */
#ifndef FASTPPO_LAYERS_H
#define FASTPPO_LAYERS_H

#include <stdint.h>

#include "network/conv.h"
#include "network/image.h"

/* A row of a plan, see forward.h; the widest layer. */
enum { PLAN_COLUMNS = 12, MAX_WIDTH = 1 << 20 };
enum { SRC, DST, N_IN, N_OUT, W_OFFSET, B_OFFSET, ACTIVATION, KIND, CHANNELS, WIDTH, SIZE, STRIDE };
enum { NONE, TANH, RELU, ELU, ACTIVATIONS };

/* The kinds of a row: a dense layer; a convolution; from [places channels] to columns as torch
 * flattens them, [channels places]; the stored image in buffer 0, which is no layer; and a scan
 * (scan.h) of the 2 n_out numbers that a dense layer computes. */
enum { DENSE, CONVOLUTION, FLATTEN, IMAGE, SCAN };

/* A layer from n to `out` floats a row. */
typedef struct {
    int64_t kind, n, out, activation;
    int64_t channels; /* of what is flattened; a scan's first place in the memory of a row */
    Conv conv;
} Shape;

/* Fill `shape` from a row of a plan; return NULL, or the reason why it is invalid. */
const char *shape_of(const int64_t *row, Shape *shape);

/* The numbers of weights and of biases in the parameters. */
int64_t shape_weights(const Shape *shape);
int64_t shape_biases(const Shape *shape);

/* The numbers of floats: of the packed weights, forward and backward, and of `panels`. */
int64_t shape_forward_floats(const Shape *shape);
int64_t shape_backward_floats(const Shape *shape);
int64_t shape_panel_floats(const Shape *shape);

/* Pack the weights for the forward pass, and for the gradient of the input. */
void shape_pack_forward(const Shape *shape, const float *weight, const float *bias, float *packed);
void shape_pack_backward(const Shape *shape, const float *weight, float *packed);

/* True for the kinds of which each row is computed alone. */
int64_t by_rows(const Shape *shape);

/* A dense layer computes a block of rows (dense.h): `live` ones, and `rows` or up to the next
 * multiple of TALL with those that are not used. Kinds `by_rows` compute one row. */

/* y = activation(layer(x)). */
void block_forward(const Shape *shape, const float *packed, const float *x, int64_t rows, float *y);
void row_forward(const Shape *shape, const float *packed, const float *x, float *y);

/* delta *= the derivative of the activation at y, then the gradient of weights and biases, added to
 * what is there where `adds`. That of a convolution's weights is in `panels` until row_unpack. */
void block_gradient(const Shape *shape, const float *x, const float *y, float *delta, int64_t live,
                    int64_t rows, int64_t adds, float *weight, float *bias);
void row_gradient(const Shape *shape, const float *x, const float *y, float *delta, int64_t adds,
                  float *panels, float *bias);
void row_unpack(const Shape *shape, const float *panels, float *weight);

/* dx = the gradient of x, added to dx where `adds`. */
void block_data(const Shape *shape, const float *packed, const float *delta, int64_t rows,
                int64_t adds, float *dx);
void row_data(const Shape *shape, const float *packed, const float *delta, float *dx);

/* The reason why row_data cannot be computed for a layer, or NULL. */
const char *row_data_fault(const Shape *shape);

#endif
