"""``python -m trnpy``: run any program with NumPy and SciPy accelerated, and report what ran where."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

from trnpy._base import distribution
from trnpy._cli import program as _program
from trnpy._engine.engines import available, current_engine
from trnpy._nki.runtime import DeviceUnavailable
from trnpy._patch.patch import patch_namespace, patch_status
from trnpy._report import ledger as _ledger
from trnpy._report.ranks import parsed, payload
from trnpy._report.text import past_patch
from trnpy._settings.policy import CHOICES, process_policy, set_process_policy
from trnpy.dist._collectives import report
from trnpy.dist._start import at_end, first, gathered, launched, uncoordinated

Command = Callable[[list[str]], int]
# Commands whose main(argv) is in another module, which may need packages that are not installed.
DELEGATED = {
    "lint": ("trnpy._nki.simulator.cli", "check the source of NKI kernels"),
    "simulate": ("trnpy._nki.simulator.cli", "run NKI kernels on the simulator"),
    "faults": (
        "trnpy._cli.faults",
        "plant faults in a simulated device, and count those that nobody notices",
    ),
    "chem": ("trnpy.chem.cli", "quantum chemistry"),
    "blocks": ("trnpy.sparse.cli", "how a sparse matrix falls into blocks"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status, or raises what the program raised."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and (command := _command(argv[0])) is not None:
        return _carried_out(command, argv)
    parser, takes_value = _parser()
    front, rest = _split(argv, takes_value)
    options = parser.parse_args(front)
    rest = rest or ["-"]
    if rest in (["-m"], ["-c"]):
        parser.error(f"nothing to run: expected {'a module' if rest == ['-m'] else 'code'} after {rest[0]}")
    _settle(parser, options)
    if (conflict := distribution.conflict()) and sys.stderr is not None:
        print(f"trnpy: {conflict}", file=sys.stderr)
    _record(options, _title(rest, options.arguments))
    patch_namespace("numpy")
    patch_namespace("numpy.linalg")
    for namespace in ("scipy.linalg", "scipy.sparse", "scipy.sparse.linalg"):
        after_import(namespace, functools.partial(patch_namespace, namespace))
    after_import("pyscf", _patch_pyscf)
    if options.verbose:
        _introduce()
    if rest[0] == "-m":
        _program.run_module(rest[1], rest[2:])
    elif rest[0] == "-c":
        _program.run_code(rest[1], rest[2:])
    else:
        _program.run_script(rest[0], rest[1:])
    return 0


class _Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        # Only for --help: finding out which commands are there imports their packages, and with them SciPy.
        commands = "\n".join(f"  {name:<12}{what}" for name, what in _commands().items())
        self.epilog = f"commands:\n{commands}\n\n{self.epilog}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"trnpy: {message}\n")


def _commands() -> dict[str, str]:
    """What this version can do besides running programs."""
    own = {
        "doctor": "say what is installed, what is set and what is wrong; exit status 1 if anything is",
        "calibrate": "measure this host once, in under a minute; with --kernels choose the tiles of kernels",
    }
    return own | {name: what for name, (module, what) in DELEGATED.items() if _exists(module)}


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _command(name: str) -> Command | None:
    if name in ("doctor", "calibrate"):
        return cast(Command, getattr(importlib.import_module("trnpy._cli.doctor"), name))
    if name in DELEGATED and _exists(module := DELEGATED[name][0]):
        # The simulator's two commands share a main, which reads their name.
        prefix = [name] if sum(module == other for other, _ in DELEGATED.values()) > 1 else []
        return lambda argv: int(importlib.import_module(module).main([*prefix, *argv]) or 0)
    return None


def _carried_out(command: Command, argv: list[str]) -> int:
    """Run a command and return its exit status. Files that cannot be read or written end it with one line."""
    try:
        status = command(argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as in python -m trnpy doctor | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # python flushes once more at exit
        return 1
    except OSError as why:
        if launched() > 1:  # trnpy.dist ends all ranks after an exception, and says on which it was
            raise
        raise SystemExit(f"trnpy {argv[0]}: {why}") from None
    return status


def _parser() -> tuple[argparse.ArgumentParser, set[str]]:
    """The parser of the options before the program, and the names of those that take a value."""
    parser = _Parser(
        prog="python -m trnpy",
        usage="python -m trnpy [option ...] [script.py | -m module | -c code | -] [argument ...]\n"
        "       python -m trnpy command [argument ...]",
        description="Run a Python program with NumPy's and SciPy's heavy functions on AWS Trainium where that is\n"
        "faster, then print what ran where and why. Without a device it runs as always, and the\n"
        "report says what a device would have done (modelled). Without a program it reads one from\n"
        "standard input, from a terminal line by line.",
        epilog="Processes that the program spawns run without trnpy. Those that it forks keep it, but the\n"
        "report is of the first process alone.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument_group("options").add_argument
    valued = [
        *settings(add),
        add("--report", metavar="FILE", type=Path, help="write the report as JSON"),
        add("--html", metavar="FILE", type=Path, help="write the report as a page"),
    ]
    add("--arguments", action="store_true", help="write the program's arguments, or its code, into the reports too")
    add("--measure-routes", action="store_true", help="run NumPy's function beside a sample of calls by other routes")
    add("--no-report", action="store_true", help="do not print the report")
    add("-v", "--verbose", action="store_true", help="also say what is patched, and what escapes")
    add("-V", "--version", action="version", version=f"trnpy {distribution.version()}")
    add("-h", "--help", action="help", help="show this and exit")
    return parser, {name for action in valued for name in action.option_strings}


def settings(add: Callable[..., argparse.Action]) -> list[argparse.Action]:
    """Add the options that change the policy; returns those that take a value."""
    add("--strict", action="store_true", help="an error instead of a fallback to the host")
    add("--force", action="store_true", help="send every supported call down the device path, however small")
    return [
        add("--device", metavar="D", help=f"{', '.join(CHOICES['device'])} (default auto)"),
        add("--machine", metavar="M", help=f"that null and the report model: {', '.join(CHOICES['machine'])}"),
        add("--precision", metavar="P", help=f"of products on a device: {', '.join(CHOICES['precision'])}"),
    ]


def changes(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of the policy that ``settings`` changed."""
    named: dict[str, Any] = {name: getattr(options, name) for name in ("device", "machine", "precision")}
    named |= {"fallback": "raise" if options.strict else None, "force": options.force or None}
    return {name: value for name, value in named.items() if value is not None}


