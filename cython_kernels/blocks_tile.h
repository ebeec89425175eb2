/* Block kernels for one instruction set and one real type.
 *
 * Included once per combination by blocks.h, so there is no include guard. Expects
 *   REAL           float or double: what is computed in
 *   STORED         what the blocks hold: REAL, or float while REAL is double
 *   WIDE           1 if STORED is not REAL
 *   VECTOR_BYTES   bytes of one vector
 *   CHUNK_VECTORS  vectors of one chunk: the columns a micro kernel holds in registers
 *   PANEL_ROWS     largest number of real output rows of a micro kernel, 2 to 9
 *   CODE           attributes of every function (target instruction set)
 *   NAME(x)        x with a suffix of its own
 *   STREAM(p, v)   store a vector past the caches; p is aligned
 *
 * A complex weight is treated as two real rows, one for its real and one for its imaginary part;
 * both are applied to the interleaved data and joined when they leave the registers. One micro
 * kernel therefore serves all four types at the flops each of them needs.
 */
#define LANES ((ptrdiff_t)(VECTOR_BYTES / sizeof(REAL)))
#define CHUNK ((ptrdiff_t)(CHUNK_VECTORS * LANES))

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES)));
#if WIDE
#define STORED_BYTES (VECTOR_BYTES / 2)
#else
#define STORED_BYTES VECTOR_BYTES
#endif
typedef STORED NAME(narrow) __attribute__((vector_size(STORED_BYTES)));
typedef STORED NAME(loose) __attribute__((vector_size(STORED_BYTES), aligned(sizeof(STORED))));

/* Between the precision of the blocks and that of the sums; nothing where they are the same. */
static inline CODE NAME(vec) NAME(load)(const STORED *p)
{
#if WIDE
    return __builtin_convertvector(*(const NAME(loose) *)p, NAME(vec));
#else
    return *(const NAME(loose) *)p;
#endif
}
static inline CODE NAME(narrow) NAME(narrowed)(NAME(vec) v)
{
#if WIDE
    return __builtin_convertvector(v, NAME(narrow));
#else
    return v;
#endif
}
static inline CODE void NAME(store)(STORED *p, NAME(vec) v)
{
    *(NAME(loose) *)p = NAME(narrowed)(v);
}

/* i * v for interleaved complex data: (re, im) -> (-im, re). */
static inline CODE NAME(vec) NAME(times_i)(NAME(vec) v)
{
    NAME(vec) sign;
    for (ptrdiff_t lane = 0; lane < LANES; lane++)
        sign[lane] = lane % 2 ? (REAL)1 : (REAL)-1;
#if VECTOR_BYTES == 64
    return CDLA_SWAP(v, REAL, 64) * sign;
#elif VECTOR_BYTES == 32
    return CDLA_SWAP(v, REAL, 32) * sign;
#else
    return CDLA_SWAP(v, REAL, 16) * sign;
#endif
}

#if !WIDE
typedef __typeof__((NAME(vec)){0} > (NAME(vec)){0}) NAME(mask);

/* n integers, below 2^53 - 2 p in magnitude, become balanced residues modulo p: -p/2 < x < p/2. */
static CODE void NAME(reduce)(REAL *q, ptrdiff_t n, double modulus)
{
    const REAL p = (REAL)modulus, inverse = 1 / p, high = (REAL)(int64_t)(modulus / 2);
    const REAL low = high - p + 1;
    const REAL round = (REAL)6755399441055744.0; /* 1.5 * 2^52: what is added has no fraction */
    const NAME(vec) zero = {0}, period = zero + p, most = zero + high, least = zero + low;
    /* Quotients beyond 2^51 are rounded to even numbers first. */
    for (int passes = modulus < 4 ? 2 : 1; passes; passes--) {
        ptrdiff_t t = 0;
        for (; t + LANES <= n; t += LANES) {
            NAME(vec) v = NAME(load)(q + t);
            v -= ((v * inverse + round) - round) * p;
            /* The quotient was rounded: residues next to p/2 may be on the other side. */
            v -= (NAME(vec))((NAME(mask))period & (v > most));
            v += (NAME(vec))((NAME(mask))period & (v < least));
            NAME(store)(q + t, v);
        }
        for (; t < n; t++) {
            REAL v = q[t];
            v -= ((v * inverse + round) - round) * p;
            q[t] = v > high ? v - p : v < low ? v + p : v;
        }
    }
}
#endif

