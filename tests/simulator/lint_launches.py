"""Kernels with one planted bug, linted by source and by launch, for the tests of each module of the lint."""

import itertools

import numpy as np

from nkisim.chip.dialects import DIALECTS
from nkisim.lint.linter import errors, lint_launch, lint_source
from nkisim.lint.rules import Finding
from nkisim.run.loader import load_kernel
from tests.simulator.planted import HEAD, Planted, normal


def launched(text: str, arrays: tuple, cores: int, folder, **settings) -> tuple[Finding, ...]:
    path = folder / "kernel.py"
    path.write_text(HEAD + text)
    return lint_launch(load_kernel(path, "kernel")[cores], tuple(np.array(a) for a in arrays), **settings)


def assert_found_in_a_launch(planted: Planted, folder) -> None:
    """The bug is found at its line and its twin passes: on every machine, with every front end, the rule holds for."""
    for target, nki in itertools.product(planted.targets, planted.dialects):
        found = launched(planted.text, planted.args, planted.lnc, folder, target=target, nki=nki)
        assert {(f.rule, f.severity) for f in found} >= {(planted.rule, planted.severity)}, (target, nki, found)
        assert {f.rule for f in errors(found)} <= {planted.rule}
        assert all(f.file.endswith("kernel.py") and f.line > 0 for f in found if f.rule == planted.rule)
        arrays, cores = planted.right_args or planted.args, planted.right_lnc or planted.lnc
        found = launched(planted.right, arrays, cores, folder, target=target, nki=nki)
        assert errors(found) == () and planted.rule not in {f.rule for f in found}, (target, nki, found)


HOST = ("\nkernel", "nki.simulate")  # code beside the kernel, which a run of the kernel does not need


def assert_found_in_the_source(planted: Planted) -> None:
    """The bug is found where it is, and only there."""
    found = lint_source(HEAD + planted.text, "kernel.py")
    assert [f for f in found if (f.rule, f.severity) == (planted.rule, planted.severity)], found
    others = {f.rule for f in errors(found)} - {planted.rule}
    assert not others, found


def assert_the_twin_passes_and_runs(planted: Planted, folder) -> None:
    """With every front end."""
    found = lint_source(HEAD + planted.right, "kernel.py")
    assert errors(found) == () and planted.rule not in {f.rule for f in found}
    if not any(words in planted.right for words in HOST):
        for nki in DIALECTS:
            assert errors(launched(planted.right, (normal(8, 8),), planted.lnc, folder, nki=nki)) == ()
