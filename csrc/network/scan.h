/* A minGRU without its product: h = h + sigmoid(z) (n - h) from rows of (n, z).
 *
 * Gates depend on the input alone, so that a dense layer computes all rows before this one runs
 * along them. Source: Feng et al. 2024, arXiv:2410.01201, section 3.1; the definition is
 * networks/recurrent.py.
 */
#ifndef FASTPPO_SCAN_H
#define FASTPPO_SCAN_H

#include <stdint.h>

/* h [size] after a step with x [2 size], from `before` [size]. */
void scan_step(int64_t size, const float *x, const float *before, float *h);

/* dx [2 size] from dh, the gradient of h; carry [size], the gradient that the next step has left,
 * is added to it, and becomes that of `before`. */
void scan_back(int64_t size, const float *x, const float *before, const float *dh, float *carry,
               float *dx);

#endif
