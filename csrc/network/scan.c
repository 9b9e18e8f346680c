/* The steps of a minGRU, forward and backward. */
#include "network/scan.h"

#include "simd/fastmath.h"

ALWAYS_INLINE void scan_step_body(int64_t size, const float *restrict x,
                                  const float *restrict before, float *restrict h) {
    for (int64_t i = 0; i < size; i++)
        h[i] = fma32(sigmoid(x[size + i]), x[i] - before[i], before[i]);
}

DISPATCH(scan_step, (int64_t size, const float *x, const float *before, float *h),
         (size, x, before, h))

ALWAYS_INLINE void scan_back_body(int64_t size, const float *restrict x,
                                  const float *restrict before, const float *restrict dh,
                                  float *restrict carry, float *restrict dx) {
    for (int64_t i = 0; i < size; i++) {
        float z = sigmoid(x[size + i]), d = dh[i] + carry[i];
        dx[i] = d * z;
        dx[size + i] = d * (x[i] - before[i]) * z * (1.0f - z);
        carry[i] = d * (1.0f - z);
    }
}

DISPATCH(scan_back,
         (int64_t size, const float *x, const float *before, const float *dh, float *carry,
          float *dx),
         (size, x, before, dh, carry, dx))
