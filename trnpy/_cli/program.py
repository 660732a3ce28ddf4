"""Run a script, a module or a string as ``__main__``, as if python itself had started it."""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import linecache
import os
import pkgutil
import sys
import types
from collections.abc import Callable
from typing import NoReturn

FRAME_WORDS = 1 << 16  # of 8 bytes
STARTS = ("-", "-m", "-c")  # arguments that can start a program in place of a file


class Ended:
    """How the program ended."""

    interrupted = False
    raised = False  # an exception, or SystemExit


def run_standard_input(args: list[str]) -> None:
    """As ``python args``; ``args`` is empty, or "-" and its arguments."""
    sys.argv = args or [""]
    _search("")
    _run(_standard_input)


def run_script(path: str, args: list[str]) -> None:
    """As ``python path args``: a file, or a directory or zip archive with a ``__main__``."""
    sys.argv = [path, *args]
    if pkgutil.get_importer(path) is not None:
        _search(os.path.abspath(path))
        _run(lambda: _load("__main__", f"can't find '__main__' module in {path!r}"))
    else:
        _search(os.path.dirname(os.path.realpath(path)))
        _run(lambda: _read(os.path.abspath(path)))


def run_module(name: str, args: list[str]) -> None:
    """As ``python -m name args``."""
    sys.argv = ["-m", *args]  # as python sets it while it imports the parent packages of the module
    _search(os.getcwd())
    _run(lambda: _located(name))


def run_code(source: str, args: list[str]) -> None:
    """As ``python -c source args``."""
    sys.argv = ["-c", *args]
    _search("")
    if sys.version_info >= (3, 13):  # these versions show the lines of -c in tracebacks
        linecache.cache["<string>"] = len(source), None, source.splitlines(keepends=True), "<string>"
    _run(lambda: (_compile(source.encode(), "<string>"), _main()))


def _search(first: str) -> None:
    """Make ``first`` the first place on the program's import path."""
    if not sys.flags.safe_path:
        sys.path.insert(0, first)


def _run(load: Callable[[], tuple[types.CodeType, types.ModuleType]]) -> None:
    try:
        program, main = load()
        sys.modules["__main__"] = main
        exec(program, vars(main))
    except SystemExit:
        Ended.raised = True
        raise
    except BaseException as why:
        Ended.raised = True
        Ended.interrupted = isinstance(why, KeyboardInterrupt)
        trace = why.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        why.__traceback__ = trace
        sys.excepthook(type(why), why, trace)
        # The traceback has been shown. Python sets the exit code, and ends the process by SIGINT if interrupted.
        sys.excepthook = lambda *shown: None
        raise


# Python keeps frames in blocks of 16 KB and unmaps a block when its last frame returns, so a loop whose calls begin at
# the end of a block maps one for each call. The runner's own frames would move the ends of blocks into such loops,
# which cost some programs a tenth of their time. A frame of half a megabyte gets a block of one megabyte, in which a
# thousand calls have room. Memory that is not used costs nothing.
_run.__code__ = _run.__code__.replace(co_stacksize=FRAME_WORDS)


def _main(file: str | None = None, loader: object = importlib.machinery.BuiltinImporter) -> types.ModuleType:
    """The module ``__main__`` as python makes it. multiprocessing finds the script by its ``__file__``."""
    main = types.ModuleType("__main__")
    vars(main).update(__loader__=loader, __annotations__={}, __builtins__=builtins)
    if file is not None:
        vars(main).update(__file__=file, __cached__=None)
    return main


def _compile(source: bytes, file: str) -> types.CodeType:
    return compile(source, file, "exec", dont_inherit=True)


def _read(path: str) -> tuple[types.CodeType, types.ModuleType]:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as why:
        _refuse(f"can't open file {path!r}: [Errno {why.errno}] {why.strerror}", 2)
    return _compile(source, path), _main(path, importlib.machinery.SourceFileLoader("__main__", path))


def _standard_input() -> tuple[types.CodeType, types.ModuleType]:
    main = _main("<stdin>")
    if sys.stdin.isatty():
        sys.modules["__main__"] = main
        import code

        with contextlib.suppress(ImportError):  # this Python was built without readline
            import readline
            import rlcompleter

            readline.set_completer(rlcompleter.Completer(vars(main)).complete)
            readline.parse_and_bind("tab: complete")
        code.interact(f"Python {sys.version}\nNumPy and SciPy are patched by trnpy.", local=vars(main), exitmsg="")
        return _compile(b"", "<stdin>"), main
    return _compile(sys.stdin.buffer.read(), "<stdin>"), main


def _located(name: str) -> tuple[types.CodeType, types.ModuleType]:
    if name.startswith("."):
        _refuse("Relative module names not supported")
    parent = name.rpartition(".")[0]
    try:
        if parent:
            importlib.import_module(parent)
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as why:
        if why.name is None or not f"{parent}.".startswith(f"{why.name}."):
            raise  # the package was found, but a module that it imports was not
        _refuse(f"Error while finding module specification for {name!r} (ModuleNotFoundError: {why})")
    if spec is not None and spec.submodule_search_locations is not None:
        main = f"{name}.__main__"
        return _load(main, f"No module named {main}; {name!r} is a package and cannot be directly executed")
    return _load(name, f"No module named {name}")


def _load(name: str, missing: str) -> tuple[types.CodeType, types.ModuleType]:
    # importlib.util.find_spec("__main__") would return the spec of the loaded __main__: trnpy's, which has none.
    spec = importlib.machinery.PathFinder.find_spec(name) if name == "__main__" else importlib.util.find_spec(name)
    if spec is None:
        _refuse(missing)
    get_code = getattr(spec.loader, "get_code", None)  # an optional method of loaders
    program = get_code(spec.name) if get_code is not None else None
    if program is None:
        _refuse(f"No code object available for {name}")
    main = _main(spec.origin, spec.loader)
    vars(main).update(__cached__=spec.cached, __package__=spec.parent, __spec__=spec)
    if name != "__main__":
        sys.argv[0] = spec.origin or name
    return program, main


def refuse(message: str) -> NoReturn:
    """Exit with a one-line message: the command line or a setting is wrong."""
    print(f"trnpy: {message}", file=sys.stderr)
    raise SystemExit(2)


def _refuse(message: str, status: int = 1) -> NoReturn:
    print(f"{sys.executable}: {message}", file=sys.stderr)
    raise SystemExit(status)
