"""AWS's nki-library on the simulator: which of its kernel files load, and which of its fast tests pass.

The tests run unmodified, against their own references and tolerances, in a process of their own with the plugin
``_library_plugin``. They need pytest, torch and allpairspy, which trnpy does not need.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nkisim.run.loader import load
from nkisim.table import print_table

NEEDED = ("pytest", "torch", "allpairspy")
ROOT = Path(__file__).parents[2]
VERDICTS = ("passed", "refused", "wrong", "slow", "large", "error", "skipped")  # large: beyond this machine's memory
UNWRITTEN = "of the scales it returns, 28 of 32 partitions are never written"
ZEROED = "both cores zero the whole output and then write their rows, without a barrier"
# Correct refusals by test and rule: the test breaks the rule, and no order on the hardware makes its result defined.
RIGHT = {
    ("test_rmsnorm_mx_quantize_tkg", 15): UNWRITTEN,
    ("test_rmsnorm_mx_quantize_tkg_residual", 15): UNWRITTEN,
    ("test_quantize_mx_hw", 16): UNWRITTEN,
    ("test_mxfp_load_performance", 16): UNWRITTEN,
    ("test_moe_tkg_dynamic", 21): "measured: the rows of a DMA transpose must lie a multiple of 32 bytes apart",
    ("test_folded_load_store_dst_batch", 37): ZEROED,
    ("test_moe_blockwise_mm_kernel_lnc2", 37): ZEROED,
    ("test_moe_cte_unified", 37): ZEROED,
}
# And by rule alone, where AWS documents the refusal, or neuronx-cc 2.27 was seen to refuse (docs/hardware.md).
RIGHT_RULES = {
    31: "documented: NKI 0.3 takes only integers for memset of integers (migration guide, strict type matching)",
    49: "measured: NCC_EGCA111, tensors with an address beside tensors without one",
}
# Errors of a test itself, before any kernel runs.
BROKEN = {"test_flat_kv_strided_mask_generation": "it looks up an argument without the suffix that it gave its name"}


@dataclass(frozen=True)
class Test:
    """One line of the plugin's results."""

    test: str
    verdict: str
    why: str
    seconds: float

    @property
    def function(self) -> str:
        return self.test.partition("[")[0].rpartition("::")[2]

    @property
    def file(self) -> str:
        return Path(self.test.partition("::")[0]).stem

    @property
    def excuse(self) -> str:
        """Why the simulator is not at fault for a refusal or an error; "" if it is, or if there is neither."""
        if self.verdict == "error":
            return BROKEN.get(self.function, "")
        rule = re.search(r"\[rule (\d+)\]$", self.why)
        if self.verdict != "refused" or rule is None:
            return ""
        return RIGHT.get((self.function, int(rule[1])), "") or RIGHT_RULES.get(int(rule[1]), "")

    @property
    def right(self) -> bool:
        """Whether the simulator is not at fault."""
        return bool(self.excuse) or self.verdict not in ("refused", "wrong", "error")


def files(folder: Path) -> list[tuple[Path, str]]:
    """Every file with a kernel, and why it does not load ("" if it does)."""
    found = []
    for file in sorted((folder / "src").rglob("*.py")):
        if "nki.jit" not in file.read_text(errors="replace"):
            continue
        try:
            load(file)
        except Exception as error:
            found.append((file.relative_to(folder), f"{type(error).__name__}: {error}"))
        else:
            found.append((file.relative_to(folder), ""))
    return found


def broken(folder: Path) -> list[Path]:
    """Files of the library that are not Python: Python itself refuses them, and what imports them cannot load."""
    found = []
    for file in sorted((folder / "src").rglob("*.py")):
        try:
            compile(file.read_text(errors="replace"), str(file), "exec")
        except SyntaxError:
            found.append(file.relative_to(folder))
    return found


def tests(folder: Path, most: int, seconds: int, wanted: str) -> list[Test]:
    """Run the library's fast tests: ``most`` sets of parameters of each (0: all), ``seconds`` for each."""
    with tempfile.TemporaryDirectory(prefix="trnpy-library-") as scratch:
        results = Path(scratch) / "results.jsonl"
        paths = [str(folder), str(folder / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [
            sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={folder}", "--noconftest", "-q", "--tb=no",
            "-p", "conformance.nki._library_plugin", "-p", "no:cacheprovider", "-m", "fast", "-k", wanted,
            "--continue-on-collection-errors", f"--trnpy-results={results}", f"--trnpy-most={most}",
            f"--trnpy-seconds={seconds}", "test/integration",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if not results.is_file():
            raise FileNotFoundError(f"no test ran: {' '.join((done.stderr or done.stdout).split())[-300:]}")
        return [Test(**json.loads(line)) for line in results.read_text().splitlines()]


def missing() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def main(folder: Path, most: int, seconds: int, wanted: str) -> int:
    """Print both tables; 1 if the simulator is wrong or refuses without a listed reason; 2 if nothing could run."""
    folder = folder.resolve()
    if not (folder / "src" / "nkilib_src").is_dir():
        print(f"conformance nki: {folder} has no src/nkilib_src: a checkout of aws-neuron/nki-library is needed")
        return 2
    found = files(folder)
    bad = [(str(file), why) for file, why in found if why]
    print(f"{len(found) - len(bad)} of {len(found)} files with kernels load")
    for file, why in bad:
        print(f"  {file}: {why}")
    names = [file.name for file in broken(folder)]
    if names:
        print(f"  not Python in this checkout, and so no fault of the simulator: {', '.join(names)}")
        bad = [(file, why) for file, why in bad if not any(f"{name} is not Python" in why for name in names)]
    if absent := missing():
        print(f"its tests need {', '.join(absent)}: pip install {' '.join(absent)}")
        return 2
    try:
        ran = tests(folder, most, seconds, wanted)
    except FileNotFoundError as error:
        print(f"conformance nki: {error}")
        return 2
    rows = []
    for place in dict.fromkeys((t.file, t.function) for t in ran):
        counts = Counter(t.verdict for t in ran if (t.file, t.function) == place)
        rows.append((*place, *(str(counts[v] or "") for v in VERDICTS)))
    print_table("fast tests of nki-library on the simulator", ("file", "test", *VERDICTS), rows)
    for test in ran:
        if test.verdict in ("refused", "wrong", "error"):
            excuse = f" (rightly: {test.excuse})" if test.right else ""
            print(f"{test.verdict}: {test.test.rpartition('::')[2]}: {test.why}{excuse}")
    total = Counter(t.verdict for t in ran)
    print(", ".join(f"{total[v]} {v}" for v in VERDICTS))
    return 0 if not bad and all(t.right for t in ran) else 1