def _split(argv: list[str], takes_value: set[str]) -> tuple[list[str], list[str]]:
    """trnpy's own options, and the rest: the program and all that follows it."""
    i = 0
    while i < len(argv) and argv[i] not in ("-", "-m", "-c") and argv[i].startswith("-"):
        i += 2 if argv[i] in takes_value else 1
    return argv[:i], argv[i:]


def _settle(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Set the policy of the run from variables and options; exits with one line if one is wrong."""
    try:
        policy = process_policy()
    except ValueError as why:
        parser.error(str(why))
    try:
        policy = replace(policy, **changes(options))
        current_engine(policy)
    except ValueError as why:
        parser.error(f"--{why}")
    except DeviceUnavailable as why:
        parser.error(str(why))
    for option in ("report", "html"):
        path: Path | None = getattr(options, option)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"--{option} {path}: expected a file in a directory that exists")
    set_process_policy(policy)


def _title(program: Sequence[str], arguments: bool) -> str:
    """The name of the run in its reports, without arguments unless asked: these may hold passwords."""
    named = 2 if program[0] == "-m" else 1
    left_out = len(program) - named
    if arguments or not left_out:
        return " ".join(program)
    return f"{' '.join(program[:named])} ({left_out} argument{'s' * (left_out > 1)} not shown)"


def _record(options: argparse.Namespace, title: str) -> None:
    """Open a ledger, and report it when the process ends in any way, after all output of the program."""
    recording = _ledger.profile(title, measure_routes=options.measure_routes)
    ledger = recording.__enter__()
    process = os.getpid()
    # Absolute paths, because the program may change its directory.
    files = [(path.absolute(), write) for path, write in
             ((options.report, ledger.to_json), (options.html, ledger.to_html)) if path is not None]  # fmt: skip

    at_end(lambda comm: report(comm, ledger))

    def finish() -> None:
        if os.getpid() != process:
            return  # a fork of the program: only the first process reports
        recording.__exit__(None, None, None)
        if launched() > 1:
            ledger.ranks = ledger.ranks or parsed(gathered(payload(ledger)))
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stdout is closed, broken or None
            sys.stdout.flush()
        if first():  # of the ranks
            written = [_written(path, write) for path, write in files]
            if sys.stderr is not None:  # print() would take stdout instead
                _say(ledger, options, written)
        if _program.Ended.interrupted:
            # Python dies of SIGINT if the last string that exec ran ended with KeyboardInterrupt. The dataclasses of
            # rich have run others since.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    # Functions run in the reverse order of their registration: this one is registered first and runs last.
    atexit.register(finish)


def _written(path: Path, write: Callable[[Path], None]) -> str:
    """Write the report to ``path``; returns what went wrong, or an empty string."""
    try:
        write(path)
    except OSError as why:
        return f"the report was not written: {why}"
    return ""


def _say(ledger: _ledger.Ledger, options: argparse.Namespace, failures: Iterable[str]) -> None:
    for failure in filter(None, (*failures, uncoordinated())):
        print(f"trnpy: {failure}", file=sys.stderr)
    if not options.no_report and ledger.tallies:
        _ledger.print_report(ledger, sys.stderr)
    elif not (options.no_report or _program.Ended.raised):  # which says nothing of a program that did not start
        for said in (str(ledger.what_if()), *past_patch(ledger)):
            print(f"trnpy: {said}", file=sys.stderr)
    if options.verbose:
        for name, function in patch_status()["escaped"].items():
            print(f"trnpy: {name} is {function} from before the patch: its calls are not seen", file=sys.stderr)


def _introduce() -> None:
    settings = process_policy()
    engine = current_engine(settings)
    where = f"device {settings.device}: {engine.name if engine is not None else available()[1] or 'host only'}"
    print(f"trnpy: {where}; times of a device are modelled on {settings.machine}", file=sys.stderr)
    print(f"trnpy: patched {', '.join(patch_status()['installed'])}", file=sys.stderr)


def _patch_pyscf() -> None:
    importlib.import_module("trnpy.chem").patch_pyscf()
    if launched() > 1:
        importlib.import_module("trnpy.chem.pyscf_ranks").take_over()


class _Once:
    """An import hook that calls ``action`` after the first import of package ``name``, and removes itself."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def then_act(module: types.ModuleType) -> None:
            del loader.exec_module  # removes our method from this loader, which is otherwise unchanged
            execute(module)
            sys.meta_path.remove(self)  # not in find_spec, which programs also call without importing
            self.action()

        loader.exec_module = then_act
        return spec


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` after package ``name`` has been imported; at once if it has been already.

    This takes an import hook. Importing PySCF for every program would take a second; searching the program for the
    word "pyscf" would miss indirect imports; and a check at each call would come after names have been imported. The
    hook acts on one name, once, and then removes itself.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Once(name, action))
