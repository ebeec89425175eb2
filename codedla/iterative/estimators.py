r"""Estimators in the manner of scikit-learn whose sums over the data are coded.

They need the package scikit-learn (``pip install 'codedla[learn]'``).

:class:`CodedLogisticRegression` minimizes :math:`\sum_i w_i \ell_i + \|W\|^2 / (2 C)` by L-BFGS,
:class:`CodedRidge` :math:`\sum_i w_i (y_i - x_i^T v - b)^2 + \alpha \|v\|^2` by conjugate
gradients; every step is a round of :class:`~codedla.CodedGradient`. With an exact scheme the model
is the one that scikit-learn finds, whichever workers are late or lost.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from codedla.engine.round import Pool
from codedla.errors import UsageError
from codedla.iterative.gradient import CodedGradient

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise UsageError(
        "estimators need the package scikit-learn; it is not installed; pip install "
        "'codedla[learn]'"
    ) from error

__all__ = ["CodedLogisticRegression", "CodedRidge"]

Array = NDArray[Any]


class _Coded(BaseEstimator):  # type: ignore[misc]
    """What both have in common: where the sums are computed."""

    n_workers: int
    scheme: str
    stragglers: int
    pool: Pool | None

    def __sklearn_clone__(self) -> Any:
        # A pool is a place, not a value: clones compute on the same one.
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @contextlib.contextmanager
    def _gradient(self, function: Callable[..., Any], data: tuple[Any, ...]) -> Iterator[Any]:
        """Lend a coded gradient, on a pool of this process if none was given."""
        from codedla.pools.serial import SerialPool

        with contextlib.ExitStack() as stack:
            pool = self.pool
            if pool is None:
                pool = stack.enter_context(SerialPool(self.n_workers))
            cg = CodedGradient(
                function, data, pool=pool, scheme=self.scheme, stragglers=self.stragglers
            )
            yield stack.enter_context(cg)
            self.stragglers_ = dict(cg.stragglers)


class CodedLogisticRegression(ClassifierMixin, _Coded):  # type: ignore[misc]
    """Multinomial logistic regression.

    Parameters
    ----------
    C : float
        Inverse of the regularization's strength.
    fit_intercept : bool
    max_iter : int
        Most steps of L-BFGS.
    tol : float
        Largest entry of the gradient, per row of data, at the end.
    n_workers : int
        Of the pool in this process that is used without ``pool``.
    scheme, stragglers
        As of :class:`codedla.CodedGradient`.
    pool : Pool, optional
        Where to compute; kept by clones.

    Attributes
    ----------
    classes_ : ndarray (classes,)
    coef_ : ndarray (classes, features); (1, features) for two classes
    intercept_ : ndarray (classes,) or (1,)
    n_iter_ : int
    n_features_in_ : int
    stragglers_ : dict of int to int
        Ranks that were not waited for, and in how many rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from codedla import CodedLogisticRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> CodedLogisticRegression().fit(X, [0, 0, 1, 1]).predict([[0.5], [2.5]]).tolist()
    [0, 1]
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-6,
        n_workers: int = 4,
        scheme: str = "cyclic",
        stragglers: int = 1,
        pool: Pool | None = None,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.n_workers = n_workers
        self.scheme = scheme
        self.stragglers = stragglers
        self.pool = pool

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CodedLogisticRegression:
        """Fit the model.

        Parameters
        ----------
        X : array_like or scipy.sparse (rows, features)
        y : array_like (rows,)
            Labels.
        sample_weight : array_like (rows,), optional

        Returns
        -------
        CodedLogisticRegression

        Raises
        ------
        ValueError
            Not finite, of different lengths, continuous labels, or one class only.
        NotDecodable, WorkerError
            As by :class:`codedla.CodedGradient`.
        """
        from scipy.optimize import minimize

        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs at least 2 classes; got one class, {self.classes_[0]!r}; give "
                "rows of others"
            )
        columns = len(self.classes_) if len(self.classes_) > 2 else 1
        features = X.shape[1]
        rows = float(weights.sum())

        def penalized(theta: Array) -> tuple[float, Array]:
            loss, slope = cg(theta.reshape(features + 1, columns))
            if not self.fit_intercept:
                slope[-1] = 0.0
            matrix = theta.reshape(features + 1, columns)[:-1]
            slope[:-1] += matrix / self.C
            return (loss + 0.5 / self.C * float((matrix**2).sum())) / rows, slope.ravel() / rows

        with self._gradient(_cross_entropy, (X, labels, weights)) as cg:
            start = np.zeros((features + 1) * columns)
            found = minimize(
                penalized,
                start,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": self.max_iter, "gtol": self.tol, "ftol": 64 * 2.0**-52},
            )
        if found.status == 1:
            warnings.warn(
                f"L-BFGS did not converge in {self.max_iter} steps; raise max_iter or scale X",
                ConvergenceWarning,
                stacklevel=2,
            )
        matrix = found.x.reshape(features + 1, columns).T
        self.coef_, self.intercept_ = matrix[:, :-1].copy(), matrix[:, -1].copy()
        self.n_iter_ = max(1, int(found.nit))
        return self

    def decision_function(self, X: Any) -> Array:
        """Return scores, (rows, classes); (rows,) for two classes."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the classes, (rows, classes)."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        return likely / likely.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> Array:
        """Return the likeliest classes, (rows,)."""
        scores = self.decision_function(X)
        places = (scores > 0).astype(int) if scores.ndim == 1 else np.argmax(scores, axis=1)
        return self.classes_[places]


class CodedRidge(RegressorMixin, _Coded):  # type: ignore[misc]
    """Least squares with Tikhonov regularization.

    Parameters
    ----------
    alpha : float
        Strength of the regularization.
    fit_intercept : bool
    max_iter : int, optional
        Most steps; ten for every unknown by default.
    tol : float
        Relative residual of the normal equations at the end.
    n_workers : int
        Of the pool in this process that is used without ``pool``.
    scheme, stragglers
        As of :class:`codedla.CodedGradient`.
    pool : Pool, optional
        Where to compute; kept by clones.

    Attributes
    ----------
    coef_ : ndarray (features,) or (targets, features)
    intercept_ : float or ndarray (targets,)
    n_iter_ : int
    n_features_in_ : int
    stragglers_ : dict of int to int
        Ranks that were not waited for, and in how many rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from codedla import CodedRidge
    >>> X = np.arange(8.0).reshape(4, 2) ** 2
    >>> model = CodedRidge(alpha=1e-9).fit(X, X @ [2.0, -1.0] + 3.0)
    >>> model.coef_.round(3).tolist(), round(float(model.intercept_), 3)
    ([2.0, -1.0], 3.0)
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-12,
        n_workers: int = 4,
        scheme: str = "cyclic",
        stragglers: int = 1,
        pool: Pool | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.n_workers = n_workers
        self.scheme = scheme
        self.stragglers = stragglers
        self.pool = pool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CodedRidge:
        """Fit the model.

        Parameters
        ----------
        X : array_like or scipy.sparse (rows, features)
        y : array_like (rows,) or (rows, targets)
        sample_weight : array_like (rows,), optional

        Returns
        -------
        CodedRidge

        Raises
        ------
        ValueError
            Not finite, or of different lengths.
        NotDecodable, WorkerError
            As by :class:`codedla.CodedGradient`.
        """
        from scipy.sparse.linalg import LinearOperator, cg

        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, multi_output=True, y_numeric=True
        )
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        targets = np.asarray(y, dtype=np.float64).reshape(X.shape[0], -1)
        middle, level = np.zeros(X.shape[1]), np.zeros(targets.shape[1])
        if self.fit_intercept:
            middle, level = weights @ X / weights.sum(), weights @ targets / weights.sum()
        targets = targets - level
        # Entries of a sparse matrix stay zero; what centring does is put into the products.
        sparse, total = sp.issparse(X), float(weights.sum())
        X = X if sparse else X - middle
        shape = (X.shape[1], targets.shape[1])

        with self._gradient(_squares, (X, targets, weights)) as gradient:
            right = -gradient(np.zeros(shape))[1]

            def normal(v: Array) -> Array:
                v = v.reshape(shape)
                product = gradient(v)[1] + right
                if sparse:
                    product -= total * np.outer(middle, middle @ v)
                return (product + self.alpha * v).ravel()

            steps: list[int] = []
            found, failed = cg(
                LinearOperator((right.size, right.size), matvec=normal, dtype=np.float64),
                right.ravel(),
                rtol=self.tol,
                maxiter=self.max_iter,
                callback=lambda _: steps.append(1),
            )
        if failed:
            warnings.warn(
                f"conjugate gradients did not converge in {len(steps)} steps; raise alpha or "
                "max_iter, or scale X",
                ConvergenceWarning,
                stacklevel=2,
            )
        matrix = found.reshape(shape).T
        intercept = level - matrix @ middle
        one = np.ndim(y) == 1
        self.coef_ = matrix[0] if one else matrix
        self.intercept_ = float(intercept[0]) if one else intercept
        self.n_iter_ = max(1, len(steps))
        return self

    def predict(self, X: Any) -> Array:
        """Return the fitted values, (rows,) or (rows, targets)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return X @ self.coef_.T + self.intercept_


# -- on the workers --------------------------------------------------------------------------------


def _cross_entropy(theta: Array, X: Any, labels: Array, weights: Array) -> tuple[float, Array]:
    """Return the weighted cross-entropy of some rows and its gradient, (features + 1, columns).

    The last row of ``theta`` are the intercepts; one column means two classes, 0 and the scores.
    """
    scores = X @ theta[:-1] + theta[-1]
    if theta.shape[1] == 1:
        scores = np.column_stack([np.zeros(len(scores)), scores])
    scores -= scores.max(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    right = scores[rows, labels]
    likely = np.exp(scores)
    sums = likely.sum(axis=1)
    loss = float(weights @ (np.log(sums) - right))
    likely /= sums[:, None]
    likely[rows, labels] -= 1.0
    delta = weights[:, None] * likely[:, -theta.shape[1] :]
    return loss, np.vstack([X.T @ delta, delta.sum(axis=0)])


def _squares(theta: Array, X: Any, targets: Array, weights: Array) -> tuple[float, Array]:
    """Return half the weighted squares of some rows and their gradient, (features, targets)."""
    rest = X @ theta - targets
    heavy = weights[:, None] * rest
    return 0.5 * float((heavy * rest).sum()), X.T @ heavy
