"""``python -m trnpy``: run any program with NumPy and SciPy accelerated, and report what ran where."""

from __future__ import annotations

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
from typing import Any, cast

from trnpy._base import distribution
from trnpy._base.ranks_env import Ranks, at_end, first, launched
from trnpy._cli import program as _program
from trnpy._patch.patch import patch_namespace, patch_status
from trnpy._report import ledger as _ledger
from trnpy._report.small_calls import NOTHING_CALLED
from trnpy._settings.policy import Policy, process_policy, set_process_policy, unknown_variables

Command = Callable[[list[str]], int]
# Commands whose main(argv) is in another module, which may need packages that are not installed.
DELEGATED = {
    "lint": ("trnpy._cli.simulate", "check the source of NKI kernels"),
    "simulate": ("trnpy._cli.simulate", "run NKI kernels on the simulator"),
    "chem": ("trnpy.chem.cli", "quantum chemistry"),
    "blocks": ("trnpy.sparse.cli", "show the block structure of a sparse matrix"),
}


class Options:
    """The runner's options and their default values."""

    device: str | None = None
    machine: str | None = None
    precision: str | None = None
    strict = force = arguments = measure_routes = no_report = verbose = False
    ranks = 1
    report: Path | None = None
    html: Path | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status, or raises the program's exception."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and (command := _command(argv[0])) is not None:
        return _carried_out(command, argv)
    options, rest = Options(), argv
    if argv and argv[0].startswith("-") and argv[0] not in _program.STARTS:
        from trnpy._cli.options import parse  # a command line without options needs no parser

        rest = parse(argv, options, _commands)
    if options.ranks > 1:
        return _over_ranks(options.ranks, argv[: len(argv) - len(rest)], rest)
    program, rest = rest, rest or ["-"]
    if rest in (["-m"], ["-c"]):
        _program.refuse(f"nothing to run: expected {'a module' if rest == ['-m'] else 'code'} after {rest[0]}")
    if rest[0] not in _program.STARTS and not os.path.exists(rest[0]):
        _refuse_misspelt(rest[0])
    _settle(options)
    if conflict := distribution.conflict():
        _print(conflict)
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
    elif rest[0] == "-":
        _program.run_standard_input(program)
    else:
        _program.run_script(rest[0], rest[1:])
    return 0


def _refuse_misspelt(name: str) -> None:
    """Exit with one line if ``name``, which is not a file, resembles a command."""
    import difflib

    if name.isalpha() and (near := difflib.get_close_matches(name, _commands(), 1)):
        _program.refuse(f"{name!r} is neither a file nor a command: did you mean {near[0]!r}?")


def _over_ranks(ranks: int, options: list[str], program: list[str]) -> int:
    """Run the command line in ``ranks`` processes; returns the exit status."""
    from trnpy.dist._launch import run

    if launched() > 1:
        _program.refuse(f"--ranks {ranks}: mpiexec has started {launched()} ranks already")
    if program in ([], ["-"]):
        _program.refuse(f"--ranks {ranks}: expected a script, -m or -c; standard input is of one process")
    try:
        return run(ranks, ["-m", "trnpy", *options, "--ranks", "1", *program])
    except FileNotFoundError as why:
        _program.refuse(str(why))


