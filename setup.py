"""Compile cython_kernels/*.pyx into codedla._kernels.*; everything else is in pyproject.toml.

CODEDLA_DEBUG_KERNELS=1 builds with bounds checks and annotated sources.
"""

import os
import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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


class BuildKernels(build_ext):
    """Compile everything again after a change between the debug and the release build.

    setuptools compares dates only, and would keep the objects of the other build.
    """

    def run(self):
        wanted, mark = "debug" if DEBUG else "release", Path(self.build_temp) / "kernels.mode"
        if not mark.exists() or mark.read_text() != wanted:
            self.force = True
        super().run()
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(wanted)


setup(
    cmdclass={"build_ext": BuildKernels},
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
