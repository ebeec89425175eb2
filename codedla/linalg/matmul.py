"""The coded matrix product."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from codedla.blocks import Split
from codedla.engine.report import Report
from codedla.engine.round import Pool, Progress
from codedla.linalg.exact import runner
from codedla.linalg.from_files import check_encode, mapped, recipe_encoder
from codedla.linalg.operands import as_operand, plan_product
from codedla.linalg.product import Product
from codedla.linalg.stream import panel_rows, run_streamed

__all__ = ["matmul"]


def matmul(
    A: ArrayLike,
    B: ArrayLike,
    *,
    pool: Pool,
    code: str = "auto",
    blocks: int | tuple[int, ...] | None = None,
    tolerate: int | None = None,
    nodes: str | None = None,
    tolerance: float | None = None,
    memory: float | None = None,
    speculate: bool = False,
    encode: str = "master",
    out: NDArray[Any] | None = None,
    verify: str = "auto",
    return_report: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> NDArray[Any] | tuple[NDArray[Any], Report]:
    r"""Multiply two matrices on a pool; the slowest workers are not waited for.

    ``A`` is cut into ``m`` row blocks, ``B`` into ``n`` column blocks; worker ``i`` multiplies the
    shares

    .. math:: \tilde A_i = \sum_u G^A_{iu} A_u, \qquad \tilde B_i = \sum_v G^B_{iv} B_v

    and the master recovers all ``A_u B_v`` from any threshold of the replies.

    Parameters
    ----------
    A : array_like or scipy.sparse (M, L)
        bool, integer, float16/32/64 or complex64/128, any memory order; never modified.
    B : array_like or scipy.sparse (L, N)
    pool : Pool
        A :class:`SerialPool`, :class:`SimulatedPool` or :class:`MPIPool`.
    code : str
        A name of ``codedla codes``, or ``"auto"``.
    blocks : int, (m, n) or (m, p, n), optional
        Numbers of row blocks of A, inner blocks, and column blocks of B.
    tolerate : int, optional
        Workers that may be late or lost without delay; when more are lost, others compute their
        shares. Default: 0 with one or two workers, 1 with three to five, else 2; with ``blocks``,
        as many as the workers allow.
    nodes : str, optional
        Evaluation points, for codes that have a choice.
    tolerance : float, optional
        Largest accepted ``alpha * eps`` (default 1e-9, single precision 1e-3); above it one more
        reply is waited for, and if there is none left a :class:`CodedlaWarning` says so.
    memory : float, optional
        Bytes that one worker's shares and replies may take.
    speculate : bool
        Give shares of late workers to idle ones, too, where more are late than the code tolerates;
        the first reply counts. The code ``"speculative"`` relies on this alone.
    encode : {"master", "workers"}
        "workers": they read the operands from their files and encode them themselves, and the
        master sends a few hundred bytes. A and B are memory maps (``numpy.load(path,
        mmap_mode="r")``) or contiguous HDF5 datasets of the dtype that is computed with, in files
        that all hosts see under the same path. The master reads them once, for their size and
        for NaN, and again to check replies, which ``verify="auto"`` does not do then. A worker
        that cannot read a file counts as lost.
    out : ndarray (M, N), optional
        Receives the product; may be a memory map.
    verify : {"auto", "off", "freivalds", "locate", "spares"}
        "freivalds": check the product with a random projection, O(n^2). "locate": check every
        reply in this way, go on without workers that answer wrongly (``report.wrong``), and check
        the product, too. "spares": compare the replies with each other, not with the operands:
        half of the ``tolerate`` spare replies are waited for, and if they do not fit together all,
        which name one wrong worker for every two of them. "auto": "locate" where that is predicted
        to cost less than 5 % of the run, else "off".
    return_report : bool
        Return ``(C, report)``.
    timeout : float, optional
        Seconds after which the product fails with :class:`NotDecodable`.
    progress : callable, optional
        ``progress(done, needed, total)`` after every reply.

    Returns
    -------
    C : ndarray (M, N)
        Dense, of NumPy's result dtype. Integers are exact.
    report : Report
        Only with ``return_report``.

    Raises
    ------
    UsageError
        Operands or options break a rule; nothing was computed.
    NotDecodable
        No worker is left, or the time-out passed.
    WorkerError
        A worker's task raised.
    VerificationFailed
        The product did not pass the check.

    References
    ----------
    Q. Yu, M. Maddah-Ali, S. Avestimehr, "Polynomial codes: an optimal design for high-dimensional
    coded matrix multiplication", arXiv:1705.10464.
    """
    verify = check_encode(encode, verify)
    if encode == "workers":
        A, B = mapped(A, "A"), mapped(B, "B")
    a, b = as_operand(A, "A"), as_operand(B, "B")
    plan = plan_product(
        a,
        b,
        pool,
        operation="matmul",
        code=code,
        blocks=blocks,
        tolerate=tolerate,
        nodes=nodes,
        tolerance=tolerance,
        memory=memory,
        speculate=speculate,
    )
    product = Product(plan, pool)
    if encode == "workers":
        grid, (rows, inner, cols) = plan.grid, plan.shape
        between = Split(inner, grid.p)
        product.encoder_a = recipe_encoder(a, "A", plan, Split(rows, grid.m), between)
        product.encoder_b = recipe_encoder(b, "B", plan, between, Split(cols, grid.n))
    # Panels would be recipes of as many files' parts; without the sending there is little to hide.
    height = plan.shape[0] if encode == "workers" else panel_rows(product, verify)
    if height < plan.shape[0]:
        result, report = run_streamed(
            product, a, b, height, out=out, verify=verify, timeout=timeout, progress=progress
        )
    else:
        result, report = runner(plan)(
            product, a, b, out=out, verify=verify, timeout=timeout, progress=progress
        )
    return (result, report) if return_report else result
