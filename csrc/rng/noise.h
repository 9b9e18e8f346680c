/* Noise addressed by what it is for: Philox at (component, step, env, purpose), the run's seed.
 *
 * Nothing here has a state, so who draws, in what order and in how many processes changes no bit.
 * Arrays are [e k]: row e is environment env + e, column k is component k.
 */
#ifndef FASTPPO_NOISE_H
#define FASTPPO_NOISE_H

#include <stdint.h>

enum { SHUFFLE = 1 }; /* the one purpose C knows by name */

/* The first word. */
uint32_t noise_word(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step,
                    uint32_t component);

/* Uniforms in [0, 1): multiples of 2^-24, so that every one is exact. */
void noise_uniform(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,
                   int64_t columns, float *out);

/* Standard normals, Box-Muller on the first two words. */
void noise_normal(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,
                  int64_t columns, float *out);

/* A permutation of 0 .. n - 1, n < 2^32, Fisher-Yates; `iteration` and `epoch` choose it. */
void noise_permutation(uint64_t seed, uint32_t iteration, uint32_t epoch, int64_t n, int64_t *out);

#endif
