/* Vandermonde solvers for one instruction set, real or complex nodes.
 *
 * Included once per combination by vandermonde.h. Expects
 *   VECTOR_BYTES   bytes of one vector of doubles
 *   STRIP_VECTORS  vectors of one strip: columns that are solved together
 *   COMPLEX        1 for complex nodes and right-hand sides, 0 for real ones
 *   CODE           attributes of every function
 *   NAME(x)        x with a suffix of its own
 *
 * A strip of the right-hand sides is copied into a contiguous scratch of k lines, solved there and
 * copied back: the caller's row stride, often a power of two, would put all lines into the same
 * few cache sets. Complex lines keep real and imaginary parts apart.
 */
#define LANES ((ptrdiff_t)(VECTOR_BYTES / sizeof(double)))
#define STRIP ((ptrdiff_t)(STRIP_VECTORS * LANES))

typedef double NAME(vec) __attribute__((vector_size(VECTOR_BYTES)));
typedef struct {
    NAME(vec) re[STRIP_VECTORS];
#if COMPLEX
    NAME(vec) im[STRIP_VECTORS];
#endif
} NAME(line);
typedef struct {
    double re, im;
} NAME(number);

static inline CODE NAME(number) NAME(node)(const double *nodes, ptrdiff_t i)
{
#if COMPLEX
    return (NAME(number)){nodes[2 * i], nodes[2 * i + 1]};
#else
    return (NAME(number)){nodes[i], 0};
#endif
}

/* a - b */
static inline CODE __attribute__((always_inline)) void NAME(subtract)(
    NAME(line) *to, const NAME(line) *a, const NAME(line) *b)
{
    CDLA_UNROLL
    for (int u = 0; u < STRIP_VECTORS; u++) {
        to->re[u] = a->re[u] - b->re[u];
#if COMPLEX
        to->im[u] = a->im[u] - b->im[u];
#endif
    }
}

/* to += factor * a, with a real factor */
static inline CODE __attribute__((always_inline)) void NAME(add_scaled)(
    NAME(line) *to, double factor, const NAME(line) *a)
{
    CDLA_UNROLL
    for (int u = 0; u < STRIP_VECTORS; u++) {
        to->re[u] += a->re[u] * factor;
#if COMPLEX
        to->im[u] += a->im[u] * factor;
#endif
    }
}

/* to -= z * a */
static inline CODE __attribute__((always_inline)) void NAME(subtract_product)(
    NAME(line) *to, NAME(number) z, const NAME(line) *a)
{
    CDLA_UNROLL
    for (int u = 0; u < STRIP_VECTORS; u++) {
#if COMPLEX
        const NAME(vec) re = a->re[u], im = a->im[u];
        to->re[u] = to->re[u] - re * z.re + im * z.im;
        to->im[u] = to->im[u] - re * z.im - im * z.re;
#else
        to->re[u] -= a->re[u] * z.re;
#endif
    }
}

/* to *= factor, with a real factor */
static inline CODE __attribute__((always_inline)) void NAME(scale)(NAME(line) *to, double factor)
{
    CDLA_UNROLL
    for (int u = 0; u < STRIP_VECTORS; u++) {
        to->re[u] *= factor;
#if COMPLEX
        to->im[u] *= factor;
#endif
    }
}

/* to /= nodes[i] - nodes[j]; a true division, so that exact quotients stay exact */
static inline CODE __attribute__((always_inline)) void NAME(divide)(
    NAME(line) *to, const double *nodes, ptrdiff_t i, ptrdiff_t j)
{
    const NAME(number) x = NAME(node)(nodes, i), y = NAME(node)(nodes, j);
    const double re = x.re - y.re;
#if COMPLEX
    const double im = x.im - y.im, modulus = re * re + im * im;
#endif
    CDLA_UNROLL
    for (int u = 0; u < STRIP_VECTORS; u++) {
#if COMPLEX
        const NAME(vec) a = to->re[u], b = to->im[u];
        to->re[u] = (a * re + b * im) / modulus;
        to->im[u] = (b * re - a * im) / modulus;
#else
        to->re[u] /= re;
#endif
    }
}