/* One panel of `rows` real output rows, one chunk of columns, all k inputs.
 *
 * source: CDLA_DIRECT reads the chunk from the blocks, CDLA_PACKING does so and leaves a copy in
 * `packed` for the panels to come, CDLA_PACKED reads that copy. Blocks often start at the same
 * offset within a page and would fight for a few cache sets; the copy is contiguous.
 */
static inline CODE __attribute__((always_inline)) void NAME(micro)(
    const int rows, const int source, const int is_complex, ptrdiff_t k,
    const STORED *const *ins, ptrdiff_t t, REAL *packed, const REAL *weights, STORED *const *outs,
    int mode)
{
    NAME(vec) acc[PANEL_ROWS][CHUNK_VECTORS];
    CDLA_UNROLL
    for (int r = 0; r < rows; r++) {
        CDLA_UNROLL
        for (int c = 0; c < CHUNK_VECTORS; c++)
            acc[r][c] = (NAME(vec)){0};
    }
    for (ptrdiff_t j = 0; j < k; j++) {
        NAME(vec) b[CHUNK_VECTORS];
        if (source == CDLA_PACKED) {
            CDLA_UNROLL
            for (int c = 0; c < CHUNK_VECTORS; c++)
                b[c] = *(const NAME(vec) *)(packed + j * CHUNK + c * LANES);
        } else {
            const STORED *p = ins[j] + t;
            CDLA_UNROLL
            for (int c = 0; c < CHUNK_VECTORS; c++)
                b[c] = NAME(load)(p + c * LANES);
            if (source == CDLA_PACKING) {
                CDLA_UNROLL
                for (int c = 0; c < CHUNK_VECTORS; c++)
                    *(NAME(vec) *)(packed + j * CHUNK + c * LANES) = b[c];
            }
        }
        CDLA_UNROLL
        for (int r = 0; r < rows; r++) {
            const REAL w = weights[j * rows + r];
            CDLA_UNROLL
            for (int c = 0; c < CHUNK_VECTORS; c++)
                acc[r][c] += b[c] * w;
        }
    }
    const int step = is_complex ? 2 : 1;
    CDLA_UNROLL
    for (int r = 0; r < rows; r += step) {
        STORED *q = outs[r / step] + t;
        CDLA_UNROLL
        for (int c = 0; c < CHUNK_VECTORS; c++) {
            NAME(vec) v = acc[r][c];
            if (is_complex)
                v += NAME(times_i)(acc[r + 1][c]);
            if (mode == CDLA_STREAM)
                STREAM(q + c * LANES, NAME(narrowed)(v));
            else if (mode == CDLA_ADD)
                NAME(store)(q + c * LANES, NAME(load)(q + c * LANES) + v);
            else
                NAME(store)(q + c * LANES, v);
        }
    }
}

/* Cases beyond PANEL_ROWS are empty. */
#define CDLA_CASE(ROWS, SOURCE, COMPLEX)                                                          \
    case ROWS:                                                                                    \
        if (ROWS <= PANEL_ROWS)                                                                   \
            NAME(micro)(ROWS <= PANEL_ROWS ? ROWS : 2, SOURCE, COMPLEX, k, ins, t, packed,        \
                        weights, outs, mode);                                                     \
        break;

