"""The code families, one per file; every module in this folder is imported with the package."""

from __future__ import annotations

import importlib
import pkgutil

__all__ = [module.name for module in pkgutil.iter_modules(__path__)]

# In the order of their names, so that the table of codes is the same everywhere.
for _name in sorted(__all__):
    importlib.import_module(f"{__name__}.{_name}")
