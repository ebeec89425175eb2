/* What the kernel headers share: instruction sets, unrolling. */
#ifndef CODEDLA_COMMON_H
#define CODEDLA_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define CDLA_X86 1
#endif

#define CDLA_LINE 64 /* bytes of a cache line */

#if defined(__clang__)
#define CDLA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CDLA_UNROLL _Pragma("GCC unroll 16")
#endif

#define CDLA_BASELINE 0
#define CDLA_AVX2 1
#define CDLA_AVX512 2

#define CDLA_CODE_AVX2 __attribute__((target("avx2,fma")))
#define CDLA_CODE_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma")))

/* Function of the chosen instruction set. */
#if defined(CDLA_X86)
#define CDLA_CHOOSE(isa, call, type)                                                              \
    ((isa) == CDLA_AVX512 ? call##_avx512_##type                                                  \
     : (isa) == CDLA_AVX2 ? call##_avx2_##type                                                    \
                          : call##_base_##type)
#else
#define CDLA_CHOOSE(isa, call, type) ((void)(isa), call##_base_##type)
#endif

#endif /* CODEDLA_COMMON_H */
