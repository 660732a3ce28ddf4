"""Tests of the runner of AWS's compiler, against stand-ins of its documented entry points."""

import shutil
import sys

import pytest

from conformance import neuronx
from conformance.__main__ import main as conformance

CONTEXT = "import contextlib\n@contextlib.contextmanager\ndef nki_ir_context():\n    yield 'ir'\n"
FRONTEND = """
class TracerFrontend:
    def __init__(self, enable_backend_opt):
        assert enable_backend_opt is False
    def compile(self, ctx, kernel, inputs, target, lnc, artifacts_dir):
        assert ctx == "ir" and lnc == 1 and target in ("trn1", "trn2", "trn3") and "x" in inputs, list(inputs)
        return ("module", target, type(self).__name__)
class ParserFrontend(TracerFrontend):
    def compile(self, *args, **words):
        if words["target"] == "trn1":
            raise RuntimeError("NCC_IBIR829: a register offset\\n in SBUF")
        return super().compile(*args, **words)
"""
DRIVER = """
import pathlib
class CompileOptions:
    def __init__(self, target, lnc, output_path, artifacts_dir):
        self.output_path = output_path
        assert not list(pathlib.Path(artifacts_dir).iterdir())
    def disable_backend_optimizations(self):
        return self
class CompiledKernel:
    @classmethod
    def from_frontend(cls, result, options):
        pathlib.Path(options.output_path).write_bytes(b"x" * 2048)
"""
KERNEL = """
class Jitted:
    def __init__(self, function):
        self.func = function
    def _to_subclass(self, kind, _frontend_cls, _enable_simulation):
        assert _enable_simulation
        return kind
def jit(function):
    return Jitted(function)
"""
STANDALONE = "import numpy as np\ndef StandaloneKernel(x, **words):\n    return (FACTOR * x).T.copy()\n"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A folder with a package nki, and a compiler on PATH; nothing of it stays in this process."""
    nki = tmp_path / "nki"
    for folder in (nki, nki / "compiler", nki / "_backends", nki / "framework"):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    (nki / "__init__.py").write_text(KERNEL)
    for name in ("isa", "language"):
        (nki / f"{name}.py").write_text("def __getattr__(name):\n    return name\n")
    (nki / "_backends" / "context.py").write_text(CONTEXT)
    (nki / "compiler" / "frontend.py").write_text(FRONTEND)
    (nki / "compiler" / "ncc_driver.py").write_text(DRIVER)
    (tmp_path / "neuronx-cc").write_text("#!/bin/sh\n")
    (tmp_path / "neuronx-cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(neuronx, "CACHE", tmp_path / "cache" / "nki")
    monkeypatch.setattr(neuronx.platform, "machine", lambda: "x86_64")
    yield nki
    assert "nki" not in sys.modules


def test_without_the_compiler_the_runner_says_what_is_missing_and_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert conformance(["neuronx"]) == 2
    shown = capsys.readouterr().out
    assert "neuronx-cc is not on PATH" in shown and "pip install neuronx-cc nki" in shown and "no Trainium" in shown


@pytest.mark.parametrize(("factor", "verdict"), [(1, "agrees"), (2, "DIFFERS: 26000 of 26000 elements")])
def test_a_kernel_is_compiled_and_its_results_compared(compiler, tmp_path, capsys, factor, verdict):
    (compiler / "framework" / "standalone.py").write_text(f"FACTOR = {factor}\n{STANDALONE}")
    out = tmp_path / "page.md"
    command = ["neuronx", "--kernel", "transpose", "--target", "trn2", "--front-end", "tracer", "--page", str(out)]
    assert conformance(command) == (0 if factor == 1 else 1)
    assert f"2 KiB, BIRSim {verdict}" in out.read_text() and "trn2 tracer" in out.read_text()


def test_a_refusal_is_on_the_page_in_the_compilers_words(compiler, tmp_path, capsys):
    out = tmp_path / "page.md"
    command = ["neuronx", "--kernel", "transpose", "--target", "trn1", "--page", str(out)]
    assert conformance(command) == 1
    text = out.read_text()
    assert "transpose, trn1, parser: compile: RuntimeError: NCC_IBIR829: a register offset in SBUF" in text
    assert "1 of 2 compile" in text and "| transpose | NO |" in text


def test_versions_of_two_releases_are_refused_before_anything_is_compiled(compiler, monkeypatch, capsys):
    monkeypatch.setattr(neuronx, "software", lambda: {"nki": "0.6.0", "neuronx-cc": "2.26.6360.0"})
    assert conformance(["neuronx", "--kernel", "transpose"]) == 2
    assert "nki 0.6.0 and neuronx-cc 2.26.6360.0 are of two releases (NCC_INLA001)" in capsys.readouterr().out


NRTPY = """
import types
import numpy as np
class NrtError(RuntimeError):
    pass
class NrtpyTensor:
    def __init__(self, array):
        self.array = array
    @classmethod
    def from_numpy(cls, array, name=None, core_id=0):
        return cls(array)
    def numpy(self):
        return self.array.view("V4")
class NrtpyModel:
    def __init__(self, factor):
        self.factor = factor
    @classmethod
    def load_from_neff(cls, path, **words):
        if "trn1" in str(path):
            raise NrtError("NRT_FAILURE(6): another target")
        return cls(len(path.read_bytes()) // 2048)
    def __call__(self, inputs, outputs=None):
        return {"output_0": NrtpyTensor((self.factor * inputs["x"].array).T.copy())}
    def benchmark(self, inputs):
        return types.SimpleNamespace(min_ms=0.25)
"""


def test_kept_programs_run_on_a_device_without_torch_or_the_compiler(compiler, tmp_path, capsys, monkeypatch):
    kept, out = tmp_path / "kept", tmp_path / "page.md"
    choice = ["--kernel", "transpose", "--front-end", "tracer", "--target", "trn1", "--target", "trn2"]
    assert conformance(["neuronx", *choice, "--keep", str(kept), "--page", str(out)]) == 0
    assert f"--run {kept}" in capsys.readouterr().out
    shutil.rmtree(compiler)  # nrtpy and nki exclude each other
    assert conformance(["neuronx", "--run", str(kept)]) == 2
    assert "pip install nrtpy" in capsys.readouterr().out
    (tmp_path / "nrtpy.py").write_text(NRTPY)
    (tmp_path / "nrtpy-1.0.dist-info").mkdir()
    (tmp_path / "nrtpy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: nrtpy\nVersion: 1.0\n")
    assert conformance(["neuronx", "--run", str(kept), "--page", str(out)]) == 1
    text = out.read_text()
    assert "| transpose, trn2, tracer | agrees | 0.250 ms |" in text and "nrtpy 1.0" in text
    assert "| transpose, trn1, tracer | FAILED: NrtError: NRT_FAILURE(6): another target |" in text
    shutil.rmtree(kept / "transpose, trn1, tracer")
    (kept / "transpose, trn2, tracer" / "kernel.neff").write_bytes(b"x" * 4096)
    assert conformance(["neuronx", "--run", str(kept), "--page", str(out)]) == 1
    assert "DIFFERS: 26000 of 26000 elements" in out.read_text()
    monkeypatch.delitem(sys.modules, "nrtpy")


def test_a_folder_without_programs_is_a_sentence(tmp_path, capsys):
    assert conformance(["neuronx", "--run", str(tmp_path)]) == 2
    assert "has no compiled kernels" in capsys.readouterr().out