#define CDLA_PANEL(NAME_, SOURCE)                                                                 \
    static CODE __attribute__((noinline)) void NAME(NAME_)(                                       \
        int rows, int is_complex, ptrdiff_t k, const STORED *const *ins, ptrdiff_t t,             \
        REAL *packed, const REAL *weights, STORED *const *outs, int mode)                         \
    {                                                                                             \
        if (is_complex)                                                                           \
            switch (rows) {                                                                       \
                CDLA_CASE(2, SOURCE, 1)                                                           \
                CDLA_CASE(4, SOURCE, 1)                                                           \
                CDLA_CASE(6, SOURCE, 1)                                                           \
                CDLA_CASE(8, SOURCE, 1)                                                           \
            }                                                                                     \
        else                                                                                      \
            switch (rows) {                                                                       \
                CDLA_CASE(1, SOURCE, 0)                                                           \
                CDLA_CASE(2, SOURCE, 0)                                                           \
                CDLA_CASE(3, SOURCE, 0)                                                           \
                CDLA_CASE(4, SOURCE, 0)                                                           \
                CDLA_CASE(5, SOURCE, 0)                                                           \
                CDLA_CASE(6, SOURCE, 0)                                                           \
                CDLA_CASE(7, SOURCE, 0)                                                           \
                CDLA_CASE(8, SOURCE, 0)                                                           \
                CDLA_CASE(9, SOURCE, 0)                                                           \
            }                                                                                     \
    }

CDLA_PANEL(panel_direct, CDLA_DIRECT)
CDLA_PANEL(panel_packing, CDLA_PACKING)
CDLA_PANEL(panel_packed, CDLA_PACKED)

/* Weights and scratch of one combine call. */
typedef struct {
    ptrdiff_t k;          /* inputs */
    ptrdiff_t real_rows;  /* outputs, twice that for complex weights */
    int is_complex;
    int panels;
    double modulus;       /* outputs are reduced modulo this; 0: not at all */
    ptrdiff_t tile;       /* chunks of one tile */
    REAL *weights;        /* panel after panel, [input][row of the panel] */
    REAL *packed;         /* tile x k x CHUNK */
    STORED *edge;         /* outputs x CHUNK, for columns that do not fill a chunk */
    STORED **edge_outs;
} NAME(job);

/* First row of panel p: sizes differ by at most one row (one pair when complex). */
static inline CODE ptrdiff_t NAME(panel_start)(const NAME(job) *job, int p)
{
    ptrdiff_t unit = job->is_complex ? 2 : 1, units = job->real_rows / unit;
    return unit * (units * p / job->panels);
}

/* All panels on `chunks` chunks from column t on. */
static CODE void NAME(tile)(const NAME(job) *job, const STORED *const *ins,
                            STORED *const *outs, ptrdiff_t t, ptrdiff_t chunks, int mode)
{
    const ptrdiff_t step = job->is_complex ? 2 : 1;
    for (int p = 0; p < job->panels; p++) {
        const ptrdiff_t start = NAME(panel_start)(job, p);
        const int rows = (int)(NAME(panel_start)(job, p + 1) - start);
        const REAL *weights = job->weights + start * job->k;
        STORED *const *panel_outs = outs + start / step;
        REAL *packed = job->packed;
        for (ptrdiff_t c = 0; c < chunks; c++, packed += job->k * CHUNK) {
            const ptrdiff_t at = t + c * CHUNK;
            /* Each panel asks for its share of the next tile: memory works while we multiply. */
            for (ptrdiff_t j = job->k * p / job->panels; j < job->k * (p + 1) / job->panels; j++)
                CDLA_PREFETCH(ins[j] + at + chunks * CHUNK, CHUNK * sizeof(STORED));
            if (p > 0)
                NAME(panel_packed)(rows, job->is_complex, job->k, ins, at, packed, weights,
                                   panel_outs, mode);
            else if (job->panels > 1)
                NAME(panel_packing)(rows, job->is_complex, job->k, ins, at, packed, weights,
                                    panel_outs, mode);
            else
                NAME(panel_direct)(rows, job->is_complex, job->k, ins, at, packed, weights,
                                   panel_outs, mode);
        }
    }
#if !WIDE
    if (job->modulus > 0)
        for (ptrdiff_t i = 0; i < job->real_rows / step; i++)
            NAME(reduce)(outs[i] + t, chunks * CHUNK, job->modulus);
#endif
}

