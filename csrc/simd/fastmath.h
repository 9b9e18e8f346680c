/* exp, log, tanh and cos(2 pi x) for float32, as polynomials or their quotients.
 *
 * Those of libm differ between machines and are function calls; these give the same bits
 * everywhere, and the compiler turns loops over them into SIMD. Every multiply-add is an explicit
 * fma, so that the compiler decides on none. Coefficients: least maximum error (Lawson's
 * algorithm) over the reduced range, rounded to float32. The stated errors were measured over
 * every 37th float32. A NaN argument gives NaN: comparisons with NaN are false, so the limits
 * below let it pass.
 */
#ifndef FASTPPO_FASTMATH_H
#define FASTPPO_FASTMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd/dispatch.h"

#define LOG2E 1.44269504f
#define LN2 0.693147182f
#define LN2_HIGH 0.693359375f      /* few bits, so that n * LN2_HIGH is exact */
#define LN2_LOW (-2.12194440e-4f)
#define ROUNDER 12582912.0f        /* 1.5 * 2^23: adding it rounds, the integer in the low bits */

ALWAYS_INLINE float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
ALWAYS_INLINE uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
ALWAYS_INLINE float fma32(float a, float b, float c) { return fmaf(a, b, c); }

ALWAYS_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
ALWAYS_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* test ? a : b without a branch, which would prevent SIMD in the loops around it. */
ALWAYS_INLINE float choose(int test, float a, float b) {
    uint32_t mask = 0u - (uint32_t)test;
    return as_float((as_bits(a) & mask) | (as_bits(b) & ~mask));
}

ALWAYS_INLINE float at_most(float x, float high) { return choose(x > high, high, x); }
ALWAYS_INLINE float clamp(float x, float low, float high) {
    return at_most(choose(x < low, low, x), high);
}
ALWAYS_INLINE float power_of_two(int32_t n) { return as_float(((uint32_t)n + 127u) << 23); }

/* r and n such that x = n ln 2 + r; |x| < 2^20. */
ALWAYS_INLINE float reduced(float x, int32_t *n) {
    float t = fma32(x, LOG2E, ROUNDER), k = t - ROUNDER;
    *n = (int32_t)(as_bits(t) - as_bits(ROUNDER));
    return fma32(k, -LN2_LOW, fma32(k, -LN2_HIGH, x));
}

/* exp(r) - 1 for a reduced r. */
ALWAYS_INLINE float expm1_polynomial(float r) {
    float p = fma32(r, 1.3814610e-3f, 8.3687101e-3f);
    p = fma32(r, p, 4.1668389e-2f);
    p = fma32(r, p, 1.6666521e-1f);
    p = fma32(r, p, 4.9999994e-1f);
    return fma32(r * r, p, r);
}

/* Returns p and sets n such that exp(x) = 2^n (1 + p); |x| < 2^20. */
ALWAYS_INLINE float expm1_reduced(float x, int32_t *n) { return expm1_polynomial(reduced(x, n)); }

/* e^x, relative error < 2e-7; 0 below -104, +inf above 88.73, subnormals kept. */
ALWAYS_INLINE float fast_exp(float x) {
    int32_t n;
    float p = expm1_reduced(clamp(x, -105.0f, 89.0f), &n) + 1.0f;
    int32_t half = n >> 1;   /* 2^n alone would overflow or vanish at either end */
    return p * power_of_two(half) * power_of_two(n - half);
}

/* tanh(x) = x P(x^2) / Q(x^2), relative error < 3.2e-7, exactly odd, at most 1; all coefficients
 * are positive, so that nothing cancels. */
ALWAYS_INLINE float fast_tanh(float x) {
    float y = clamp(x, -8.0f, 8.0f), z = y * y;
    float p = fma32(z, 1.52303787e-8f, 2.18946352e-5f), q = fma32(z, 8.5224309e-7f, 3.41128936e-4f);
    p = fma32(z, p, 3.57159646e-3f);
    q = fma32(z, q, 2.61644367e-2f);
    p = fma32(z, p, 1.34444967e-1f);
    q = fma32(z, q, 4.67778236e-1f);
    p = fma32(z, p, 1.0f);
    q = fma32(z, q, 1.0f);
    return y * p / q;
}

/* 1 / (1 + e^-x). */
ALWAYS_INLINE float sigmoid(float x) { return fma32(0.5f, fast_tanh(0.5f * x), 0.5f); }

/* e^x - 1 for x <= 0, else x: torch's ELU with alpha 1. */
ALWAYS_INLINE float fast_elu(float x) {
    int32_t n;
    float p = expm1_reduced(clamp(x, -25.0f, 0.0f), &n), scale = power_of_two(n);
    return choose(x > 0.0f, x, fma32(scale, p, scale - 1.0f));
}

/* ln x, relative error < 3e-7, near 1 too; -inf at 0, NaN below, correct for subnormals. */
ALWAYS_INLINE float fast_log(float x) {
    int small = x < 1.17549435e-38f;
    uint32_t bits = as_bits(choose(small, x * 8388608.0f, x));
    int32_t n = (int32_t)(bits - 0x3f3504f3u) >> 23;            /* mantissa in [0.707, 1.414) */
    float f = as_float(bits - ((uint32_t)n << 23)) - 1.0f;
    float s = f / (2.0f + f), z = s * s;                        /* ln(1 + f) = 2 atanh(s) */
    float p = fma32(z, 2.8537309e-1f, 4.0000033e-1f);
    p = fma32(z, p, 6.6666663e-1f);
    p = fma32(z, p, 2.0f);
    float y = fma32((float)(n - 23 * small), LN2, s * p);
    y = choose(x == 0.0f, -INFINITY, y);
    y = choose(x < 0.0f, NAN, y);
    return choose(x < INFINITY, y, x);
}

/* cos(2 pi u) for u in [0, 1), absolute error < 2e-7; u - q / 4 is exact. */
ALWAYS_INLINE float cos_turn(float u) {
    float q = fma32(u, 4.0f, ROUNDER) - ROUNDER, r = fma32(q, -0.25f, u), z = r * r;
    float c = fma32(z, 5.9245960e1f, -8.5443741e1f);
    c = fma32(z, c, 6.4939323e1f);
    c = fma32(z, c, -1.9739208e1f);
    c = fma32(z, c, 1.0f);
    float s = fma32(z, 4.1469891e1f, -7.6697777e1f);
    s = fma32(z, s, 8.1605202e1f);
    s = fma32(z, s, -4.1341702e1f);
    s = fma32(z, s, 6.2831855f) * r;
    float y = choose((q == 1.0f) | (q == 3.0f), s, c);
    return choose((q == 1.0f) | (q == 2.0f), -y, y);
}

#endif
