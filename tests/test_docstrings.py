"""Public docstrings: trnpy's own names have every section and examples that run; all others are NumPy's and SciPy's."""

import doctest
import importlib
import inspect
import io
import re
import types

import numpy as np
import pytest
import scipy.linalg

import trnpy
from trnpy._cli import calibration

# Names of NumPy at the top level.
PRODUCTS = ("einsum", "einsum_path", "matmul", "dot", "vdot", "inner", "outer", "tensordot", "kron", "vecdot")
UNDERLINED = re.compile(r"^(\w[\w ]*)\n-+$", re.M)
ORDER = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes", "References", "Examples")
RAISE_NOTHING = {"trnpy.einsum_plan", "trnpy.profile", "trnpy.calibrate"}
NEEDED = {  # optional dependencies
    "trnpy.chem.patch_pyscf": "pyscf",
    "trnpy.chem.unpatch_pyscf": "pyscf",
    "trnpy.chem.accelerate": "pyscf",
    "trnpy.sparse.torch_bridge": "torch",
}


def is_own(thing):
    """Whether ``thing`` is a function or a class that trnpy defines: modules may import others by public names."""
    return callable(thing) and thing.__module__.startswith("trnpy.")


def own_names():
    """Dotted names of the public functions and classes that neither NumPy nor SciPy has."""
    found = [f"trnpy.{name}" for name in trnpy.__all__ if name not in (*PRODUCTS, "__version__")]
    found += [f"trnpy.{module}.{name}" for module in ("chem", "dist") for name in getattr(trnpy, module).__all__]
    found += [f"trnpy.dist.linalg.{name}" for name in trnpy.dist.linalg.__all__]
    for path, references in (
        ("linalg", ("scipy.linalg", "numpy.linalg")),
        ("linalg.blas", ("scipy.linalg.blas",)),
        ("linalg.lapack", ("scipy.linalg.lapack",)),
        ("sparse", ("scipy.sparse",)),
        ("sparse.linalg", ("scipy.sparse.linalg",)),
        ("sparse.csgraph", ("scipy.sparse.csgraph",)),
    ):
        known = {name for reference in references for name in dir(importlib.import_module(reference))}
        module = importlib.import_module(f"trnpy.{path}")
        names = [name for name in dir(module) if not name.startswith("_") and name not in known]
        found += [f"trnpy.{path}.{name}" for name in names if is_own(getattr(module, name))]
    found += [f"trnpy.sparse.torch_bridge.{name}" for name in ("block_mask_matmul", "cg", "masked_attention", "matmul")]
    modules = {f"trnpy.{name}" for name in ("linalg", "sparse", "chem", "dist", "dist.linalg", "xp")}
    return [name for name in found if name not in modules]


def named(name):
    """The object called ``name``; skips where an optional package is not installed."""
    module, _, attribute = name.rpartition(".")
    needed = NEEDED.get(name) or NEEDED.get(module)
    if needed is not None:
        pytest.importorskip(needed, reason=f"{name} needs {needed}, which is not installed")
    return getattr(importlib.import_module(module), attribute)


def sections(docstring):
    """The text of each section of a numpydoc docstring; the summary has the name ''."""
    parts = UNDERLINED.split(docstring)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def described(text):
    """Names that the unindented lines of a section describe: "a, b : array_like", "*args, **kwargs"."""
    heads = [line.partition(" : ")[0] for line in text.splitlines() if line[:1].strip()]
    return {name.strip(" *") for head in heads for name in head.split(",")}


def parameters(thing):
    """Names that the docstring of ``thing`` must describe: parameters, members of an enumeration, fields."""
    if hasattr(thing, "__members__"):
        return set(thing.__members__)
    if isinstance(thing, type) and issubclass(thing, (Warning, RuntimeError)):
        return set()
    return set(inspect.signature(thing).parameters)


@pytest.mark.parametrize("name", own_names())
def test_a_public_name_says_what_it_does_takes_and_returns(name):
    thing = named(name)
    docstring = inspect.getdoc(thing)
    found = sections(docstring)
    summary = found[""].strip().split("\n\n")[0]
    assert summary.endswith(".") and "\n" not in summary, "one line, and a period"
    assert list(found)[1:] == [s for s in ORDER if s in found], "sections have numpydoc's names and order"
    wanted = parameters(thing)
    assert wanted <= described(found.get("Parameters", "") + "\n" + found.get("Attributes", ""))
    if not isinstance(thing, type):
        returns = inspect.signature(thing).return_annotation not in (None, "None")
        assert returns == ("Returns" in found or "Yields" in found)
        assert not wanted or name in RAISE_NOTHING or "Raises" in found
    assert doctest.DocTestParser().get_examples(found["Examples"])
    cited = set(re.findall(r"\[(\d)\]_", docstring))
    assert cited <= set(re.findall(r"^\.\. \[(\d)\]", found.get("References", ""), re.M))


@pytest.fixture
def quick_calibration(monkeypatch):
    """One workload of each kind that takes no time: calibrating takes most of a minute."""
    monkeypatch.setattr(calibration, "_workloads", lambda: [(kind, 32, 1.0, dict) for kind in calibration.KINDS])
    monkeypatch.setattr(calibration, "LEAST_S", 0.0)


@pytest.mark.usefixtures("quick_calibration")
@pytest.mark.parametrize("name", own_names())
def test_examples_of_a_public_name_run(name):
    docstring = inspect.getdoc(named(name))
    output = io.StringIO()
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(docstring, {}, name, None, None), out=output.write)
    assert runner.tries > 0
    assert runner.failures == 0, output.getvalue()


def shared_names():
    """(trnpy's module, the reference's, names of both)."""
    for path in ("linalg", "linalg.blas", "linalg.lapack", "sparse", "sparse.linalg", "sparse.csgraph"):
        ours, reference = importlib.import_module(f"trnpy.{path}"), importlib.import_module(f"scipy.{path}")
        yield ours, reference, [name for name in dir(ours) if not name.startswith("_") and hasattr(reference, name)]
    own = importlib.import_module("trnpy.linalg")
    numpys = [name for name in dir(own) if not name.startswith("_") and not hasattr(scipy.linalg, name)]
    yield own, np.linalg, [name for name in numpys if hasattr(np.linalg, name)]
    yield trnpy, np, PRODUCTS


@pytest.mark.parametrize("ours, reference, names", [pytest.param(*x, id=x[0].__name__) for x in shared_names()])
def test_the_docstring_of_a_shared_name_is_the_references_with_at_most_a_paragraph_more(ours, reference, names):
    assert names
    for name in names:
        mine, theirs = getattr(ours, name), getattr(reference, name)
        if not isinstance(mine, types.ModuleType) and (expected := inspect.getdoc(theirs)) is not None:
            without = re.sub(r"\n\nIn trnpy a Trainium .*?changes it\.", "", inspect.getdoc(mine), flags=re.DOTALL)
            assert re.sub(r"\n{3,}", "\n\n", without) == re.sub(r"\n{3,}", "\n\n", expected), name
