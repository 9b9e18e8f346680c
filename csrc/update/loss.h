/* The loss of a block of rows and its gradient with respect to the network's outputs. */
#ifndef FASTPPO_UPDATE_LOSS_H
#define FASTPPO_UPDATE_LOSS_H

#include "update/update.h"

enum { BLOCK = 64 }; /* rows that go through the network together; 32 are 2 % slower */

/* The number of floats of scratch for a head with `outputs` columns. */
#define HEAD_FLOATS(outputs) (BLOCK * (outputs))

/* Replaces out [outputs BLOCK], action parameters and value, by the gradient of the minibatch's
 * loss with respect to them. Adds to `sums`, and to the gradient of log_std [outputs - 1] (NULL: a
 * categorical head). */
void update_loss(const Batch *batch, const Minibatch *part, const Coefs *coefs,
                 const int64_t *index, int64_t live, int64_t outputs, const float *log_std,
                 float *out, float *scratch, float *log_std_grad, double *sums);

#endif
