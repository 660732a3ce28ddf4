"""Tests of the two commands: what they print, what they return, and what they say of a bad command."""

import json

import ml_dtypes
import numpy as np
import pytest

from nkisim import table
from nkisim.cli import main
from nkisim.cli_values import read
from tests.simulator.planted import CLEAN, HEAD

SHAPES = ["--shape", "256x128", "--shape", "256,512"]


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "clean.py"
    path.write_text(HEAD + CLEAN)
    return str(path)


def test_simulate_prints_a_modelled_table(kernel, capsys):
    assert main(["simulate", f"{kernel}:kernel", *SHAPES]) == 0
    shown = capsys.readouterr().out
    for words in ("modelled", "tensor engine", "HBM traffic", "SBUF at most", "float32[128, 512]"):
        assert words in shown
    priced = [line for line in shown.splitlines()[1:] if "modelled" in line]
    assert len(priced) >= 4 and all(" to " in line or line.split()[-2:] == ["0", "s"] for line in priced)


@pytest.mark.parametrize("mode", ["run", "trace", "reorder"])
def test_simulate_as_json_is_the_same_price_in_every_mode(kernel, capsys, mode):
    assert main(["simulate", kernel, *SHAPES, "--mode", mode, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (cost,) = report["cores"]
    assert report["mode"] == mode
    assert cost["modelled"] is True
    for name in ("device", "launch", "compile"):
        low, high = cost[f"{name}_interval_s"]
        assert low < cost[f"{name}_s"] < high
    assert cost["flops"] == 2 * 256 * 128 * 512
    assert cost["hbm_bytes"] == 4 * (256 * 128 + 256 * 512 + 128 * 512)
    assert report["psum_peak_banks"] == 1
    assert report["findings"] == []


def test_simulate_writes_a_timeline(kernel, tmp_path, capsys):
    out = tmp_path / "timeline.json"
    assert main(["simulate", kernel, *SHAPES, "--target", "trn3", "--timeline", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["name"] == "nc_matmul" for e in events) == 2
    assert "ui.perfetto.dev" in capsys.readouterr().out


def test_lint_of_the_source_says_that_a_launch_was_not_checked(kernel, capsys):
    assert main(["lint", kernel]) == 0
    shown = capsys.readouterr().out
    assert "0 errors, 0 warnings" in shown
    assert "--shape" in shown


def test_lint_with_shapes_checks_the_launch_too(kernel, capsys):
    assert main(["lint", kernel, *SHAPES]) == 0
    assert "--shape" not in capsys.readouterr().out
    assert main(["lint", kernel, "--shape", "256x128", "--shape", "256x600"]) == 1
    assert ": E23 " in capsys.readouterr().out


def test_lint_returns_one_for_an_error_and_shows_it_as_json(kernel, tmp_path, capsys):
    path = tmp_path / "bad.py"
    path.write_text(HEAD + CLEAN.replace("    return out", "    v = np.pi\n    return out"))
    assert main(["lint", str(path), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["rule"], finding["severity"]) == (3, "E")
    assert finding["source"].startswith("nki/")


def test_lint_checks_the_variables_of_an_instance(monkeypatch, capsys):
    monkeypatch.setenv("NEURON_CC_FLAGS", "--model-type transformer")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert main(["lint", "--environment"]) == 1
    shown = capsys.readouterr().out
    assert "E37" in shown
    assert "W39" in shown
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast none")
    assert main(["lint", "--environment", "--lnc", "2"]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_lint_lists_its_rules_and_who_decides_them(capsys):
    assert main(["lint", "--rules"]) == 0
    shown = capsys.readouterr().out
    assert "environment" in shown
    assert "39" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lint"], "needs a FILE"),
        (["lint", "missing.py"], "missing.py"),
        (["simulate", "KERNEL", "--shape", "0x5"], "--shape '0x5'"),
        (["simulate", "KERNEL", "--shape", "4x5", "--dtype", "float64"], "--dtype 'float64'"),
        (["simulate", "KERNEL", "--shape", "4x5", "--dtype", "int8", "--dtype", "int8"], "2 --dtype for 1 --shape"),
        (["simulate", "KERNEL", "--arg", "novalue"], "expected NAME=VALUE"),
        (["simulate", "KERNEL", "--arg", "engine=nisa.engine.none"], "--arg value 'nisa.engine.none'"),
        (["simulate", "KERNEL", "--arg", "engine=nisa.engine(99)"], "99 is not a valid engine"),
        (["simulate", "KERNEL:nothing", *SHAPES], "no kernel named nothing: it has kernel"),
        (["simulate", __file__], f"simulate: {__file__} has no nki.jit function"),
        (
            ["simulate", "KERNEL:kernel", "--shape", "256x128"],
            "kernel(at, b): missing a required argument: 'b': --shape",
        ),
        (["timeline", "KERNEL:kernel", "out.json"], "kernel(at, b): missing a required argument: 'at': --shape"),
        (["simulate", "KERNEL:kernel", "--shape", "256x128", "--shape", "256x600"], "kernel (clean.py:"),
    ],
)
def test_a_bad_command_is_one_line_and_no_traceback(kernel, capsys, arguments, words):
    assert main([a.replace("KERNEL", kernel) for a in arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["run", "simulate"])
def test_the_usage_has_the_name_that_was_typed(name, capsys):
    with pytest.raises(SystemExit):
        main([name])
    assert capsys.readouterr().err.startswith(f"usage: python -m nkisim {name} ")


def test_a_file_that_raises_while_it_loads_is_one_line(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text(HEAD + CLEAN + "\nimport no_such_module\n")
    assert main(["simulate", f"{path}:kernel", *SHAPES]) == 2
    said = capsys.readouterr().err
    assert "does not load: ModuleNotFoundError" in said
    assert said.count("\n") == 1


def test_compile_time_arguments_reach_the_kernel(tmp_path, capsys):
    path = tmp_path / "repeated.py"
    text = HEAD + CLEAN.replace("kernel(at, b)", "kernel(at, b, times=1)")
    path.write_text(text.replace("    done =", "    for _ in range(times):\n        left = fetch(at, 0)\n    done ="))
    counts = []
    for times in (1, 5):
        assert main(["simulate", str(path), *SHAPES, "--arg", f"times={times}", "--json", "--mode", "trace"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["cores"][0]["instructions"])
    assert counts[1] - counts[0] == 4


def test_tables_are_plain_columns_without_rich(monkeypatch, capsys):
    monkeypatch.setattr(table.importlib.util, "find_spec", lambda name: None)
    table.print_table("title", ("a", "b"), [("1", "x"), ("22", "yy")])
    assert capsys.readouterr().out == "title\na   b\n1   x\n22  yy\n"


def test_both_commands_take_a_front_end(tmp_path, capsys):
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + CLEAN.replace("    bank = ", "    sizes = [n for n in at.shape]\n    bank = "))
    assert main(["simulate", f"{path}:kernel", *SHAPES, "--nki", "0.7"]) == 0
    assert main(["simulate", f"{path}:kernel", *SHAPES, "--nki", "0.6-parser"]) == 1
    assert "unsupported expression" in capsys.readouterr().err
    assert main(["lint", str(path), "--nki", "0.6-tracer,0.7"]) == 0
    assert main(["lint", str(path)]) == 1
    assert "E01 (0.6-parser) unsupported expression" in capsys.readouterr().out
    assert main(["simulate", f"{path}:kernel", *SHAPES, "--nki", "all"]) == 2
    assert main(["lint", str(path), "--nki", "0.5"]) == 2


SCALED = """
from enum import Enum

class Side(Enum):
    left = 2.0
    right = 3.0

class Pair(nl.NKIObject):
    side: object = None
    offset: float = 0.0

@nki.jit
def kernel(x, pair=None):
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=pair.side.value, op1=nl.add, operand1=pair.offset)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def test_simulate_takes_arrays_of_files_objects_and_a_reference(tmp_path, capsys):
    (tmp_path / "scaled.py").write_text(HEAD + SCALED)
    (tmp_path / "reference.py").write_text("def twin(x, pair):\n    return pair.side.value * x + pair.offset\n")
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = ["simulate", f"{tmp_path}/scaled.py:kernel", "--input", f"{tmp_path}/x.npy", "--expect"]
    command += [f"{tmp_path}/reference.py:twin", "--output", f"{tmp_path}/out.npy"]
    assert main([*command, "--arg", "pair=Pair(Side.right, offset=-1.0)"]) == 0
    shown = capsys.readouterr().out
    assert "output 0 matches" in shown and "bound by" in shown
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), 3 * x - 1, rtol=1e-6, atol=1e-6)
    (tmp_path / "reference.py").write_text("def twin(x, pair):\n    return x\n")
    assert main([*command, "--arg", "pair=Pair(Side.left)"]) == 1
    assert "output 0 DIFFERS" in capsys.readouterr().out
    beside = HEAD + SCALED + "\n\ndef twin(x, pair):\n    return pair.side.value * x + pair.offset\n"
    (tmp_path / "scaled.py").write_text(beside)
    assert main([*command[:-3], f"{tmp_path}/scaled.py:twin", "--arg", "pair=Pair(Side.left)"]) == 0
    for extra, message in (
        (["--expect", "absent.py:twin"], "no such file"), (["--rule", "12=off"], "cannot be relaxed"),
        (["--rule", "x"], "NUMBER=MODE"), (["--mode", "trace"], "--expect needs values, which --mode trace does not"),
        (["--expect", f"{tmp_path}/scaled.py:Pair"], "TypeError"),
    ):  # fmt: skip
        assert main([*command, "--arg", "pair=Pair(Side.left)", *extra]) in (1, 2)
        assert message in capsys.readouterr().err


def test_bfloat16_goes_in_as_numpy_writes_it_and_other_untyped_bytes_are_refused(kernel, tmp_path, capsys):
    for name, dtype in (("half", "bfloat16"), ("e4m3", "float8_e4m3"), ("e5m2", "float8_e5m2")):
        np.save(tmp_path / f"{name}.npy", np.ones((256, 128), np.float32).astype(getattr(ml_dtypes, dtype)))
    given = ["simulate", kernel, "--input", f"{tmp_path}/half.npy", "--input", f"{tmp_path}/half.npy"]
    assert main(given) == 0
    assert read(tmp_path / "half.npy").dtype == ml_dtypes.bfloat16
    for name, words in (("e4m3", "1-byte elements without their type"), ("e5m2", "not a valid dtype descriptor")):
        assert main([*given, "--input", f"{tmp_path}/{name}.npy"]) == 2
        assert f"{name}.npy: " in (said := capsys.readouterr().err) and words in said
