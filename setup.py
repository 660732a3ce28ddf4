"""The parts of trnpy that are compiled. All else about the distribution is in pyproject.toml."""

import sys

import numpy as np
from setuptools import Extension, setup

FLAGS = [] if sys.platform == "win32" else ["-O3", "-fno-math-errno"]  # a check of each root keeps loops from vectors

# Without a C compiler they are left out. Small calls of accelerated functions and operators of small Arrays then run
# Python code, and stacks of small matrices NumPy's functions or SciPy's.
gate = Extension(
    "trnpy._call._gate",
    ["trnpy/_call/_gate.c"],
    depends=["trnpy/_call/_kinds.h"],
    include_dirs=[np.get_include()],
    optional=True,
)
entry = Extension("trnpy._patch._entry", ["trnpy/_patch/_entry.c"], include_dirs=[np.get_include()], optional=True)
stacks = Extension(
    "trnpy._host._stacks",
    ["trnpy/_host/_stacks.c"],
    depends=["trnpy/_host/_stacks_of.h"],
    include_dirs=[np.get_include()],
    extra_compile_args=FLAGS,
    optional=True,
)
arrays = Extension("trnpy.xp._quick", ["trnpy/xp/_quick.c"], include_dirs=[np.get_include()], optional=True)
setup(ext_modules=[gate, entry, stacks, arrays])
