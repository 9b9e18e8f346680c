/* The log-probability of an action, for both heads.
 *
 * Sampling (heads.c) and the loss (update/loss.c) share this arithmetic, so the ratio of their
 * probabilities is exactly 1 while the parameters are the same.
 */
#ifndef FASTPPO_LIKELIHOOD_H
#define FASTPPO_LIKELIHOOD_H

#include "simd/fastmath.h"

#define HALF_LOG_TWO_PI 0.918938533f

/* The log-probability of a choice: `top` is the largest logit, log_sum = log(sum(exp(logit - top)))
 * over all choices. */
ALWAYS_INLINE float choice_logp(float logit, float top, float log_sum) {
    return logit - top - log_sum;
}

/* One component of a normal distribution: the part that depends on no sample. */
typedef struct {
    float precision, peak; /* 1 / std, log density at the mean */
} Normal;

ALWAYS_INLINE Normal normal_of(float log_std) {
    return (Normal){fast_exp(-log_std), -log_std - HALF_LOG_TWO_PI};
}

/* The distance of the recorded action from the mean, in standard deviations. */
ALWAYS_INLINE float deviation(Normal normal, float act, float mean) {
    return (act - mean) * normal.precision;
}

ALWAYS_INLINE float log_density(Normal normal, float z) {
    return fma32(-0.5f * z, z, normal.peak);
}

#endif
