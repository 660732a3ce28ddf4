"""The public tests of the array API standard on ``trnpy.xp``: ``python -m conformance array-api --suite FOLDER``.

FOLDER is a checkout of data-apis/array-api-tests with its submodule array-api, and pytest, hypothesis, ndindex and
pytest-json-report are installed. ``listed/array-api.txt`` has what fails, with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

LISTED = Path(__file__).with_name("listed") / "array-api.txt"
EXAMPLES = 20  # for each test


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance array-api", epilog="Other arguments are pytest's.")
    parser.add_argument("--suite", type=Path, required=True, metavar="FOLDER", help="checkout of array-api-tests")
    parser.add_argument("--simulator", action="store_true", help="every supported operation through the kernels")
    parser.add_argument("--max-examples", type=int, default=EXAMPLES, metavar="N", help=f"default {EXAMPLES}")
    options, rest = parser.parse_known_args(arguments)
    if not (options.suite / "array_api_tests").is_dir():
        parser.error(f"{options.suite} is no checkout of https://github.com/data-apis/array-api-tests")
    here = str(Path(__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "ARRAY_API_TESTS_MODULE": "trnpy.xp",
        "ARRAY_API_TESTS_VERSION": "2024.12",
    }
    if options.simulator:
        environment |= {"TRNPY_DEVICE": "simulator", "TRNPY_FORCE": "1"}
    files = rest if any(".py" in a for a in rest) else ["array_api_tests", *rest]
    # Without its configuration, a list outside of the checkout would move the folder to which names of tests refer.
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "-c", "pytest.ini", "-p", "no:cacheprovider"]
    command += ["--disable-deadline", f"--max-examples={options.max_examples}", f"--xfails-file={LISTED}", *files]
    return subprocess.run(command, cwd=options.suite, env=environment).returncode
