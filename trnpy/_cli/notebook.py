"""``%load_ext trnpy`` and its ``%%trnpy``: run one cell of a notebook with everything patched, and show its report."""

from __future__ import annotations

import argparse
import ast
import importlib
from typing import Any, NoReturn

from trnpy._cli.options import settings, suggestion
from trnpy._cli.runner import changes
from trnpy._patch.patch import patched
from trnpy._report.ledger import profile

FIRST = "# %%trnpy\n"  # replaces the magic's line, so that lines keep the numbers that the cell shows


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _wrong(message + suggestion(message, self))


def _wrong(message: str) -> Exception:
    """An error that IPython shows as one line."""
    error: Exception = importlib.import_module("IPython.core.error").UsageError(f"%%trnpy: {message}")
    return error


def load(shell: Any) -> None:
    """Add ``%%trnpy`` to an IPython shell."""

    def trnpy(line: str, cell: str) -> None:
        """Run the cell with NumPy and SciPy patched, and show what ran where, why and how long.

        %%trnpy [--device D] [--machine M] [--precision P] [--strict] [--force], as for `python -m trnpy`. Names that
        earlier cells imported from NumPy and SciPy are also patched while the cell runs.
        """
        __tracebackhide__ = True  # IPython leaves such frames out of tracebacks
        parser = _Parser(prog="%%trnpy", add_help=False, allow_abbrev=False)
        settings(parser.add_argument)
        try:
            block = patched(rebind=True, **changes(parser.parse_args(line.split())))
        except ValueError as why:
            raise _wrong(str(why)) from None
        with block, profile(f"Cell In[{_number(shell)}]") as ledger:  # opened last: it reads the cell's settings
            try:
                _run(shell, cell)
            finally:
                importlib.import_module("IPython.display").display(ledger)

    shell.register_magic_function(trnpy, "cell")


def unload(shell: Any) -> None:
    """Remove ``%%trnpy`` from an IPython shell."""
    shell.magics_manager.magics["cell"].pop("trnpy", None)


def _number(shell: Any) -> int:
    """The number of the running cell. In some releases of IPython ``execution_count`` is that of the next cell."""
    return len(shell.history_manager.input_hist_raw) - 1


def _run(shell: Any, cell: str) -> None:
    """Run a cell as IPython would, and show the value of a last expression. Errors propagate to the caller."""
    __tracebackhide__ = True
    text = shell.transform_cell(FIRST + cell)
    file = shell.compile.cache(text, _number(shell), raw_code=FIRST + cell)
    body = shell.transform_ast(ast.parse(text, file)).body
    last = body[-1:] if body and isinstance(body[-1], ast.Expr) else []
    exec(compile(ast.Module(body[: len(body) - len(last)], []), file, "exec"), shell.user_ns)
    if last:
        exec(compile(ast.Interactive(last), file, "single"), shell.user_ns)