/* Fewer columns than a chunk: padded copies in, scratch out, then the columns that count. */
static CODE void NAME(edge)(const NAME(job) *job, const STORED *const *ins, STORED *const *outs,
                            ptrdiff_t t, ptrdiff_t width, int mode)
{
    const ptrdiff_t step = job->is_complex ? 2 : 1, n_out = job->real_rows / step;
    const size_t bytes = (size_t)width * sizeof(STORED);
    for (ptrdiff_t j = 0; j < job->k; j++) {
        REAL *line = job->packed + j * CHUNK;
        for (ptrdiff_t x = 0; x < width; x++)
            line[x] = ins[j][t + x];
        memset(line + width, 0, (size_t)(CHUNK - width) * sizeof(REAL));
    }
    if (mode == CDLA_ADD)
        for (ptrdiff_t i = 0; i < n_out; i++) {
            memset(job->edge_outs[i] + width, 0, CHUNK * sizeof(STORED) - bytes);
            memcpy(job->edge_outs[i], outs[i] + t, bytes);
        }
    for (int p = 0; p < job->panels; p++) {
        const ptrdiff_t start = NAME(panel_start)(job, p);
        const int rows = (int)(NAME(panel_start)(job, p + 1) - start);
        NAME(panel_packed)(rows, job->is_complex, job->k, ins, 0, job->packed,
                           job->weights + start * job->k, job->edge_outs + start / step, mode);
    }
    for (ptrdiff_t i = 0; i < n_out; i++) {
        memcpy(outs[i] + t, job->edge_outs[i], bytes);
#if !WIDE
        if (job->modulus > 0)
            NAME(reduce)(outs[i] + t, width, job->modulus);
#endif
    }
}

/* Columns before the first cache line that all outputs share, or -1 if they never line up. */
static CODE ptrdiff_t NAME(head)(STORED *const *outs, ptrdiff_t n_out, int is_complex)
{
    const uintptr_t offset = (uintptr_t)outs[0] % CDLA_LINE;
    for (ptrdiff_t i = 1; i < n_out; i++)
        if ((uintptr_t)outs[i] % CDLA_LINE != offset)
            return -1;
    const uintptr_t bytes = (CDLA_LINE - offset) % CDLA_LINE;
    const uintptr_t unit = is_complex ? 2 * sizeof(STORED) : sizeof(STORED);
    return bytes % unit ? -1 : (ptrdiff_t)(bytes / sizeof(STORED));
}

/* One row of n real columns of every block. */
static CODE void NAME(combine_row)(const NAME(job) *job, const STORED *const *ins,
                                   STORED *const *outs, ptrdiff_t n, int mode)
{
    const ptrdiff_t n_out = job->real_rows / (job->is_complex ? 2 : 1);
    ptrdiff_t t = 0;
    if (mode == CDLA_STREAM) {
        const ptrdiff_t head = NAME(head)(outs, n_out, job->is_complex);
        if (head < 0) {
            mode = CDLA_STORE;
        } else if (head > 0) {
            t = head < n ? head : n;
            for (ptrdiff_t at = 0; at < t; at += CHUNK)
                NAME(edge)(job, ins, outs, at, t - at < CHUNK ? t - at : CHUNK, CDLA_STORE);
        }
    }
    while (n - t >= CHUNK) {
        ptrdiff_t chunks = (n - t) / CHUNK;
        if (chunks > job->tile)
            chunks = job->tile;
        NAME(tile)(job, ins, outs, t, chunks, mode);
        t += chunks * CHUNK;
    }
    if (t < n)
        NAME(edge)(job, ins, outs, t, n - t, mode == CDLA_ADD ? CDLA_ADD : CDLA_STORE);
}

