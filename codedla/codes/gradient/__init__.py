"""Gradient codes: who computes the gradients of which parts of the data, and adds them how.

One family is one file; :func:`make_gradient_code` finds them by name.
"""

from __future__ import annotations

from typing import Any

from codedla.codes.gradient.base import GradientCode
from codedla.codes.gradient.cyclic import Cyclic
from codedla.codes.gradient.design import BlockDesign
from codedla.codes.gradient.fractional import FractionalRepetition
from codedla.codes.gradient.graph import RegularGraph
from codedla.codes.gradient.heterogeneous import Heterogeneous
from codedla.codes.gradient.plain import IgnoreStragglers, Uncoded
from codedla.codes.gradient.stochastic import StochasticBlock
from codedla.errors import UsageError

__all__ = ["SCHEMES", "GradientCode", "make_gradient_code"]

SCHEMES: dict[str, type[GradientCode]] = {
    family.scheme: family
    for family in (
        Cyclic,
        FractionalRepetition,
        Heterogeneous,
        RegularGraph,
        StochasticBlock,
        BlockDesign,
        Uncoded,
        IgnoreStragglers,
    )
}
"""The families by the name that users give."""


def make_gradient_code(
    scheme: str, n_workers: int, stragglers: int = 0, *, errors: int = 0, seed: int = 0, **more: Any
) -> GradientCode:
    """Return the code of a scheme.

    Parameters
    ----------
    scheme : str
        One of :data:`SCHEMES`.
    n_workers, stragglers, errors, seed
        As of :class:`GradientCode`.
    **more
        What only this family has, for instance ``speeds`` of "heterogeneous".

    Raises
    ------
    UsageError
        No such scheme, an argument it does not have, or numbers that it has no code for.
    """
    if scheme not in SCHEMES:
        known = ", ".join(map(repr, SCHEMES))
        raise UsageError(f"scheme must be one of {known}; got {scheme!r}; choose one")
    family = SCHEMES[scheme]
    unknown = sorted(set(more) - set(family.options))
    if unknown:
        has = ", ".join(family.options) or "none"
        raise UsageError(
            f"scheme {scheme!r} has these options of its own: {has}; got {', '.join(unknown)}; "
            "leave it out"
        )
    return family(n_workers, stragglers, errors=errors, seed=seed, **more)
