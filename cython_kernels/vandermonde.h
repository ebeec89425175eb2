/* Vandermonde solvers of every instruction set, and the choice among them. */
#ifndef CODEDLA_VANDERMONDE_H
#define CODEDLA_VANDERMONDE_H

#include "common.h"

#define VECTOR_BYTES 16
#define STRIP_VECTORS 4
#define COMPLEX 0
#define CODE
#define NAME(x) x##_base_real
#include "vandermonde_tile.h"

#define VECTOR_BYTES 16
#define STRIP_VECTORS 2
#define COMPLEX 1
#define CODE
#define NAME(x) x##_base_complex
#include "vandermonde_tile.h"

#if defined(CDLA_X86)

#define VECTOR_BYTES 32
#define STRIP_VECTORS 4
#define COMPLEX 0
#define CODE CDLA_CODE_AVX2
#define NAME(x) x##_avx2_real
#include "vandermonde_tile.h"

#define VECTOR_BYTES 32
#define STRIP_VECTORS 2
#define COMPLEX 1
#define CODE CDLA_CODE_AVX2
#define NAME(x) x##_avx2_complex
#include "vandermonde_tile.h"

#define VECTOR_BYTES 64
#define STRIP_VECTORS 4
#define COMPLEX 0
#define CODE CDLA_CODE_AVX512
#define NAME(x) x##_avx512_real
#include "vandermonde_tile.h"

#define VECTOR_BYTES 64
#define STRIP_VECTORS 2
#define COMPLEX 1
#define CODE CDLA_CODE_AVX512
#define NAME(x) x##_avx512_complex
#include "vandermonde_tile.h"

#endif /* CDLA_X86 */

/* x (k, width) in place. `is_complex`: nodes and x hold interleaved complex numbers. */
static int cdla_vandermonde_solve(int isa, int is_complex, ptrdiff_t k, ptrdiff_t width,
                                  const double *nodes, double *x, int transpose, int chebyshev)
{
    if (is_complex)
        return CDLA_CHOOSE(isa, solve, complex)(k, width, nodes, x, transpose, chebyshev);
    return CDLA_CHOOSE(isa, solve, real)(k, width, nodes, x, transpose, chebyshev);
}

#endif /* CODEDLA_VANDERMONDE_H */
