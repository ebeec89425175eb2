"""Code families: mathematics only, one family per file; importing the package registers all."""

from codedla.codes import khatri_rao, matdot, mds, polynomial, replication, uncoded
from codedla.codes.accuracy import error_estimate
from codedla.codes.base import Code
from codedla.codes.registry import available, get, register, table, unregister

__all__ = [
    "Code",
    "available",
    "error_estimate",
    "get",
    "khatri_rao",
    "matdot",
    "mds",
    "polynomial",
    "register",
    "replication",
    "table",
    "uncoded",
    "unregister",
]