/* Weights (n_out, k), row by row and interleaved if complex, into panels. */
static CODE void NAME(pack_weights)(const NAME(job) *job, const double *W)
{
    REAL *to = job->weights;
    for (int p = 0; p < job->panels; p++) {
        const ptrdiff_t start = NAME(panel_start)(job, p), stop = NAME(panel_start)(job, p + 1);
        for (ptrdiff_t j = 0; j < job->k; j++)
            for (ptrdiff_t r = start; r < stop; r++)
                *to++ = (REAL)(job->is_complex
                                   ? W[2 * ((r / 2) * job->k + j) + r % 2]
                                   : W[r * job->k + j]);
    }
}

/* outs[i] (+)= sum_j W[i, j] ins[j] on `rows` rows of n real columns; strides in bytes.
 * Returns 0, or -1 if there is no memory. */
static CODE int NAME(combine)(ptrdiff_t n_out, ptrdiff_t k, const double *W, int is_complex,
                              const char **ins, const ptrdiff_t *in_strides, char **outs,
                              const ptrdiff_t *out_strides, ptrdiff_t rows, ptrdiff_t n,
                              int mode, double modulus)
{
    NAME(job) job;
    job.modulus = modulus;
    job.k = k;
    job.is_complex = is_complex;
    job.real_rows = is_complex ? 2 * n_out : n_out;
    const ptrdiff_t panel_rows = is_complex ? PANEL_ROWS / 2 * 2 : PANEL_ROWS;
    job.panels = (int)((job.real_rows + panel_rows - 1) / panel_rows);
    /* Write about CDLA_RUN bytes of an output at a time, but keep the inputs near. */
    job.tile = CDLA_RUN / (CHUNK * (ptrdiff_t)sizeof(STORED));
    while (job.tile > 1 && job.tile * k * CHUNK * (ptrdiff_t)sizeof(REAL) > CDLA_TILE_BYTES)
        job.tile /= 2;
    if (job.tile < 1)
        job.tile = 1;
    size_t sizes[4] = {
        (size_t)(job.real_rows * k) * sizeof(REAL),
        (size_t)(job.tile * k * CHUNK) * sizeof(REAL),
        (size_t)(n_out * CHUNK) * sizeof(STORED),
        (size_t)n_out * sizeof(STORED *),
    };
    size_t total = CDLA_LINE;
    for (int s = 0; s < 4; s++) {
        sizes[s] = (sizes[s] + CDLA_LINE - 1) / CDLA_LINE * CDLA_LINE;
        total += sizes[s];
    }
    char *memory = (char *)malloc(total);
    if (!memory)
        return -1;
    char *at = memory + (CDLA_LINE - (uintptr_t)memory % CDLA_LINE) % CDLA_LINE;
    job.weights = (REAL *)at;
    job.packed = (REAL *)(at += sizes[0]);
    job.edge = (STORED *)(at += sizes[1]);
    job.edge_outs = (STORED **)(at += sizes[2]);
    for (ptrdiff_t i = 0; i < n_out; i++)
        job.edge_outs[i] = job.edge + i * CHUNK;
    NAME(pack_weights)(&job, W);
    for (ptrdiff_t row = 0; row < rows; row++) {
        NAME(combine_row)(&job, (const STORED *const *)ins, (STORED *const *)outs, n, mode);
        for (ptrdiff_t j = 0; j < k; j++)
            ins[j] += in_strides[j];
        for (ptrdiff_t i = 0; i < n_out; i++)
            outs[i] += out_strides[i];
    }
    if (mode == CDLA_STREAM)
        CDLA_FENCE();
    free(memory);
    return 0;
}

