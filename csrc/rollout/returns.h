/* Computations over a whole rollout: advantages, discounted returns, moments, finiteness.
 *
 * Time-major arrays [t e]; lanes hold environments or columns, sums run in index order.
 */
#ifndef FASTPPO_RETURNS_H
#define FASTPPO_RETURNS_H

#include <stdint.h>

/* adv[t] = delta[t] + gamma lam adv[the next valid t], the second term 0 where term | trunc; NaN
 * where not valid. */
void gae(const float *rew, const float *val, const float *nxt, const uint8_t *term,
         const uint8_t *trunc, const uint8_t *valid, int64_t steps, int64_t envs, double gamma,
         double lam, float *adv);

/* g = gamma g + rew where valid, out[t] = g, g = 0 where ended; carry [e] is g before and after. */
void discounted_f32(const float *rew, const uint8_t *ended, const uint8_t *valid, int64_t steps,
                    int64_t envs, double gamma, double *carry, double *out);
void discounted_f64(const double *rew, const uint8_t *ended, const uint8_t *valid, int64_t steps,
                    int64_t envs, double gamma, double *carry, double *out);

/* Merge the rows of x [rows columns] into count [1], mean and m2 [columns]. */
void merge_moments_f32(const float *x, int64_t rows, int64_t columns, double *count, double *mean,
                       double *m2);
void merge_moments_f64(const double *x, int64_t rows, int64_t columns, double *count, double *mean,
                       double *m2);

/* The index of the first NaN or infinity of x [n], or -1. */
int64_t first_nonfinite(const float *x, int64_t n);

#endif
