"""The runner's options: the parser of what stands before the program."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from trnpy._base import distribution
from trnpy._base.ranks_env import positive
from trnpy._cli.program import STARTS, refuse
from trnpy._settings.policy import CHOICES

Commands = Callable[[], Mapping[str, str]]  # names of commands, and what each does


def parse(argv: list[str], options: object, commands: Commands) -> list[str]:
    """Set attributes of ``options`` by trnpy's own options; returns the program and all that follows it."""
    parser, takes_value = _parser(commands)
    front, rest = _split(argv, takes_value)
    parser.parse_args(front, options)
    return rest


class _Parser(argparse.ArgumentParser):
    commands: Commands

    def format_help(self) -> str:
        # Only for --help: finding out which commands are there imports their packages, and with them SciPy.
        commands = "\n".join(f"  {name:<12}{what}" for name, what in self.commands().items())
        self.epilog = f"commands:\n{commands}\n\n{self.epilog}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        refuse(message)


def _parser(commands: Commands) -> tuple[argparse.ArgumentParser, set[str]]:
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
    parser.commands = commands
    add = parser.add_argument_group("options").add_argument
    valued = [
        *settings(add),
        add("--ranks", metavar="N", type=positive, help="run the program in N processes, by mpiexec"),
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
    add("--force", action="store_true", help="send every supported call to the device, however small")
    return [
        add("--device", metavar="D", help=f"{', '.join(CHOICES['device'])} (default auto)"),
        add("--machine", metavar="M", help=f"that null and the report model: {', '.join(CHOICES['machine'])}"),
        add("--precision", metavar="P", help=f"of products on a device: {', '.join(CHOICES['precision'])}"),
    ]


def _split(argv: list[str], takes_value: set[str]) -> tuple[list[str], list[str]]:
    """trnpy's own options, and the rest: the program and all that follows it."""
    i = 0
    while i < len(argv) and argv[i] not in STARTS and argv[i].startswith("-"):
        i += 2 if argv[i] in takes_value else 1
    return argv[:i], argv[i:]
