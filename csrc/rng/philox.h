/* Philox4x32-10, a counter-based generator: 4 words that depend only on the key and the counter.
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 */
#ifndef FASTPPO_PHILOX_H
#define FASTPPO_PHILOX_H

#include <stdint.h>

#include "simd/dispatch.h"

typedef struct { uint32_t w[4]; } Words;

ALWAYS_INLINE Words counter(uint32_t component, uint32_t step, uint32_t env, uint32_t purpose) {
    return (Words){{component, step, env, purpose}};
}

/* The four words at a counter, keyed by the seed of the run. */
ALWAYS_INLINE Words philox(uint64_t seed, Words at) {
    uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    uint32_t a = at.w[0], b = at.w[1], c = at.w[2], d = at.w[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ low;
        b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ high;
        d = (uint32_t)p;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return (Words){{a, b, c, d}};
}

#endif
