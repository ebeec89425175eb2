"""Kernels on blocks: combine, combine_wide, combine_mod, fold, stream_copy.

Nothing is checked here; ``codedla.kernels`` is the door. Blocks are aligned arrays of one shape
and one type (float32, float64, complex64, complex128), 1-D or 2-D, with a contiguous last axis.
"""
from libc.stdlib cimport free, malloc

cimport numpy as cnp

cnp.import_array()

cdef extern from "blocks.h" nogil:
    enum:
        CDLA_DOUBLE
        CDLA_SINGLE
        CDLA_WIDE
    int cdla_best_isa()
    int cdla_combine(
        int isa, int precision, ptrdiff_t n_out, ptrdiff_t k, const double *W, int is_complex,
        const char **ins, const ptrdiff_t *in_strides, char **outs,
        const ptrdiff_t *out_strides, ptrdiff_t rows, ptrdiff_t n, int accumulate, int stream,
        double modulus)
    void cdla_fold(
        int isa, int single, ptrdiff_t s, const double *w, int is_complex, const char *block,
        ptrdiff_t block_stride, char **accs, const ptrdiff_t *acc_strides, ptrdiff_t rows,
        ptrdiff_t n)
    void cdla_stream_copy(
        int isa, int single, const char *from_, ptrdiff_t from_stride, char *to,
        ptrdiff_t to_stride, ptrdiff_t rows, ptrdiff_t n)

# Outputs that fit a second-level cache are likely to be read from it soon; larger ones would only
# push the inputs out. Short rows are mostly partial lines, which streaming stores handle badly.
cdef enum:
    STREAM_BYTES = 2 * 1024 * 1024
    STREAM_ROW_BYTES = 2048


cdef struct Shape:
    int single          # float or float complex
    int is_complex      # of the blocks
    Py_ssize_t rows
    Py_ssize_t reals    # real numbers in one row of the chosen columns
    Py_ssize_t offset   # bytes from the first column to the first chosen one


cdef Shape shape_of(cnp.ndarray block, Py_ssize_t first, Py_ssize_t last) noexcept:
    cdef Shape shape
    cdef int kind = cnp.PyArray_TYPE(block)
    shape.single = kind == cnp.NPY_FLOAT or kind == cnp.NPY_CFLOAT
    shape.is_complex = kind == cnp.NPY_CFLOAT or kind == cnp.NPY_CDOUBLE
    shape.rows = cnp.PyArray_DIM(block, 0) if cnp.PyArray_NDIM(block) == 2 else 1
    shape.reals = (last - first) * (2 if shape.is_complex else 1)
    shape.offset = first * cnp.PyArray_ITEMSIZE(block)
    return shape


cdef void locate(
    cnp.ndarray block, Py_ssize_t offset, char **pointer, ptrdiff_t *stride
) noexcept:
    """First byte of the chosen columns and bytes from one row to the next."""
    pointer[0] = <char *>cnp.PyArray_DATA(block) + offset
    stride[0] = cnp.PyArray_STRIDE(block, 0) if cnp.PyArray_NDIM(block) == 2 else 0


cdef class Pointers:
    """Addresses and row strides of a list of blocks."""

    cdef char **address
    cdef ptrdiff_t *stride

    def __cinit__(self, list blocks, Py_ssize_t offset):
        cdef Py_ssize_t i, n = len(blocks)
        self.address = <char **>malloc((n + 1) * sizeof(char *))
        self.stride = <ptrdiff_t *>malloc((n + 1) * sizeof(ptrdiff_t))
        if self.address == NULL or self.stride == NULL:
            raise MemoryError("no memory for the addresses of the blocks")
        for i in range(n):
            locate(blocks[i], offset, &self.address[i], &self.stride[i])

    def __dealloc__(self):
        free(self.address)
        free(self.stride)


def best_isa():
    """Number of the best instruction set here: 0 baseline, 1 AVX2, 2 AVX-512."""
    return cdla_best_isa()


def addresses(list blocks):
    """Address of the first element of every block."""
    return [<size_t>cnp.PyArray_DATA(<cnp.ndarray?>block) for block in blocks]


