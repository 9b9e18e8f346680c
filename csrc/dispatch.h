/* One source, two instruction sets: AVX2 with FMA where this CPU has it, plain C elsewhere,
 * with the same bits. On ARM the compiler turns plain C into NEON, which every 64-bit ARM has.
 * -DFASTPPO_PLAIN leaves AVX2 out, for a test.
 *
 * DISPATCH(name, (parameters), (arguments)) defines `void name(parameters)`, which picks a variant
 * of `name_body` (ALWAYS_INLINE) when called. By hand rather than by target_clones, which wants gcc
 * 12 and glibc's ifunc for this; attributes on functions work with every gcc and clang. No AVX-512:
 * the forward tile keeps eight 256-bit sums busy, four 512-bit ones would wait for their latency.
 */
#ifndef FASTPPO_DISPATCH_H
#define FASTPPO_DISPATCH_H

#define ALWAYS_INLINE static inline __attribute__((always_inline)) /* gcc and clang alone */

#if defined(__x86_64__) && !defined(FASTPPO_PLAIN)
#define DISPATCH(name, parameters, arguments)                                                    \
    __attribute__((target("avx2,fma"))) static void name##_avx2 parameters {                     \
        name##_body arguments;                                                                   \
    }                                                                                            \
    static void name##_plain parameters { name##_body arguments; }                               \
    void name parameters {                                                                       \
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))                     \
            name##_avx2 arguments;                                                               \
        else                                                                                     \
            name##_plain arguments;                                                              \
    }
#else
#define DISPATCH(name, parameters, arguments)                                                    \
    void name parameters { name##_body arguments; }
#endif

#endif
