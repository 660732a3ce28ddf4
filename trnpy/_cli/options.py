"""The runner's options: the parser of the arguments before the program."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from trnpy._base import distribution
from trnpy._base.ranks_env import positive
from trnpy._cli.program import STARTS, refuse
from trnpy._settings.policy import CHOICES

Commands = Callable[[], Mapping[str, str]]  # names of commands, and their descriptions


def parse(argv: list[str], options: object, commands: Commands) -> list[str]:
    """Set attributes of ``options`` from trnpy's own options; returns the program and all that follows it."""
    parser, takes_value = _parser(commands)
    front, rest = _split(argv, takes_value)
    parser.parse_args(front, options)
    return rest


class _Parser(argparse.ArgumentParser):
    commands: Commands

    def format_help(self) -> str:
        # Only for --help, because finding the available commands imports their packages and SciPy.
        commands = "\n".join(f"  {name:<12}{what}" for name, what in self.commands().items())
        self.epilog = f"commands:\n{commands}\n\n{self.epilog}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        refuse(message + suggestion(message, self))


def near(word: str, known: Iterable[str]) -> str:
    """ ": did you mean --device?" if ``word`` resembles a known one, otherwise ""."""
    import difflib  # for mistakes only

    found = difflib.get_close_matches(word, list(known), 1)
    return f": did you mean {found[0]}?" if found else ""


def suggestion(message: str, parser: argparse.ArgumentParser) -> str:
    """``near`` for the first option that argparse's ``message`` names, unless the parser has it."""
    option = next((word.partition("=")[0].rstrip(":") for word in message.split() if word.startswith("--")), "")
    known = [name for action in parser._actions for name in action.option_strings]
    return "" if option in known else near(option, known)


def _parser(commands: Commands) -> tuple[argparse.ArgumentParser, set[str]]:
    """The parser of the options before the program, and the names of the options with a value."""
    parser = _Parser(
        prog="python -m trnpy",
        usage="python -m trnpy [option ...] [script.py | -m module | -c code | -] [argument ...]\n"
        "       python -m trnpy command [argument ...]",
        description="Run a Python program with NumPy's and SciPy's heavy functions on AWS Trainium if that is\n"
        "faster, then print what ran where and why. Without a device the program runs as usual, and\n"
        "the report predicts what a device would change (modelled). If no program is given, it is read\n"
        "from standard input; on a terminal, line by line.",
        epilog="Processes that the program spawns run without trnpy. Forked processes keep it, but the report\n"
        "covers only the first process.",
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
        add("--html", metavar="FILE", type=Path, help="write the report as an HTML page"),
    ]
    add("--arguments", action="store_true", help="include the program's arguments or code in the reports")
    add("--measure-routes", action="store_true", help="also run NumPy's function for a sample of CPU fast path calls")
    add("--no-report", action="store_true", help="do not print the report")
    add("-v", "--verbose", action="store_true", help="print the full report, the patched names and those that escape")
    add("-V", "--version", action="version", version=f"trnpy {distribution.version()}")
    add("-h", "--help", action="help", help="show this and exit")
    return parser, {name for action in valued for name in action.option_strings}


def settings(add: Callable[..., argparse.Action]) -> list[argparse.Action]:
    """Add the options that change the policy; returns the options with a value."""
    add("--strict", action="store_true", help="an error instead of a fallback to the host")
    add("--force", action="store_true", help="send every supported call to the device, however small")
    return [
        add("--device", metavar="D", help=f"{', '.join(CHOICES['device'])} (default auto)"),
        add("--machine", metavar="M", help=f"machine that null and the report model: {', '.join(CHOICES['machine'])}"),
        add("--precision", metavar="P", help=f"precision of products on a device: {', '.join(CHOICES['precision'])}"),
    ]


def _split(argv: list[str], takes_value: set[str]) -> tuple[list[str], list[str]]:
    """trnpy's own options, and the rest: the program and all that follows it."""
    i = 0
    while i < len(argv) and argv[i] not in STARTS and argv[i].startswith("-"):
        i += 2 if argv[i] in takes_value else 1
    return argv[:i], argv[i:]