cdef int run_combine(
    cnp.ndarray W, list ins, list outs, bint accumulate, int isa, Py_ssize_t first,
    Py_ssize_t last, bint wide,
) except -1:
    cdef Py_ssize_t n_out = len(outs), k = len(ins)
    if n_out == 0:
        return 0
    cdef Shape shape = shape_of(outs[0], first, last)
    cdef Pointers source = Pointers(ins, shape.offset)
    cdef Pointers target = Pointers(outs, shape.offset)
    cdef const double *weights = <const double *>cnp.PyArray_DATA(W)
    cdef int complex_weights = cnp.PyArray_TYPE(W) == cnp.NPY_CDOUBLE
    cdef Py_ssize_t row_bytes = shape.reals * (4 if shape.single else 8)
    cdef int stream = (
        row_bytes >= STREAM_ROW_BYTES and n_out * shape.rows * row_bytes > STREAM_BYTES
    )
    cdef int precision = CDLA_DOUBLE
    if shape.single:
        precision = CDLA_WIDE if wide else CDLA_SINGLE
    cdef int failed
    with nogil:
        failed = cdla_combine(
            isa, precision, n_out, k, weights, complex_weights, <const char **>source.address,
            source.stride, target.address, target.stride, shape.rows, shape.reals, accumulate,
            stream, 0)
    if failed:
        raise MemoryError(f"no memory to pack {n_out} x {k} weights and a tile of {k} blocks")
    return 0


def combine(
    cnp.ndarray W,          # IN  (n_out, n_in) float64 or complex128, C order
    list ins,               # IN
    list outs,              # OUT, INOUT when accumulating
    bint accumulate,
    int isa,
    Py_ssize_t first,
    Py_ssize_t last,
):
    """outs[i] (+)= sum_j W[i, j] * ins[j] on the columns first:last."""
    run_combine(W, ins, outs, accumulate, isa, first, last, False)


def combine_wide(
    cnp.ndarray W,          # IN  (n_out, n_in) float64 or complex128, C order
    list ins,               # IN
    list outs,              # OUT, INOUT when accumulating
    bint accumulate,
    int isa,
    Py_ssize_t first,
    Py_ssize_t last,
):
    """As combine, with sums in double precision whatever the blocks hold."""
    run_combine(W, ins, outs, accumulate, isa, first, last, True)


def combine_mod(
    cnp.ndarray W,          # IN  (n_out, n_in) float64, C order
    list ins,               # IN  float64
    list outs,              # OUT, INOUT when accumulating
    double p,
    bint accumulate,
    int isa,
    Py_ssize_t first,
    Py_ssize_t last,
):
    """As combine, and outputs are reduced to balanced residues modulo p while they are near."""
    cdef Py_ssize_t n_out = len(outs), k = len(ins)
    if n_out == 0:
        return
    cdef Shape shape = shape_of(outs[0], first, last)
    cdef Pointers source = Pointers(ins, shape.offset)
    cdef Pointers target = Pointers(outs, shape.offset)
    cdef const double *weights = <const double *>cnp.PyArray_DATA(W)
    cdef int failed
    with nogil:
        # Streaming stores would send the sums away before they are reduced.
        failed = cdla_combine(
            isa, CDLA_DOUBLE, n_out, k, weights, 0, <const char **>source.address, source.stride,
            target.address, target.stride, shape.rows, shape.reals, accumulate, 0, p)
    if failed:
        raise MemoryError(f"no memory to pack {n_out} x {k} weights and a tile of {k} blocks")


def fold(
    list accs,              # INOUT
    cnp.ndarray w,          # IN  (s,) float64 or complex128
    cnp.ndarray block,      # IN
    int isa,
    Py_ssize_t first,
    Py_ssize_t last,
):
    """accs[r] += w[r] * block on the columns first:last."""
    cdef Py_ssize_t s = len(accs)
    cdef Shape shape = shape_of(block, first, last)
    cdef Pointers target = Pointers(accs, shape.offset)
    cdef const double *weights = <const double *>cnp.PyArray_DATA(w)
    cdef int complex_weights = cnp.PyArray_TYPE(w) == cnp.NPY_CDOUBLE
    cdef char *source
    cdef ptrdiff_t stride
    locate(block, shape.offset, &source, &stride)
    with nogil:
        cdla_fold(isa, shape.single, s, weights, complex_weights, source, stride, target.address,
                  target.stride, shape.rows, shape.reals)


def stream_copy(
    list ins,               # IN
    list outs,              # OUT
    int isa,
    Py_ssize_t first,
    Py_ssize_t last,
):
    """outs[i] = ins[i] on the columns first:last, with streaming stores."""
    cdef Py_ssize_t i, n = len(outs)
    if n == 0:
        return
    cdef Shape shape = shape_of(outs[0], first, last)
    cdef Pointers source = Pointers(ins, shape.offset)
    cdef Pointers target = Pointers(outs, shape.offset)
    with nogil:
        for i in range(n):
            cdla_stream_copy(isa, shape.single, source.address[i], source.stride[i],
                             target.address[i], target.stride[i], shape.rows, shape.reals)
