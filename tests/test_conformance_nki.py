"""Tests of the runner of NKI kernels written by others, on a folder laid out like theirs."""

import json
import re

import pytest

from conformance.nki import _library, main
from conformance.nki import _ours as ours
from conformance.nki._blocks import as_kernel, blocks, claims, free_names
from conformance.nki._ours import CASES, cells
from nkisim.lint.rules import Finding
from trnpy._nki.kernels import FOLDER

ISA = '''
def twice(dst, src):
    r"""Doubles, in the text of this test only.

    .. code-block:: python

        a = nl.full((128, 8), 3.0, dtype=nl.float32, buffer=nl.sbuf)
        b = nl.add(a, a)
        expected = nl.full((128, 8), {value}, dtype=nl.float32, buffer=nl.sbuf)
        assert nl.equal(b, expected)

    .. code-block:: python

        t = nl.ndarray((128, 4, 8), dtype=nl.float32, buffer=nl.sbuf)
        t.permute((0, 2, 1))  # shape becomes ({shape})

    .. code-block:: python

        fragment = nl.add(unknown, 1.0)"""
    ...
'''

GUIDE = """
.. code-block:: python

   t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
   u = t[:, 0:8]
   assert u.shape == (128, {width})

.. code-block:: python

   v = u[0:64, :]
   assert v.shape == (64, 8)

.. code-block:: python

   def gather_rows(table):
      tile = nl.ndarray((64, 512), dtype=table.dtype, buffer=nl.sbuf)
      nisa.dma_copy(dst=tile, src=table[{first}:128:2, :])
      out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
      nisa.dma_copy(dst=out, src=tile)
      return out
"""


def checkout(folder, value="6.0", shape="128, 8, 4", width="8", first="0", violation=256):
    """A folder with the parts that the runner reads; all text in it is this test's."""
    for module in ("isa", "language"):
        (folder / "nki" / "api" / "nki" / module).mkdir(parents=True)
    (folder / "nki/api/nki/isa/__init__.py").write_text("")
    (folder / "nki/api/nki/language/__init__.py").write_text(ISA.format(value=value, shape=shape))
    for guide in ("get-started/nki-language-guide.rst", "deep-dives/nki-aps.rst"):
        (folder / "nki" / guide).parent.mkdir(parents=True, exist_ok=True)
        (folder / "nki" / guide).write_text(GUIDE.format(width=width, first=first))
    (folder / "nki/examples").mkdir()
    (folder / "nki/examples/layout-violation.py").write_text(
        "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n@nki.jit\ndef tensor_exp_kernel_(x):\n"
        f"    t = nl.ndarray(({violation}, 512), dtype=x.dtype, buffer=nl.sbuf)\n    nisa.memset(dst=t, value=0.0)\n"
        "    out = nl.ndarray(t.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    nisa.dma_copy(dst=out, src=t)\n    return out\n"
    )
    return folder


