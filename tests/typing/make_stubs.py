"""Write the stubs of trnpy's public modules, whose names are made at run time: ``python tests/typing/make_stubs.py``.

NumPy's and SciPy's names are imported from there, so that a type checker sees the types of their stubs. Names are those
of the installed versions: run it with the newest ones.
"""

import importlib
import inspect
import pathlib
import textwrap
import types

import trnpy

PACKAGE = pathlib.Path(trnpy.__file__).parent
SCIPYS = ("linalg", "linalg.blas", "linalg.lapack", "linalg.interpolative", "sparse", "sparse.linalg", "sparse.csgraph")
MODULES = ("trnpy", "trnpy.chem", "trnpy.dist", *(f"trnpy.{path}" for path in SCIPYS))
WIDE = 118


def names(module):
    """The public names of ``module`` that a stub lists: not NumPy's and SciPy's modules, which are theirs to import."""
    found = importlib.import_module(module)
    public = [name for name in dir(found) if not name.startswith("_") or name == "__version__"]
    foreign = {name for name in public if isinstance(value := getattr(found, name), types.ModuleType)
               and value.__name__ != f"{module}.{name}"}  # fmt: skip
    return sorted({*public} - foreign)


def source(module, name):
    """The module that a stub of ``module`` imports ``name`` from."""
    found = importlib.import_module(module)
    value = getattr(found, name)
    if isinstance(value, types.ModuleType):
        return module
    if name in (lazy := getattr(found, "_LAZY", {})):  # of trnpy, trnpy.chem and trnpy.dist
        home = lazy[name] if module == "trnpy" else f"{module}.{lazy[name]}"
        return "numpy" if home == "trnpy._einsum.rows" else home
    theirs = module.replace("trnpy", "scipy")
    for home in (theirs, theirs.replace("scipy", "numpy")):
        try:
            if hasattr(importlib.import_module(home), name):
                return home
        except ModuleNotFoundError:  # numpy has no sparse
            continue
    return inspect.unwrap(value).__globals__["__name__"]


def stub(module):
    """The text of the stub of ``module``."""
    homes = {}
    for name in names(module):
        if name != "__version__":
            homes.setdefault(source(module, name), []).append(f"{name}~as~{name}")  # ~: a space that is not wrapped
    lines = [f'"""Types of {module}: written by tests/typing/make_stubs.py."""', ""]
    for home, listed in sorted(homes.items()):
        one = f"from {home} import {', '.join(listed)}"
        wrapped = textwrap.wrap(", ".join(listed), WIDE - 4, break_on_hyphens=False)
        lines += [one] if len(one) <= WIDE else [f"from {home} import (", *(f"    {line}" for line in wrapped), ")"]
    if module == "trnpy":
        lines += ["", "__version__: str"]
    return "\n".join(lines).replace("~", " ") + "\n"


def path(module):
    """The file of the stub of ``module``."""
    return pathlib.Path(importlib.import_module(module).__file__).with_suffix(".pyi")


if __name__ == "__main__":
    for module in MODULES:
        path(module).write_text(stub(module))
