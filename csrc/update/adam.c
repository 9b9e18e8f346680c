/* The parts of an update over a whole minibatch: advantages' moments, reduction, norm, Adam. */
#include <string.h>

#include "simd/fastmath.h"
#include "simd/lanes.h"
#include "update/update.h"

enum { CHUNK = 1024 }; /* floats summed while they are in the level-1 cache */

void update_advantages(const Batch *batch, Minibatch *part) {
    const int64_t *index = part->index, rows = part->rows;
    float low = batch->adv[index[0]], high = low;
    double mean = 0.0, squares = 0.0;
    part->adv_mean = 0.0f, part->adv_scale = 1.0f;
    if (rows < 2) return;
    for (int64_t r = 0; r < rows; r++) {
        float adv = batch->adv[index[r]];
        low = adv < low ? adv : low;
        high = adv > high ? adv : high;
        mean += adv;
    }
    mean /= (double)rows;
    for (int64_t r = 0; r < rows; r++) {
        double deviation = batch->adv[index[r]] - mean;
        squares += deviation * deviation;
    }
    /* Deviations of a constant are rounding errors; a division by their std would amplify them. */
    double std = sqrt(squares / (double)(rows - 1));
    part->adv_mean = (float)mean;
    part->adv_scale = low == high ? 0.0f : (float)(1.0 / (std + 1e-8));
}

ALWAYS_INLINE void add(float *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

ALWAYS_INLINE void add_squares(const float *x, Vec *sum) {
    Vec v;
    load(&v, x);
    for (int i = 0; i < 8; i++) (*sum)[i] = fma32(v[i], v[i], (*sum)[i]);
}

/* The sum of squares of n floats: 32 sums in index order, then their sum in a fixed tree. */
ALWAYS_INLINE float squared(const float *x, int64_t n) {
    Vec a = {0}, b = {0}, c = {0}, d = {0};
    float last[32] = {0}, lanes[8];
    for (; n > 0; n -= 32, x += 32) {
        if (n < 32) x = memcpy(last, x, (size_t)n * sizeof *x);
        add_squares(x, &a);
        add_squares(x + 8, &b);
        add_squares(x + 16, &c);
        add_squares(x + 24, &d);
    }
    a = (a + b) + (c + d);
    store(lanes, &a);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

ALWAYS_INLINE void update_sum_body(float *grads, int64_t stride, int64_t shards, int64_t params,
                                   double *square) {
    for (int64_t first = 0; first < params; first += CHUNK) {
        int64_t n = least(CHUNK, params - first);
        float *grad = grads + first;
        for (int64_t apart = 1; apart < shards; apart *= 2)
            for (int64_t s = 0; s + apart < shards; s += 2 * apart)
                add(grad + s * stride, grad + (s + apart) * stride, n);
        *square += squared(grad, n);
    }
}

DISPATCH(update_sum,
         (float *grads, int64_t stride, int64_t shards, int64_t params, double *square),
         (grads, stride, shards, params, square))

double update_reduce(float *grads, int64_t stride, int64_t shards, int64_t params) {
    double square = 0.0;
    update_sum(grads, stride, shards, params, &square);
    return sqrt(square);
}

/* The constants of one step of Adam. */
typedef struct {
    float clip, rate1, keep2, rate2, size, correction2, eps;
} Step;

ALWAYS_INLINE void update_descend_body(const Step *step, const float *restrict grad,
                                       int64_t params, float *restrict exp_avg,
                                       float *restrict exp_avg_sq, float *restrict values) {
    Step s = *step;
    for (int64_t i = 0; i < params; i++) {
        float g = grad[i] * s.clip;
        float m = fma32(s.rate1, g - exp_avg[i], exp_avg[i]);
        float v = fma32(s.rate2 * g, g, s.keep2 * exp_avg_sq[i]);
        float deviation = fma32(sqrtf(v), s.correction2, s.eps);
        values[i] -= s.size * m / deviation;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
    }
}

DISPATCH(update_descend,
         (const Step *step, const float *grad, int64_t params, float *exp_avg, float *exp_avg_sq,
          float *values),
         (step, grad, params, exp_avg, exp_avg_sq, values))

void update_adam(const Adam *adam, int64_t step, const float *grad, double norm, int64_t params,
                 float *exp_avg, float *exp_avg_sq, float *values) {
    if (!isfinite(norm)) /* then the update ends with an error, and the weights stay as they are */
        return;
    double scale = adam->max_norm / (norm + 1e-6), t = (double)step;
    double bias1 = 1.0 - pow(adam->beta1, t), bias2 = 1.0 - pow(adam->beta2, t);
    Step numbers = {.clip = (float)(scale > 1.0 ? 1.0 : scale),
                    .rate1 = (float)(1.0 - adam->beta1),
                    .keep2 = (float)adam->beta2,
                    .rate2 = (float)(1.0 - adam->beta2),
                    .size = (float)(adam->lr / bias1),
                    .correction2 = (float)(1.0 / sqrt(bias2)),
                    .eps = (float)adam->eps};
    update_descend(&numbers, grad, params, exp_avg, exp_avg_sq, values);
}

void update_stats(const double *sums, int64_t shards, int64_t rows, double norm, float *stats) {
    for (int64_t i = 0; i < SUMS; i++) {
        double sum = 0.0;
        for (int64_t s = 0; s < shards; s++) sum += sums[s * SUMS + i];
        stats[i] = (float)(sum / (double)rows);
    }
    stats[SUMS] = (float)norm;
}
