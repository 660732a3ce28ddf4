"""Suites of others on ``trnpy.xp``: ``python -m conformance array-api``, ``scikit-learn`` and ``scipy-array-api``.

Each runs a public suite, unmodified, in a process of its own. What did not pass is run again on array_api_strict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance._listed import FOLDER
from conformance.arrays._suites import GET, LIBRARY, STRICT, SUITES, Suite, environment

Outcomes = Mapping[str, tuple[str, str]]  # by test: passed, failed, listed, xfailed or skipped, and the reason
KINDS = ("passed", "failed", "listed", "xfailed", "skipped")
FAILED = 1


def parser(suite: Suite) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog=f"python -m conformance {suite.name}",
        description=f"Runs {suite.about}, on {LIBRARY}.",
        epilog="Other arguments are pytest's; --tb=short prints tracebacks. "
        "The exit code is 1 if an unlisted test fails or a listed one passes.",
    )
    if suite.name == "array-api":
        p.add_argument("--source", type=Path, metavar="DIR", help=f"a checkout of array-api-tests. {GET}")
    p.add_argument("--simulator", action="store_true", help="every supported operation through the kernels")
    p.add_argument(
        "--strict", action="store_true", help=f"run all tests on {STRICT}, too, not only those that did not pass"
    )
    p.add_argument("--library", default=LIBRARY, metavar="MODULE", help=f"test another namespace than {LIBRARY}")
    p.add_argument("--listed", type=Path, metavar="FILE", help="instead of conformance/listed/SUITE.yaml")
    return p


def main(name: str, arguments: list[str]) -> int:
    suite = SUITES[name]
    options, rest = parser(suite).parse_known_args(arguments)
    root = suite.root(options)
    asked = [a for a in rest if not a.startswith("-") and ".py" in a]
    extra = [a for a in rest if a not in asked]
    listed = options.listed or FOLDER / f"{suite.name}.yaml"
    own = ["--listed", str(listed), *(f"--asked={test}" for test in asked)] if options.library == LIBRARY else []
    own += ["--mode=forced"] if options.simulator else []
    with tempfile.TemporaryDirectory() as folder:
        run = Run(suite, root, Path(folder), options.simulator)
        code, outcomes = run.on(options.library, asked or suite.tests(root), [*own, *extra])
        if code not in (0, FAILED):  # collection ended and pytest has said why, or a signal ended pytest
            return code
        strict: Outcomes = {}
        rest_of = [test for test, (kind, _) in outcomes.items() if options.strict or kind != "passed"]
        if rest_of and options.library != STRICT:
            strict = run.beside(rest_of, options.library)
    print("\n".join(report(outcomes, strict, options.library)))
    return code


class Run:
    """Runs of one suite, each in a process of its own."""

    def __init__(self, suite: Suite, root: Path, folder: Path, simulator: bool) -> None:
        self.suite, self.root, self.folder, self.simulator = suite, root, folder, simulator

    def on(self, library: str, tests: list[str], arguments: list[str]) -> tuple[int, Outcomes]:
        """pytest's exit code, and the outcome of each test."""
        outcomes = self.folder / f"{library}.json"
        command = [sys.executable, "-m", "pytest", "-q", "-rN", "--tb=no", "--disable-warnings", "--rootdir=."]
        # Without a configuration file of ours; array-api-tests has its own.
        config = "pytest.ini" if self.suite.name == "array-api" else "/dev/null"
        command += ["-c", config, "-p", "no:cacheprovider", "-p", "conformance.arrays._plugin"]
        command += [word for plugin in self.suite.plugins for word in ("-p", plugin)]
        command += [f"--library={library}", f"--outcomes={outcomes}", *self.suite.arguments, *arguments, *tests]
        variables = environment(self.suite, library, self.simulator and library == LIBRARY)
        variables["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.folder / "examples")  # an earlier run decides nothing
        code = subprocess.run(command, cwd=self.root, env=variables).returncode
        found = json.loads(outcomes.read_text()) if outcomes.exists() else {}
        return code, {test: (kind, reason) for test, (kind, reason) in found.items()}

    def beside(self, tests: list[str], library: str) -> Outcomes:
        """The outcomes of ``tests`` on array_api_strict, under the names that they have for ``library``."""
        names = {test.replace(library, STRICT): test for test in tests}
        only = self.folder / "only.json"
        only.write_text(json.dumps(list(names)))
        print(f"\n{len(tests)} tests on {STRICT}:", flush=True)
        files = sorted({test.partition("::")[0] for test in tests})
        _, found = self.on(STRICT, files, [f"--only={only}"])
        return {names[test]: outcome for test, outcome in found.items()}


def report(outcomes: Outcomes, strict: Outcomes, library: str) -> Iterator[str]:
    """The lines that the command prints: the counts, the reasons of skipped tests, and each failure."""
    yield f"\n{'':22}" + "".join(f"{kind:>10}" for kind in KINDS)
    for name, found in ((library, outcomes), (STRICT, strict)):
        if found:
            counts = Counter(kind for kind, _ in found.values())
            yield f"{name:22}" + "".join(f"{counts[kind]:>10}" for kind in KINDS)
    for kind, title in (("skipped", "skipped"), ("xfailed", "expected to fail by the suite"), ("listed", "listed")):
        reasons = Counter(reason for found, reason in outcomes.values() if found == kind)
        for reason, count in reasons.most_common():
            passed = sum(
                strict.get(test, ("",))[0] == "passed" for test, found in outcomes.items() if found == (kind, reason)
            )
            yield f"{title}, {count} tests, of which {STRICT} passes {passed}: {' '.join(reason.split())}"
    bad = [test for test, (kind, _) in outcomes.items() if kind in ("failed", "listed")]
    beside = {test: strict.get(test, ("not run", ""))[0] for test in bad}
    both = sum(kind in ("failed", "xfailed") for kind in beside.values())
    yield f"{both} of {len(bad)} failures are failures of {STRICT}, too" if bad else "no test failed"
    unlisted = [test for test in bad if outcomes[test][0] == "failed"]
    alike = Counter((test.partition("[")[0], beside[test], outcomes[test][1]) for test in unlisted)
    for (test, kind, reason), count in alike.items():
        yield f"failed, {count} tests ({STRICT}: {kind}): {test}\n    {reason}"
