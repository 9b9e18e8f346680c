/* Random numbers of a run: Philox at the counter (component, step, env, purpose), keyed by the
 * seed.
 *
 * There is no state, so the order of draws and the number of processes change no bit. Arrays are
 * [e k]: row e is environment env + e, column k is component k.
 */
#ifndef FASTPPO_NOISE_H
#define FASTPPO_NOISE_H

#include <stdint.h>

enum { ACT_NOISE = 0, SHUFFLE = 1, ENV_SEED = 3 }; /* the purposes that C code names */

/* The first word at this counter. */
uint32_t noise_word(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step,
                    uint32_t component);

/* Uniforms in [0, 1), as multiples of 2^-24, which float32 represents exactly. */
void noise_uniform(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,
                   int64_t columns, float *out);

/* Standard normals, Box-Muller on the first two words. */
void noise_normal(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,
                  int64_t columns, float *out);

/* A permutation of 0 .. n - 1, n < 2^32, by Fisher-Yates, for this iteration and epoch. */
void noise_permutation(uint64_t seed, uint32_t iteration, uint32_t epoch, int64_t n, int64_t *out);

#endif
