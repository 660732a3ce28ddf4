"""What is compiled, and PyPI's page with its links. All else about the distribution is in pyproject.toml."""

import pathlib
import re
import sys
import tomllib

import numpy as np
from setuptools import Extension, setup

FLAGS = [] if sys.platform == "win32" else ["-O3", "-fno-math-errno"]  # a check of each root keeps loops from vectors

# Without a C compiler they are left out. Small calls of accelerated functions and operators of small Arrays then run
# Python code, and stacks of small matrices NumPy's functions or SciPy's.
gate = Extension(
    "trnpy._call._gate",
    ["trnpy/_call/_gate.c"],
    depends=["trnpy/_call/_kinds.h", "trnpy/_call/_sparse.h"],
    include_dirs=[np.get_include()],
    optional=True,
)
entry = Extension("trnpy._patch._entry", ["trnpy/_patch/_entry.c"], include_dirs=[np.get_include()], optional=True)
stacks = Extension(
    "trnpy._host._stacks",
    ["trnpy/_host/_stacks.c"],
    depends=[f"trnpy/_host/{part}.h" for part in ("_stacks_of", "_stacks_expm", "_stacks_eig", "_integers")],
    include_dirs=[np.get_include()],
    extra_compile_args=FLAGS,
    optional=True,
)
arrays = Extension("trnpy.xp._quick", ["trnpy/xp/_quick.c"], include_dirs=[np.get_include()], optional=True)

HERE = pathlib.Path(__file__).parent
REPOSITORY = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["trnpy"]["repository"].rstrip("/")
URLS = {
    "Source": REPOSITORY,
    "Documentation": f"{REPOSITORY}/blob/main/docs/index.md",
    "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}
# PyPI shows README outside the repository: pictures come from its raw files, and pages from its main branch.
readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{REPOSITORY}/raw/main/", (HERE / "README.md").read_text())
readme = re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{REPOSITORY}/blob/main/", readme)
setup(
    ext_modules=[gate, entry, stacks, arrays],
    project_urls=URLS,
    long_description=readme,
    long_description_content_type="text/markdown",
)
