/* Compiles a function for several instruction sets and selects one at run time.
 *
 * The sets are AVX-512, AVX2 with FMA, and plain C; all give the same bits. On 64-bit ARM the
 * compiler turns plain C into NEON. -DFASTPPO_WIDEST=256 leaves AVX-512 out, 128 AVX2 too, for
 * tests.
 *
 * DISPATCH(name, (parameters), (arguments)) defines `void name(parameters)`, which selects a
 * variant of `name_body` (ALWAYS_INLINE) in every call; DISPATCH_BITS passes the body the width of
 * the variant's registers as first argument. Not done by target_clones, which needs gcc 12 and
 * glibc's ifunc; attributes on functions work with every gcc and clang.
 */
#ifndef FASTPPO_DISPATCH_H
#define FASTPPO_DISPATCH_H

#define ALWAYS_INLINE static inline __attribute__((always_inline)) /* gcc and clang alone */

#ifndef __x86_64__
#undef FASTPPO_WIDEST
#define FASTPPO_WIDEST 128
#elif !defined(FASTPPO_WIDEST)
#define FASTPPO_WIDEST 512
#endif

#define HAS(feature) __builtin_cpu_supports(feature)
#define TRY(has, variant) \
    if (has) {            \
        variant;          \
        return;           \
    }
#define VARIANT(name, parameters, bits, call) \
    static void name parameters {             \
        enum { BITS = bits };                 \
        call;                                 \
    }

#if FASTPPO_WIDEST >= 512
#define AVX512(...) __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"))) __VA_ARGS__
#define TRY_AVX512(variant) \
    TRY(HAS("avx512f") && HAS("avx512vl") && HAS("avx512bw") && HAS("avx512dq"), variant)
#else
#define AVX512(...)
#define TRY_AVX512(variant)
#endif

#if FASTPPO_WIDEST >= 256
#define AVX2(...) __attribute__((target("avx2,fma"))) __VA_ARGS__
#define TRY_AVX2(variant) TRY(HAS("avx2") && HAS("fma"), variant)
#else
#define AVX2(...)
#define TRY_AVX2(variant)
#endif

#define DISPATCH_CALL(name, parameters, arguments, call)  \
    AVX512(VARIANT(name##_avx512, parameters, 512, call)) \
    AVX2(VARIANT(name##_avx2, parameters, 256, call))     \
    VARIANT(name##_plain, parameters, 128, call)          \
    void name parameters {                                \
        TRY_AVX512(name##_avx512 arguments)               \
        TRY_AVX2(name##_avx2 arguments)                   \
        name##_plain arguments;                           \
    }

#define UNWRAP(...) __VA_ARGS__
#define DISPATCH(name, parameters, arguments) \
    DISPATCH_CALL(name, parameters, arguments, name##_body arguments)
#define DISPATCH_BITS(name, parameters, arguments) \
    DISPATCH_CALL(name, parameters, arguments, name##_body(BITS, UNWRAP arguments))

#endif