def table(folder, capsys):
    code = main([str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    return code, found["summary"], {k["kernel"]: k for k in found["kernels"] if not k["left_out"]}


def test_what_is_documented_passes_and_what_is_missing_is_left_out(tmp_path, capsys):
    code, summary, kernels = table(checkout(tmp_path), capsys)
    assert code == 0
    assert summary["bad"] == 0
    assert (
        summary["good"] == 1 + 2 + 4 + 1
    )  # the refusal, two docstring blocks, two blocks in each of two guides, a kernel in one
    assert kernels["layout-violation.py:tensor_exp_kernel_"]["runs"] is False


@pytest.mark.parametrize(
    ("wrong", "kernel"),
    [
        ({"value": "7.0"}, "nki.language.twice, line 6"),
        ({"shape": "128, 4, 8"}, "nki.language.twice, line 13"),
        ({"width": "9"}, "nki-aps.rst, line 3"),
        ({"first": "1"}, "nki-aps.rst, line 14: gather_rows"),
        ({"violation": 128}, "layout-violation.py:tensor_exp_kernel_"),
    ],
)
def test_a_claim_that_does_not_hold_is_reported(tmp_path, capsys, wrong, kernel):
    code, summary, kernels = table(checkout(tmp_path, **wrong), capsys)
    assert code == 1
    assert summary["bad"] >= 1
    assert kernels[kernel]["matches"] is not True


def test_an_unknown_example_is_bad_until_it_has_a_reference(tmp_path, capsys):
    folder = checkout(tmp_path)
    (folder / "nki/examples/new.py").write_text("import nki\n\n\n@nki.jit\ndef f(x):\n    return x\n")
    code, _, kernels = table(folder, capsys)
    assert code == 1
    assert "no reference" in kernels["examples/new.py"]["remark"]


def test_a_folder_that_is_no_checkout_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "nki/examples" in capsys.readouterr().out


def test_the_table_names_every_column(tmp_path, capsys):
    assert main([str(checkout(tmp_path))]) == 0
    shown = capsys.readouterr().out
    for head in ("kernel", "runs", "matches", "lint"):
        assert head in shown


def test_blocks_know_their_owner_and_what_they_leave_open(tmp_path):
    path = tmp_path / "page.py"
    path.write_text(ISA.format(value="6.0", shape="1, 2"))
    first, second, third = blocks(path)
    assert first.owner == second.owner == "twice"
    assert free_names(first.text) == []
    assert free_names(third.text) == ["unknown"]
    assert (claims(first.text), claims(second.text), claims(third.text)) == (1, 1, 0)
    assert "documented_shape(t.permute((0, 2, 1)), (1, 2))" in as_kernel(second.text, [])


def test_our_kernels_are_taken_by_every_front_end_on_every_machine():
    """Three of them; `python -m conformance nki --kernels ours` runs all."""
    found = list(cells(names=("transpose", "csr_spmm", "probes.rounding")))
    assert len(found) == 3 * 3 * 3
    assert {c.shown for c in found} == {"yes"}


def test_every_kernel_of_ours_has_a_case():
    named = {name.rpartition(".")[2] for name in CASES}
    text = "".join(path.read_text() for path in FOLDER.rglob("[a-z]*.py"))
    assert named == set(re.findall(r"@nki\.jit\ndef (\w+)", text))


@pytest.mark.parametrize("rule", [46, 53, 57])
def test_a_finding_fails_the_run(rule, monkeypatch, capsys):
    monkeypatch.setattr(ours, "CASES", {"csr_spmm": CASES["csr_spmm"]})
    monkeypatch.setattr(ours, "MACHINES", ("trn2",))
    assert main(["--kernels", "ours", "--nki", "0.7"]) == 0
    advice = Finding("csr_spmm.py", 1, rule, "W", "a doubt")
    monkeypatch.setattr(ours, "lint_file", lambda *_: [advice])
    assert main(["--kernels", "ours", "--nki", "0.7"]) == 1
    assert f"W{rule}" in capsys.readouterr().out
    assert main(["--kernels", "ours", "--nki", "0.5"]) == 2


LIBRARY_KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit(mode="trace")
def copied(x: nki.dtype):
    return x
"""


def test_files_of_a_library_are_loaded_and_those_that_do_not_load_say_why(tmp_path):
    package = tmp_path / "src" / "nkilib_src" / "nkilib"
    package.mkdir(parents=True)
    (package / "good.py").write_text(LIBRARY_KERNEL)
    (package / "bad.py").write_text(LIBRARY_KERNEL + "nisa.no_such_instruction\n")
    (package / "other.py").write_text("import absent_module\n")
    (bad, why), (good, nothing) = _library.files(tmp_path)
    assert (bad.name, good.name, nothing) == ("bad.py", "good.py", "") and "no_such_instruction" in why


def test_a_folder_that_is_no_library_is_said_to_be_none(tmp_path, capsys):
    assert _library.main(tmp_path, 1, 1, "") == 2
    assert "nki-library is needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdict", "right"),
    [
        ("passed", True),
        ("slow", True),
        ("large", True),
        ("skipped", True),
        ("refused", False),
        ("wrong", False),
        ("error", False),
    ],
)
def test_a_refusal_counts_against_the_simulator_unless_it_is_listed_with_a_reason(verdict, right):
    def found(function, rule):
        return _library.Test(f"test/test_a.py::TestA::{function}[c::d]", verdict, f"no [rule {rule}]", 1.0)

    (name, rule), (documented, *_) = next(iter(_library.RIGHT)), _library.RIGHT_RULES
    assert found("test_b", 1).right is right and found(name, 1).right is right
    assert found(name, rule).right is found("test_b", documented).right is (right or verdict == "refused")
    assert found(next(iter(_library.BROKEN)), 1).right is (right or verdict == "error")
    assert (found(name, rule).file, found(name, rule).function) == ("test_a", name)
