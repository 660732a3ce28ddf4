"""The one part of trnpy that is compiled. All else about the distribution is in pyproject.toml."""

import numpy as np
from setuptools import Extension, setup

# Without a C compiler it is left out, and the small calls of patched functions run Python code.
gate = Extension("trnpy._patch._gate", ["trnpy/_patch/_gate.c"], include_dirs=[np.get_include()], optional=True)
setup(ext_modules=[gate])
