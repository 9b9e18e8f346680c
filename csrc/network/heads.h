/* The heads that act: actions and log-probabilities from network outputs and given noise. */
#ifndef FASTPPO_HEADS_H
#define FASTPPO_HEADS_H

#include <stdint.h>

enum { MAX_CHOICES = 6144 };

/* act [n], logp [n] from logits [n k], k <= MAX_CHOICES, rows `stride` apart, uniforms u [n]. */
void sample_categorical(const float *logits, int64_t stride, const float *u, int64_t n, int64_t k,
                        int64_t *act, float *logp);

/* act [n k], logp [n] from mean [n k], rows `stride` floats apart, log_std [k], normals z [n k]. */
void sample_gaussian(const float *mean, int64_t stride, const float *log_std, const float *z,
                     int64_t n, int64_t k, float *act, float *logp);

#endif
