/* The log density of a normal: one arithmetic for who samples an action and who learns from it.
 *
 * So the ratio of both is exactly 1 while the parameters are the same.
 */
#ifndef FASTPPO_LIKELIHOOD_H
#define FASTPPO_LIKELIHOOD_H

#include "simd/fastmath.h"

#define HALF_LOG_TWO_PI 0.918938533f

/* One component of a normal with log std `log_std`: what depends on no sample. */
typedef struct {
    float precision, peak; /* 1 / std, log density at the mean */
} Normal;

ALWAYS_INLINE Normal normal_of(float log_std) {
    return (Normal){fast_exp(-log_std), -log_std - HALF_LOG_TWO_PI};
}

/* How many stds `act`, as it is stored, lies from the mean. */
ALWAYS_INLINE float deviation(Normal normal, float act, float mean) {
    return (act - mean) * normal.precision;
}

ALWAYS_INLINE float log_density(Normal normal, float z) {
    return fma32(-0.5f * z, z, normal.peak);
}

#endif
