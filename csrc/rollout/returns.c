/* Advantages, discounted returns, moments, and the first number that is not finite. */
#include "rollout/returns.h"

#include <math.h>
#include <string.h>

#include "simd/fastmath.h"

enum { BLOCK = 32 }; /* environments, columns or floats handled together, on the stack */

/* One step of a block. In double, because at gamma = lam = 1 the trace is a sum over the whole
 * rollout. Masks select instead of multiplying, because numbers may be NaN where they do. */
ALWAYS_INLINE void gae_row(const float *rew, const float *val, const float *nxt,
                           const uint8_t *term, const uint8_t *trunc, const uint8_t *valid,
                           int64_t n, double gamma, double decay, double *trace, float *adv) {
    for (int64_t e = 0; e < n; e++) {
        double bootstrap = term[e] ? 0.0 : (double)nxt[e];
        double rest = term[e] | trunc[e] ? 0.0 : trace[e];
        double sum = (double)rew[e] + gamma * bootstrap - (double)val[e] + decay * rest;
        trace[e] = valid[e] ? sum : trace[e];
        adv[e] = valid[e] ? (float)sum : NAN;
    }
}

ALWAYS_INLINE void gae_body(const float *rew, const float *val, const float *nxt,
                            const uint8_t *term, const uint8_t *trunc, const uint8_t *valid,
                            int64_t steps, int64_t envs, double gamma, double lam, float *adv) {
    for (int64_t first = 0; first < envs; first += BLOCK) {
        double trace[BLOCK] = {0};
        int64_t n = least(BLOCK, envs - first);
        for (int64_t at = (steps - 1) * envs + first; at >= 0; at -= envs)
            gae_row(rew + at, val + at, nxt + at, term + at, trunc + at, valid + at, n, gamma,
                    gamma * lam, trace, adv + at);
    }
}

DISPATCH(gae,
         (const float *rew, const float *val, const float *nxt, const uint8_t *term,
          const uint8_t *trunc, const uint8_t *valid, int64_t steps, int64_t envs, double gamma,
          double lam, float *adv),
         (rew, val, nxt, term, trunc, valid, steps, envs, gamma, lam, adv))

#define DEFINE_DISCOUNTED(name, type)                                                            \
    ALWAYS_INLINE void name##_body(const type *rew, const uint8_t *ended, const uint8_t *valid,  \
                                   int64_t steps, int64_t envs, double gamma, double *carry,     \
                                   double *out) {                                                \
        for (int64_t t = 0; t < steps;                                                           \
             t++, rew += envs, ended += envs, valid += envs, out += envs)                        \
            for (int64_t e = 0; e < envs; e++) {                                                 \
                out[e] = valid[e] ? gamma * carry[e] + (double)rew[e] : carry[e];                \
                carry[e] = ended[e] ? 0.0 : out[e];                                              \
            }                                                                                    \
    }                                                                                            \
    DISPATCH(name,                                                                               \
             (const type *rew, const uint8_t *ended, const uint8_t *valid, int64_t steps,        \
              int64_t envs, double gamma, double *carry, double *out),                           \
             (rew, ended, valid, steps, envs, gamma, carry, out))

DEFINE_DISCOUNTED(discounted_f32, float)
DEFINE_DISCOUNTED(discounted_f64, double)

/* Chan, Golub, LeVeque 1979: the moments of two sets together from those of each. */
ALWAYS_INLINE void merge(const double *mean_in, const double *m2_in, int64_t columns, double rows,
                         double count, double *mean, double *m2) {
    double total = count + rows;
    for (int64_t i = 0; i < columns; i++) {
        double shift = mean_in[i] - mean[i];
        m2[i] += m2_in[i] + shift * shift * (count * rows / total);
        mean[i] += shift * (rows / total);
    }
}

/* As merge; at count 0 the moments become those of the block, whatever mean and m2 held. */
ALWAYS_INLINE void merge_or_set(const double *mean_in, const double *m2_in, int64_t columns,
                                double rows, double count, double *mean, double *m2) {
    if (count > 0) {
        merge(mean_in, m2_in, columns, rows, count, mean, m2);
    } else {
        memcpy(mean, mean_in, (size_t)columns * sizeof *mean);
        memcpy(m2, m2_in, (size_t)columns * sizeof *m2);
    }
}

/* Two passes in double over a few columns at a time, rows in index order; then one merge. */
#define DEFINE_MERGE_MOMENTS(name, type)                                                         \
    ALWAYS_INLINE void name##_body(const type *x, int64_t rows, int64_t columns, double *count,  \
                                   double *mean, double *m2) {                                   \
        for (int64_t first = 0; first < columns && rows > 0; first += BLOCK) {                   \
            double own[BLOCK] = {0}, own_m2[BLOCK] = {0};                                        \
            int64_t n = least(BLOCK, columns - first);                                           \
            for (int64_t r = 0; r < rows; r++)                                                   \
                for (int64_t i = 0; i < n; i++) own[i] += (double)x[r * columns + first + i];    \
            for (int64_t i = 0; i < n; i++) own[i] /= (double)rows;                              \
            for (int64_t r = 0; r < rows; r++)                                                   \
                for (int64_t i = 0; i < n; i++) {                                                \
                    double off = (double)x[r * columns + first + i] - own[i];                    \
                    own_m2[i] += off * off;                                                      \
                }                                                                                \
            merge_or_set(own, own_m2, n, (double)rows, *count, mean + first, m2 + first);        \
        }                                                                                        \
        *count += (double)rows;                                                                  \
    }                                                                                            \
    DISPATCH(name,                                                                               \
             (const type *x, int64_t rows, int64_t columns, double *count, double *mean,         \
              double *m2),                                                                       \
             (x, rows, columns, count, mean, m2))

DEFINE_MERGE_MOMENTS(merge_moments_f32, float)
DEFINE_MERGE_MOMENTS(merge_moments_f64, double)

/* 1 for a NaN or infinity; tests the bits, which no compiler flag can optimise away. */
ALWAYS_INLINE uint32_t not_finite(const float *x) {
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    return (bits & 0x7f800000u) == 0x7f800000u;
}

/* The start of the first whole block that has a number that is not finite, else of the rest. */
ALWAYS_INLINE void nonfinite_block_body(const float *x, int64_t n, int64_t *at) {
    for (*at = 0; *at + BLOCK <= n; *at += BLOCK) {
        uint32_t found = 0;
        for (int64_t i = 0; i < BLOCK; i++) found |= not_finite(x + *at + i);
        if (found) return;
    }
}

DISPATCH(nonfinite_block, (const float *x, int64_t n, int64_t *at), (x, n, at))

int64_t first_nonfinite(const float *x, int64_t n) {
    int64_t at;
    nonfinite_block(x, n, &at);
    for (; at < n; at++)
        if (not_finite(x + at)) return at;
    return -1;
}
