/* Block kernels of every instruction set, and the tables that choose among them.
 *
 * GCC and Clang vector extensions; each function carries its target as an attribute, so the file
 * is compiled without any -m flag and the choice is made when the module is imported.
 */
#ifndef CODEDLA_BLOCKS_H
#define CODEDLA_BLOCKS_H

#include "common.h"

/* Where a micro kernel reads its chunk, and what it does with the result. */
#define CDLA_DIRECT 0
#define CDLA_PACKING 1
#define CDLA_PACKED 2
#define CDLA_STORE 0
#define CDLA_STREAM 1
#define CDLA_ADD 2

/* Bytes of one output written in a run, and most bytes of packed inputs. Measured on AMD Zen 4:
 * runs of a few lines keep the write-combining buffers busy, and a tile somewhat above level 1 is
 * harmless because each panel asks for the next tile ahead of time. The second-level hint matters
 * there: fetching straight into level 1 costs 10 to 20 %. */
#define CDLA_RUN 1024
#define CDLA_TILE_BYTES (48 * 1024)
#define CDLA_PREFETCH(p, bytes)                                                                   \
    for (size_t line_ = 0; line_ < (bytes); line_ += CDLA_LINE)                                   \
    __builtin_prefetch((const char *)(p) + line_, 0, 2)

#if defined(CDLA_X86)
#define CDLA_FENCE() _mm_sfence()
#else
#define CDLA_FENCE() ((void)0)
#endif

/* Neighbouring lanes exchanged. */
#if defined(__clang__) || __GNUC__ >= 12
#define CDLA_SWAP_double_16(v) __builtin_shufflevector(v, v, 1, 0)
#define CDLA_SWAP_float_16(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#define CDLA_SWAP_double_32(v) CDLA_SWAP_float_16(v)
#define CDLA_SWAP_float_32(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#define CDLA_SWAP_double_64(v) CDLA_SWAP_float_32(v)
#define CDLA_SWAP_float_64(v)                                                                     \
    __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#else
typedef int64_t cdla_i64_16 __attribute__((vector_size(16)));
typedef int32_t cdla_i32_16 __attribute__((vector_size(16)));
typedef int64_t cdla_i64_32 __attribute__((vector_size(32)));
typedef int32_t cdla_i32_32 __attribute__((vector_size(32)));
typedef int64_t cdla_i64_64 __attribute__((vector_size(64)));
typedef int32_t cdla_i32_64 __attribute__((vector_size(64)));
#define CDLA_SWAP_double_16(v) __builtin_shuffle(v, (cdla_i64_16){1, 0})
#define CDLA_SWAP_float_16(v) __builtin_shuffle(v, (cdla_i32_16){1, 0, 3, 2})
#define CDLA_SWAP_double_32(v) __builtin_shuffle(v, (cdla_i64_32){1, 0, 3, 2})
#define CDLA_SWAP_float_32(v) __builtin_shuffle(v, (cdla_i32_32){1, 0, 3, 2, 5, 4, 7, 6})
#define CDLA_SWAP_double_64(v) __builtin_shuffle(v, (cdla_i64_64){1, 0, 3, 2, 5, 4, 7, 6})
#define CDLA_SWAP_float_64(v)                                                                     \
    __builtin_shuffle(v, (cdla_i32_64){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14})
#endif
#define CDLA_SWAP_(v, type, bytes) CDLA_SWAP_##type##_##bytes(v)
#define CDLA_SWAP(v, type, bytes) CDLA_SWAP_(v, type, bytes)

/* --- baseline: what every processor of the architecture has ----------------------------------- */

/* A chunk must be whole cache lines wide, or streaming stores write half lines. */
#define CDLA_BASE_VECTORS 4
#if defined(CDLA_X86)
#define CDLA_BASE_ROWS 3 /* 12 sums in 16 registers */
#else
#define CDLA_BASE_ROWS 6 /* 24 sums in 32 registers: AArch64, POWER, RISC-V */
#endif

#define REAL double
#define STORED double
#define WIDE 0
#define VECTOR_BYTES 16
#define CHUNK_VECTORS CDLA_BASE_VECTORS
#define PANEL_ROWS CDLA_BASE_ROWS
#define CODE
#define NAME(x) x##_base_f64
#if defined(CDLA_X86)
#define STREAM(p, v) _mm_stream_pd((p), (__m128d)(v))
#else
#define STREAM(p, v) (*(NAME(vec) *)(p) = (v))
#endif
#include "blocks_tile.h"

#define REAL float
#define STORED float
#define WIDE 0
#define VECTOR_BYTES 16
#define CHUNK_VECTORS CDLA_BASE_VECTORS
#define PANEL_ROWS CDLA_BASE_ROWS
#define CODE
#define NAME(x) x##_base_f32
#if defined(CDLA_X86)
#define STREAM(p, v) _mm_stream_ps((p), (__m128)(v))
#else
#define STREAM(p, v) (*(NAME(vec) *)(p) = (v))
#endif
#include "blocks_tile.h"

/* Blocks of float whose sums are double. Half a vector is stored at a time, which streaming stores
 * of this instruction set cannot do. */
#define REAL double
#define STORED float
#define WIDE 1
#define VECTOR_BYTES 16
#define CHUNK_VECTORS CDLA_BASE_VECTORS
#define PANEL_ROWS CDLA_BASE_ROWS
#define CODE
#define NAME(x) x##_base_wide
#define STREAM(p, v) (*(NAME(narrow) *)(p) = (v))
#include "blocks_tile.h"

#if defined(CDLA_X86)