#if !WIDE
/* accs[r] += w[r] * block: the block is read once for up to four accumulators. */
static inline CODE __attribute__((always_inline)) void NAME(fold_some)(
    const int some, const int is_complex, const double *w, const REAL *block, REAL *const *accs,
    ptrdiff_t n)
{
    const ptrdiff_t step = is_complex ? 2 : 1;
    ptrdiff_t t = 0;
    for (; t + LANES <= n; t += LANES) {
        const NAME(vec) b = NAME(load)(block + t);
        CDLA_UNROLL
        for (int r = 0; r < some; r++) {
            NAME(vec) a = NAME(load)(accs[r] + t) + b * (REAL)w[step * r];
            if (is_complex)
                a += NAME(times_i)(b) * (REAL)w[step * r + 1];
            NAME(store)(accs[r] + t, a);
        }
    }
    for (; t < n; t += step)
        for (int r = 0; r < some; r++) {
            const REAL re = (REAL)w[step * r], im = is_complex ? (REAL)w[step * r + 1] : 0;
            if (is_complex) {
                const REAL x = block[t], y = block[t + 1];
                accs[r][t] += re * x - im * y;
                accs[r][t + 1] += re * y + im * x;
            } else {
                accs[r][t] += re * block[t];
            }
        }
}

static CODE void NAME(fold)(ptrdiff_t s, const double *w, int is_complex, const char *block,
                            ptrdiff_t block_stride, char **accs, const ptrdiff_t *acc_strides,
                            ptrdiff_t rows, ptrdiff_t n)
{
    const ptrdiff_t step = is_complex ? 2 : 1;
    for (ptrdiff_t row = 0; row < rows; row++, block += block_stride) {
        const REAL *b = (const REAL *)block;
        for (ptrdiff_t r = 0; r < s; r += 4) {
            REAL *const *a = (REAL *const *)(accs + r);
            const double *wr = w + step * r;
            switch ((s - r < 4 ? s - r : 4) + (is_complex ? 10 : 0)) {
                case 1: NAME(fold_some)(1, 0, wr, b, a, n); break;
                case 2: NAME(fold_some)(2, 0, wr, b, a, n); break;
                case 3: NAME(fold_some)(3, 0, wr, b, a, n); break;
                case 4: NAME(fold_some)(4, 0, wr, b, a, n); break;
                case 11: NAME(fold_some)(1, 1, wr, b, a, n); break;
                case 12: NAME(fold_some)(2, 1, wr, b, a, n); break;
                case 13: NAME(fold_some)(3, 1, wr, b, a, n); break;
                case 14: NAME(fold_some)(4, 1, wr, b, a, n); break;
            }
        }
        for (ptrdiff_t r = 0; r < s; r++)
            accs[r] += acc_strides[r];
    }
}

/* n REALs from one buffer to another with streaming stores. */
static CODE void NAME(stream_row)(const REAL *from, REAL *to, ptrdiff_t n)
{
    ptrdiff_t t = 0;
    for (; t < n && (uintptr_t)(to + t) % CDLA_LINE; t++)
        to[t] = from[t];
    for (; t + 4 * LANES <= n; t += 4 * LANES) {
        NAME(vec) v[4];
        CDLA_UNROLL
        for (int c = 0; c < 4; c++)
            v[c] = NAME(load)(from + t + c * LANES);
        CDLA_UNROLL
        for (int c = 0; c < 4; c++)
            STREAM(to + t + c * LANES, v[c]);
    }
    for (; t < n; t++)
        to[t] = from[t];
}
#endif /* !WIDE */

#undef CDLA_CASE
#undef CDLA_PANEL
#undef LANES
#undef CHUNK
#undef REAL
#undef STORED
#undef STORED_BYTES
#undef WIDE
#undef VECTOR_BYTES
#undef CHUNK_VECTORS
#undef PANEL_ROWS
#undef CODE
#undef NAME
#undef STREAM