def _commands() -> dict[str, str]:
    """The available commands with their descriptions."""
    own = {
        "doctor": "report versions, settings, devices and problems; exit status 1 if there is a problem",
        "calibrate": "measure this host once, in under a minute; with --kernels choose the tiles of kernels",
    }
    return own | {name: what for name, (module, what) in DELEGATED.items() if _exists(module)}


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
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
    """Run a command and return its exit status. If a file cannot be read or written, exit with one line."""
    try:
        status = command(argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as in python -m trnpy doctor | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # python flushes once more at exit
        return 1
    except OSError as why:
        if launched() > 1:  # trnpy.dist ends all ranks after an exception, and names the rank
            raise
        raise SystemExit(f"trnpy {argv[0]}: {why}") from None
    return status


def changes(options: Any) -> dict[str, Any]:
    """The policy fields that the options of ``settings`` change."""
    named: dict[str, Any] = {name: getattr(options, name) for name in ("device", "machine", "precision")}
    named |= {"fallback": "raise" if options.strict else None, "force": options.force or None}
    return {name: value for name, value in named.items() if value is not None}


def _settle(options: Options) -> None:
    """Set the policy of the run from variables and options; exits with one line if one is wrong."""
    try:
        policy = process_policy()
    except ValueError as why:
        _program.refuse(str(why))
    try:
        if changed := changes(options):
            policy = replace(policy, **changed)
        if policy.device not in ("auto", "none"):  # these cannot fail, so the first call that is not small opens them
            _open(policy)
    except ValueError as why:
        _program.refuse(f"--{why}")
    for option, file in (("report", "run.json"), ("html", "run.html")):
        path: Path | None = getattr(options, option)
        if path is not None and path.is_dir():
            _program.refuse(f"--{option} {path}: this is a directory; give a file, such as {path / file}")
        if path is not None and not path.parent.is_dir():
            _program.refuse(f"--{option} {path}: there is no directory {path.parent}")
    set_process_policy(policy)
    for complaint in unknown_variables(os.environ) if first() else ():  # only the first rank prints
        _print(complaint)


def _print(line: str) -> None:
    """Print ``line`` to standard error; if there is none, nothing: print() would use standard output instead."""
    if sys.stderr is not None:
        print(f"trnpy: {line}", file=sys.stderr)


def _open(policy: Policy) -> None:
    """Open the engine that ``policy`` names; exits with one line if there is none."""
    from trnpy._engine.engines import current_engine
    from trnpy._nki.runtime import DeviceUnavailable

    try:
        current_engine(policy)
    except DeviceUnavailable as why:
        _program.refuse(str(why))


def _title(program: Sequence[str], arguments: bool) -> str:
    """The name of the run in its reports; it omits the arguments, which may hold passwords, unless requested."""
    named = 2 if program[0] == "-m" else 1
    left_out = len(program) - named
    if arguments or not left_out:
        return " ".join(program)
    return f"{' '.join(program[:named])} ({left_out} argument{'s' * (left_out > 1)} not shown)"


def _record(options: Options, title: str) -> None:
    """Open a ledger, and report it when the process ends in any way, after all output of the program."""
    recording = _ledger.profile(title, measure_routes=options.measure_routes)
    ledger = recording.__enter__()
    process = os.getpid()
    # Absolute paths, because the program may change its directory.
    files = [(path.absolute(), write) for path, write in
             ((options.report, ledger.to_json), (options.html, ledger.to_html)) if path is not None]  # fmt: skip

    at_end(lambda comm: _shared(comm, ledger))

    def finish() -> None:
        if os.getpid() != process:
            return  # a fork of the program: only the first process reports
        recording.__exit__(None, None, None)
        if launched() > 1:
            _of_ranks(ledger)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stdout is closed, broken or None
            sys.stdout.flush()
        if first():  # only the first rank reports
            failures = filter(None, [_written(path, write) for path, write in files])
            if sys.stderr is not None:  # print() would use stdout instead
                _say(ledger, options, failures)
        if _program.Ended.interrupted:
            # Python exits through SIGINT if the last string passed to exec raised KeyboardInterrupt. Importing rich
            # has passed other strings to exec since, for its dataclasses.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    # Functions run in the reverse order of their registration: this one is registered first and runs last.
    atexit.register(finish)


def _shared(comm: Ranks, ledger: _ledger.Ledger) -> None:
    """Collect the records of all ranks in the first rank's ledger."""
    from trnpy.dist._collectives import report

    report(comm, ledger)


def _of_ranks(ledger: _ledger.Ledger) -> None:
    """As `_shared`, for the ranks of a program that uses mpi4py and not trnpy.dist."""
    from trnpy._report.ranks import parsed, payload
    from trnpy.dist._start import gathered

    ledger.ranks = ledger.ranks or parsed(gathered(payload(ledger)))


def _written(path: Path, write: Callable[[Path], None]) -> str:
    """Write the report to ``path``; returns an error message, or an empty string."""
    try:
        write(path)
    except OSError as why:
        return f"the report was not written: {why}"
    return ""


def _say(ledger: _ledger.Ledger, options: Options, failures: Iterable[str]) -> None:
    for failure in failures:
        print(f"trnpy: {failure}", file=sys.stderr)
    if not options.no_report and ledger.tallies:
        _ledger.print_report(ledger, sys.stderr, verbose=options.verbose)
    elif not (options.no_report or _program.Ended.raised):  # a program that failed may have made no calls yet
        for said in (NOTHING_CALLED, *_seen(ledger)):
            print(f"trnpy: {said}", file=sys.stderr)
    if options.verbose:
        for name, function in patch_status()["escaped"].items():
            print(f"trnpy: {name} is {function} from before the patch: its calls are not seen", file=sys.stderr)


def _seen(ledger: _ledger.Ledger) -> list[str]:
    """Sentences about work that patches do not reach."""
    if not (ledger.samples.seconds or ledger.samples.elsewhere.seconds or ledger.samples.elsewhere.native):
        return []
    from trnpy._report.brief import unseen

    return unseen(ledger)


def _introduce() -> None:
    from trnpy._engine.engines import available, current_engine

    settings = process_policy()
    engine = current_engine(settings)
    where = f"device {settings.device}: {engine.name if engine is not None else available()[1] or 'host only'}"
    print(f"trnpy: {where}; times of a device are modelled on {settings.machine}", file=sys.stderr)
    print(f"trnpy: patched {', '.join(patch_status()['installed'])}", file=sys.stderr)


def _patch_pyscf() -> None:
    importlib.import_module("trnpy.chem").patch_pyscf()
    if launched() > 1 or process_policy().reproducible:
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
    """Call ``action`` after package ``name`` has been imported, or at once if it has been already.

    This needs an import hook. Importing PySCF for every program would take a second, searching the program for the
    word "pyscf" would miss indirect imports, and a check at each call would come after names have been imported. The
    hook acts on one name, once, and then removes itself.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Once(name, action))
