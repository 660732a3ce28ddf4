"""The one part of trnpy that is compiled. All else about the distribution is in pyproject.toml."""

from setuptools import Extension, setup

# Without a C compiler it is left out, and the small calls of patched functions run Python code.
setup(ext_modules=[Extension("trnpy._patch._gate", ["trnpy/_patch/_gate.c"], optional=True)])
