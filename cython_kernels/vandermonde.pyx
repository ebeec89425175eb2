"""Kernels on Vandermonde systems: solve, inverse, barycentric weights, Leja order.

Nothing is checked here; ``codedla.vandermonde`` and ``codedla.kernels`` are the doors. Nodes are
C-ordered float64 or complex128.
"""
import numpy as np

cimport numpy as cnp
from libc.math cimport fabs, hypot

cnp.import_array()

ctypedef fused number:
    double
    double complex

cdef extern from "vandermonde.h" nogil:
    int cdla_vandermonde_solve(
        int isa, int is_complex, ptrdiff_t k, ptrdiff_t width, const double *nodes, double *x,
        int transpose, int chebyshev)


def vandermonde_solve(
    cnp.ndarray nodes,      # IN    (k,) float64 or complex128
    cnp.ndarray x,          # INOUT (k, width) float64 or complex128, C order
    bint transpose,
    bint chebyshev,
    int isa,
):
    """Solve in place; see the twin in codedla/_reference.py for the factors."""
    cdef Py_ssize_t k = cnp.PyArray_DIM(x, 0), width = cnp.PyArray_DIM(x, 1)
    cdef int is_complex = cnp.PyArray_TYPE(nodes) == cnp.NPY_CDOUBLE
    if k == 0 or width == 0:
        return
    if cnp.PyArray_TYPE(x) == cnp.NPY_CDOUBLE and not is_complex:
        width *= 2  # real nodes act on real and imaginary parts alike
    cdef const double *t = <const double *>cnp.PyArray_DATA(nodes)
    cdef double *data = <double *>cnp.PyArray_DATA(x)
    cdef int failed
    with nogil:
        failed = cdla_vandermonde_solve(isa, is_complex, k, width, t, data, transpose, chebyshev)
    if failed:
        raise MemoryError(f"no memory for a strip of {k} right-hand side lines")


cdef inline double modulus(number z) noexcept nogil:
    if number is double:
        return fabs(z)
    else:
        return hypot(z.real, z.imag)


cdef void weights_of(const number[::1] nodes, number[::1] weights) noexcept nogil:
    cdef Py_ssize_t i, j, k = nodes.shape[0]
    cdef number product
    for i in range(k):
        product = 1
        for j in range(k):
            if j != i:
                product = product * (nodes[i] - nodes[j])
        weights[i] = 1 / product


cdef void inverse_of(
    const number[::1] nodes,    # IN  (k,)
    number[::1] master,         # OUT (k + 1,) coefficients of prod_j (t - nodes[j])
    number[::1] weights,        # OUT (k,)
    number[:, ::1] inverse,     # OUT (k, k)
) noexcept nogil:
    cdef Py_ssize_t i, j, k = nodes.shape[0]
    for j in range(k + 1):
        master[j] = 0
    master[0] = 1
    for i in range(k):
        for j in range(i + 1, 0, -1):
            master[j] = master[j - 1] - nodes[i] * master[j]
        master[0] = -nodes[i] * master[0]
    weights_of(nodes, weights)
    for i in range(k):
        inverse[k - 1, i] = 1
    for j in range(k - 2, -1, -1):
        for i in range(k):
            inverse[j, i] = master[j + 1] + nodes[i] * inverse[j + 1, i]
    for j in range(k):
        for i in range(k):
            inverse[j, i] = inverse[j, i] * weights[i]


cdef void order_of(
    const number[::1] nodes,    # IN  (k,)
    double[::1] distance,       # OUT (k,) scratch
    cnp.intp_t[::1] order,      # OUT (k,)
) noexcept nogil:
    cdef Py_ssize_t i, position, chosen = 0, k = nodes.shape[0]
    cdef double largest = -1
    for i in range(k):
        distance[i] = 1
        if modulus(nodes[i]) > largest:
            largest = modulus(nodes[i])
            chosen = i
    for position in range(k):
        order[position] = chosen
        largest = 0
        for i in range(k):
            distance[i] = distance[i] * modulus(nodes[i] - nodes[chosen])
            largest = max(largest, distance[i])
        # Only ratios matter: rescaling keeps the products away from overflow and underflow.
        if largest > 0:
            for i in range(k):
                distance[i] = distance[i] / largest
        chosen = 0
        for i in range(k):
            if distance[i] > distance[chosen]:
                chosen = i


def barycentric_weights(nodes):
    """1 / prod_{j != i} (nodes[i] - nodes[j]), shape (k,)."""
    weights = np.empty(len(nodes), nodes.dtype)
    if nodes.dtype.kind == "c":
        weights_of[cnp.complex128_t](nodes, weights)
    else:
        weights_of[double](nodes, weights)
    return weights


def parker_traub_inverse(nodes):
    """Inverse of V[i, j] = nodes[i]**j, shape (k, k), by the Parker-Traub algorithm."""
    k = len(nodes)
    inverse = np.empty((k, k), nodes.dtype)
    if k == 0:
        return inverse
    master, weights = np.empty(k + 1, nodes.dtype), np.empty(k, nodes.dtype)
    if nodes.dtype.kind == "c":
        inverse_of[cnp.complex128_t](nodes, master, weights, inverse)
    else:
        inverse_of[double](nodes, master, weights, inverse)
    return inverse


def leja_order(nodes):
    """Indices of the nodes in Leja order, shape (k,); the lowest index wins a tie."""
    k = len(nodes)
    order, distance = np.empty(k, np.intp), np.empty(k)
    if k == 0:
        return order
    if nodes.dtype.kind == "c":
        order_of[cnp.complex128_t](nodes, distance, order)
    else:
        order_of[double](nodes, distance, order)
    return order
