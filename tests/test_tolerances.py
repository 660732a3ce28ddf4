"""Comparisons of numbers in tests say their relative tolerance: defaults of 1e-7 and 1e-6 would hide lost digits."""

import ast
import pathlib

TESTS = pathlib.Path(__file__).parent
NUMPY, MATH, PYTEST = {"rtol"}, {"rtol", "rel_tol"}, {"rel", "abs"}  # pytest's approx with abs alone knows no other
RELATIVE = {"assert_allclose": NUMPY, "allclose": NUMPY, "isclose": MATH, "approx": PYTEST}


def untold(source):
    """Lines of calls that compare with the library's default of relative tolerance."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in RELATIVE and RELATIVE[name].isdisjoint(keyword.arg for keyword in node.keywords):
                yield node.lineno


def test_an_untold_tolerance_is_found():
    source = (
        "assert_allclose(a, b)\nnp.allclose(a, b, atol=1)\napprox(1)\nassert_allclose(a, b, rtol=0)\napprox(1, abs=2)"
    )
    assert list(untold(source)) == [1, 2, 3]


def test_every_comparison_says_its_relative_tolerance():
    found = {str(path.relative_to(TESTS)): list(untold(path.read_text())) for path in TESTS.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}
