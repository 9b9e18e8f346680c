/* Uniforms, normals and permutations from Philox, eight counters at a time. */
#include "rng/noise.h"

#include <stddef.h>

#include "simd/fastmath.h"
#include "rng/philox.h"

enum { BLOCK = 8 };

#define TINY 5.9604644775390625e-8f /* 2^-24 */

typedef struct { uint32_t component[BLOCK], env[BLOCK]; } Block;

/* The counters of elements first .. first + BLOCK - 1 of a [rows columns] array. */
ALWAYS_INLINE Block block_at(int64_t first, int64_t columns, uint32_t env) {
    Block block;
    uint32_t row = (uint32_t)(first / columns), column = (uint32_t)(first % columns);
    for (int i = 0; i < BLOCK; i++) {
        block.env[i] = env + row;
        block.component[i] = column;
        uint32_t wrap = ++column == (uint32_t)columns;
        row += wrap;
        column = wrap ? 0 : column;
    }
    return block;
}

ALWAYS_INLINE float uniform_of(Words words) { return (float)(int32_t)(words.w[0] >> 8) * TINY; }

ALWAYS_INLINE float normal_of(Words words) {
    float first = (float)(int32_t)((words.w[0] >> 8) + 1) * TINY; /* > 0: has a logarithm */
    float second = (float)(int32_t)(words.w[1] >> 8) * TINY;
    return sqrtf(-2.0f * fast_log(first)) * cos_turn(second);
}

#define DEFINE_FILL(name, of)                                                                    \
    ALWAYS_INLINE void name##_body(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, \
                                   int64_t rows, int64_t columns, float *out) {                  \
        int64_t size = rows * columns;                                                           \
        for (int64_t first = 0; first < size; first += BLOCK) {                                  \
            float values[BLOCK];                                                                 \
            Block at = block_at(first, columns, env);                                            \
            for (int i = 0; i < BLOCK; i++)                                                      \
                values[i] =                                                                      \
                    of(philox(seed, counter(at.component[i], step, at.env[i], purpose)));        \
            for (int i = 0; i < BLOCK && first + i < size; i++) out[first + i] = values[i];      \
        }                                                                                        \
    }                                                                                            \
    DISPATCH(name,                                                                               \
             (uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,        \
              int64_t columns, float *out),                                                      \
             (seed, purpose, env, step, rows, columns, out))

DEFINE_FILL(noise_uniform, uniform_of)
DEFINE_FILL(noise_normal, normal_of)

uint32_t noise_word(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step,
                    uint32_t component) {
    return philox(seed, counter(component, step, env, purpose)).w[0];
}

void noise_permutation(uint64_t seed, uint32_t iteration, uint32_t epoch, int64_t n, int64_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t word = noise_word(seed, SHUFFLE, epoch, iteration, (uint32_t)i);
        int64_t j = (int64_t)(word * (uint64_t)(i + 1) >> 32), kept = out[i];
        out[i] = out[j];
        out[j] = kept;
    }
}