/* Divided differences, then Newton's basis into the wanted one. */
static CODE void NAME(interpolate)(ptrdiff_t k, const double *nodes, NAME(line) *x, int chebyshev)
{
    for (ptrdiff_t level = 0; level < k - 1; level++) {
        NAME(line) high = x[k - 1];
        for (ptrdiff_t i = k - 1; i > level; i--) {
            const NAME(line) low = x[i - 1];
            NAME(subtract)(&high, &high, &low);
            NAME(divide)(&high, nodes, i, i - level - 1);
            x[i] = high;
            high = low;
        }
    }
    for (ptrdiff_t level = k - 2; level >= 0; level--) {
        const NAME(number) node = NAME(node)(nodes, level);
        NAME(line) here = x[level];
        for (ptrdiff_t i = level; i < k - 1; i++) {
            const NAME(line) next = x[i + 1];
            if (chebyshev && i >= level + 2)
                NAME(scale)(&here, 0.5);
            if (chebyshev && i + 2 < k)
                NAME(add_scaled)(&here, 0.5, &x[i + 2]);
            NAME(subtract_product)(&here, node, &next);
            x[i] = here;
            here = next;
        }
        if (chebyshev && k - 1 >= level + 2)
            NAME(scale)(&x[k - 1], 0.5);
    }
}

/* The transposed factors of `interpolate`, in the opposite order. */
static CODE void NAME(transposed)(ptrdiff_t k, const double *nodes, NAME(line) *x, int chebyshev)
{
    for (ptrdiff_t level = 0; level < k - 1; level++) {
        const NAME(number) node = NAME(node)(nodes, level);
        NAME(line) here = x[k - 1];
        for (ptrdiff_t i = k - 1; i > level; i--) {
            const NAME(line) before = x[i - 1];
            if (chebyshev && i >= level + 2) {
                NAME(scale)(&here, 0.5);
                NAME(add_scaled)(&here, 0.5, &x[i - 2]);
            }
            NAME(subtract_product)(&here, node, &before);
            x[i] = here;
            here = before;
        }
    }
    for (ptrdiff_t level = k - 2; level >= 0; level--) {
        NAME(line) here = x[level];
        for (ptrdiff_t i = level; i < k - 1; i++) {
            NAME(line) next = x[i + 1];
            NAME(divide)(&next, nodes, i + 1, i - level);
            NAME(subtract)(&x[i], &here, &next);
            here = next;
        }
        x[k - 1] = here;
    }
}

/* x (k, width) in place; complex data interleaved. Returns 0, or -1 if there is no memory. */
static CODE int NAME(solve)(ptrdiff_t k, ptrdiff_t width, const double *nodes, double *x,
                            int transpose, int chebyshev)
{
    char *memory = (char *)malloc((size_t)k * sizeof(NAME(line)) + CDLA_LINE);
    if (!memory)
        return -1;
    NAME(line) *scratch =
        (NAME(line) *)(memory + (CDLA_LINE - (uintptr_t)memory % CDLA_LINE) % CDLA_LINE);
    const ptrdiff_t parts = COMPLEX ? 2 : 1;
    for (ptrdiff_t first = 0; first < width; first += STRIP) {
        const ptrdiff_t columns = width - first < STRIP ? width - first : STRIP;
        for (ptrdiff_t i = 0; i < k; i++) {
            const double *from = x + (i * width + first) * parts;
            double *line = (double *)&scratch[i];
#if COMPLEX
            for (ptrdiff_t c = 0; c < columns; c++) {
                line[c] = from[2 * c];
                line[STRIP + c] = from[2 * c + 1];
            }
            for (ptrdiff_t c = columns; c < STRIP; c++)
                line[c] = line[STRIP + c] = 0;
#else
            memcpy(line, from, (size_t)columns * sizeof(double));
            memset(line + columns, 0, (size_t)(STRIP - columns) * sizeof(double));
#endif
        }
        if (transpose)
            NAME(transposed)(k, nodes, scratch, chebyshev);
        else
            NAME(interpolate)(k, nodes, scratch, chebyshev);
        for (ptrdiff_t i = 0; i < k; i++) {
            double *to = x + (i * width + first) * parts;
            const double *line = (const double *)&scratch[i];
#if COMPLEX
            for (ptrdiff_t c = 0; c < columns; c++) {
                to[2 * c] = line[c];
                to[2 * c + 1] = line[STRIP + c];
            }
#else
            memcpy(to, line, (size_t)columns * sizeof(double));
#endif
        }
    }
    free(memory);
    return 0;
}

#undef LANES
#undef STRIP
#undef VECTOR_BYTES
#undef STRIP_VECTORS
#undef COMPLEX
#undef CODE
#undef NAME
