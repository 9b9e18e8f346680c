/* Sampling for the categorical and the Gaussian head: each row alone, components in index order. */
#include "network/heads.h"

#include "simd/fastmath.h"
#include "network/likelihood.h"

enum { CHUNK = 64 }; /* rows sampled together, so that loops over exp and log are long */

ALWAYS_INLINE float largest(const float *x, int64_t n) {
    float top = x[0];
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

ALWAYS_INLINE float total(const float *x, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* The first index whose cumulative weight exceeds `target`; if rounding leaves none, the last index
 * with a weight above 0. */
ALWAYS_INLINE int64_t invert(const float *weight, int64_t k, float target) {
    float below = 0.0f;
    int64_t last = k - 1;
    for (int64_t i = 0; i < k; i++) {
        below += weight[i];
        if (below > target) return i;
        last = weight[i] > 0.0f ? i : last;
    }
    return last;
}

ALWAYS_INLINE void sample_chunk(const float *logits, int64_t stride, const float *u, int64_t n,
                                int64_t k, int64_t *act, float *logp) {
    float weight[MAX_CHOICES], top[CHUNK], sum[CHUNK], chosen[CHUNK];
    for (int64_t r = 0; r < n; r++) {
        top[r] = largest(logits + r * stride, k);
        for (int64_t i = 0; i < k; i++) weight[r * k + i] = logits[r * stride + i] - top[r];
    }
    for (int64_t i = 0; i < n * k; i++) weight[i] = fast_exp(weight[i]);
    for (int64_t r = 0; r < n; r++) {
        sum[r] = total(weight + r * k, k);
        act[r] = invert(weight + r * k, k, u[r] * sum[r]);
        chosen[r] = logits[r * stride + act[r]];
    }
    for (int64_t r = 0; r < n; r++) logp[r] = choice_logp(chosen[r], top[r], fast_log(sum[r]));
}

ALWAYS_INLINE void sample_categorical_body(const float *logits, int64_t stride, const float *u,
                                           int64_t n, int64_t k, int64_t *act, float *logp) {
    int64_t rows = least(CHUNK, MAX_CHOICES / k);
    for (int64_t r = 0; r < n; r += rows)
        sample_chunk(logits + r * stride, stride, u + r, least(rows, n - r), k, act + r, logp + r);
}

DISPATCH(sample_categorical,
         (const float *logits, int64_t stride, const float *u, int64_t n, int64_t k, int64_t *act,
          float *logp),
         (logits, stride, u, n, k, act, logp))

ALWAYS_INLINE void sample_gaussian_body(const float *mean, int64_t stride, const float *log_std,
                                        const float *z, int64_t n, int64_t k, float *act,
                                        float *logp) {
    for (int64_t r = 0; r < n; r++) logp[r] = 0.0f;
    for (int64_t i = 0; i < k; i++) {
        Normal normal = normal_of(log_std[i]);
        float std = fast_exp(log_std[i]);
        for (int64_t r = 0; r < n; r++) {
            float centre = mean[r * stride + i], drawn = fma32(std, z[r * k + i], centre);
            act[r * k + i] = drawn;
            /* Computed from the recorded action, because the loss does not have the noise. */
            logp[r] += log_density(normal, deviation(normal, drawn, centre));
        }
    }
}

DISPATCH(sample_gaussian,
         (const float *mean, int64_t stride, const float *log_std, const float *z, int64_t n,
          int64_t k, float *act, float *logp),
         (mean, stride, log_std, z, n, k, act, logp))
