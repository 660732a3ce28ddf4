"""Tests of the runner of AWS's compiler, against stand-ins of its documented entry points."""

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


@pytest.mark.parametrize(("factor", "verdict"), [(1, "agrees to 0"), (2, "DIFFERS by 1")])
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
