"""Code families: mathematics only, one family per file; importing the package registers all."""

from codedla.codes.accuracy import error_estimate
from codedla.codes.base import Code
from codedla.codes.registry import available, get, register, table, unregister

# Last, because families import the above.
from codedla.codes import families  # isort: skip

__all__ = [
    "Code",
    "available",
    "error_estimate",
    "families",
    "get",
    "register",
    "table",
    "unregister",
]