/* --- AVX2 with FMA: 12 sums in 16 registers of 32 bytes ---------------------------------------- */

#define REAL double
#define STORED double
#define WIDE 0
#define VECTOR_BYTES 32
#define CHUNK_VECTORS 2
#define PANEL_ROWS 6
#define CODE CDLA_CODE_AVX2
#define NAME(x) x##_avx2_f64
#define STREAM(p, v) _mm256_stream_pd((p), (__m256d)(v))
#include "blocks_tile.h"

#define REAL float
#define STORED float
#define WIDE 0
#define VECTOR_BYTES 32
#define CHUNK_VECTORS 2
#define PANEL_ROWS 6
#define CODE CDLA_CODE_AVX2
#define NAME(x) x##_avx2_f32
#define STREAM(p, v) _mm256_stream_ps((p), (__m256)(v))
#include "blocks_tile.h"

#define REAL double
#define STORED float
#define WIDE 1
#define VECTOR_BYTES 32
#define CHUNK_VECTORS 4
#define PANEL_ROWS 3
#define CODE CDLA_CODE_AVX2
#define NAME(x) x##_avx2_wide
#define STREAM(p, v) _mm_stream_ps((p), (__m128)(v))
#include "blocks_tile.h"

/* --- AVX-512: 27 sums in 32 registers of 64 bytes ---------------------------------------------- */

#define REAL double
#define STORED double
#define WIDE 0
#define VECTOR_BYTES 64
#define CHUNK_VECTORS 3
#define PANEL_ROWS 9
#define CODE CDLA_CODE_AVX512
#define NAME(x) x##_avx512_f64
#define STREAM(p, v) _mm512_stream_pd((p), (__m512d)(v))
#include "blocks_tile.h"

#define REAL float
#define STORED float
#define WIDE 0
#define VECTOR_BYTES 64
#define CHUNK_VECTORS 3
#define PANEL_ROWS 9
#define CODE CDLA_CODE_AVX512
#define NAME(x) x##_avx512_f32
#define STREAM(p, v) _mm512_stream_ps((p), (__m512)(v))
#include "blocks_tile.h"

/* 24 sums: a chunk of three vectors would be a line and a half of float. */
#define REAL double
#define STORED float
#define WIDE 1
#define VECTOR_BYTES 64
#define CHUNK_VECTORS 4
#define PANEL_ROWS 6
#define CODE CDLA_CODE_AVX512
#define NAME(x) x##_avx512_wide
#define STREAM(p, v) _mm256_stream_ps((p), (__m256)(v))
#include "blocks_tile.h"

#endif /* CDLA_X86 */

/* --- choice at run time ------------------------------------------------------------------------ */

/* Best instruction set of this processor (the operating system's part is checked as well). */
static int cdla_best_isa(void)
{
#if defined(CDLA_X86)
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return CDLA_AVX512;
    if (avx2)
        return CDLA_AVX2;
#endif
    return CDLA_BASELINE;
}

/* What the blocks hold, each for real or complex numbers, and what is summed in. */
#define CDLA_DOUBLE 0
#define CDLA_SINGLE 1
#define CDLA_WIDE 2 /* float, summed in double */

/* `modulus`, of real double blocks only: reduce the outputs to balanced residues; 0: do not. */
static int cdla_combine(int isa, int precision, ptrdiff_t n_out, ptrdiff_t k, const double *W,
                        int is_complex, const char **ins, const ptrdiff_t *in_strides,
                        char **outs, const ptrdiff_t *out_strides, ptrdiff_t rows, ptrdiff_t n,
                        int accumulate, int stream, double modulus)
{
    const int mode = accumulate ? CDLA_ADD : stream ? CDLA_STREAM : CDLA_STORE;
    if (n_out == 0 || rows == 0 || n == 0)
        return 0;
    if (precision == CDLA_WIDE)
        return CDLA_CHOOSE(isa, combine, wide)(n_out, k, W, is_complex, ins, in_strides, outs,
                                               out_strides, rows, n, mode, 0);
    if (precision == CDLA_SINGLE)
        return CDLA_CHOOSE(isa, combine, f32)(n_out, k, W, is_complex, ins, in_strides, outs,
                                              out_strides, rows, n, mode, 0);
    return CDLA_CHOOSE(isa, combine, f64)(n_out, k, W, is_complex, ins, in_strides, outs,
                                          out_strides, rows, n, mode, modulus);
}

static void cdla_fold(int isa, int single, ptrdiff_t s, const double *w, int is_complex,
                      const char *block, ptrdiff_t block_stride, char **accs,
                      const ptrdiff_t *acc_strides, ptrdiff_t rows, ptrdiff_t n)
{
    if (single)
        CDLA_CHOOSE(isa, fold, f32)(s, w, is_complex, block, block_stride, accs, acc_strides,
                                    rows, n);
    else
        CDLA_CHOOSE(isa, fold, f64)(s, w, is_complex, block, block_stride, accs, acc_strides,
                                    rows, n);
}

/* n is a number of REALs of the type chosen by `single`. */
static void cdla_stream_copy(int isa, int single, const char *from, ptrdiff_t from_stride,
                             char *to, ptrdiff_t to_stride, ptrdiff_t rows, ptrdiff_t n)
{
    for (ptrdiff_t row = 0; row < rows; row++, from += from_stride, to += to_stride) {
        if (single)
            CDLA_CHOOSE(isa, stream_row, f32)((const float *)from, (float *)to, n);
        else
            CDLA_CHOOSE(isa, stream_row, f64)((const double *)from, (double *)to, n);
    }
    CDLA_FENCE();
}

#endif /* CODEDLA_BLOCKS_H */
