"""Compile cython_kernels/*.pyx into codedla._kernels.*; everything else is in pyproject.toml.

CODEDLA_DEBUG_KERNELS=1 builds with bounds checks and annotated sources.
"""

import os
import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("CODEDLA_DEBUG_KERNELS", "0") not in ("", "0")
SOURCES = Path("cython_kernels")

# No -march: the headers compile each kernel for several instruction sets by function attributes.
# Contraction to fused multiply-add is wanted in them; no other liberty with the arithmetic is.
FLAGS = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3"]
COMPILER_FLAGS = [] if sys.platform == "win32" else [*FLAGS, "-ffp-contract=fast", "-Wno-psabi"]

extensions = [
    Extension(
        f"codedla._kernels.{path.stem}",
        [path.as_posix()],
        include_dirs=[np.get_include(), SOURCES.as_posix()],
        depends=[header.as_posix() for header in sorted(SOURCES.glob("*.h"))],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=COMPILER_FLAGS,
        # The NumPy twin takes over where the vector extensions of GCC and Clang are missing.
        optional=sys.platform == "win32",
    )
    for path in sorted(SOURCES.glob("*.pyx"))
]

# setuptools too sees dates only: after a change between the two builds compile everything again.
mode = Path("build/kernels.mode")
changed = (mode.read_text() if mode.exists() else "release") != ("debug" if DEBUG else "release")
if mode.parent.exists() or DEBUG:
    mode.parent.mkdir(exist_ok=True)
    mode.write_text("debug" if DEBUG else "release")

setup(
    options={"build_ext": {"force": changed}},
    ext_modules=cythonize(
        extensions,
        include_path=[SOURCES.as_posix()],
        # Cython looks at dates, not at directives: a shared directory would keep the other build.
        build_dir="build/cython-debug" if DEBUG else "build/cython",
        annotate=DEBUG,
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "initializedcheck": DEBUG,
            "wraparound": False,
            "nonecheck": False,
            "cdivision": True,
        },
    ),
)
