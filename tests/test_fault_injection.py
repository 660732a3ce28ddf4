"""Faults injected into the simulated device are noticed or harmless; ``conformance faults --full`` has more."""

import itertools

import numpy as np
import pytest

from conformance.fault_injection import DAMAGES, KINDS, sound_engines
from conformance.faults import ROWS, Campaign, main
from conformance.healthy import HEALTHY, HOSTILE, PRODUCTS, alarms, hostile, refused
from trnpy._engine.proof import checksums

SAMPLE = ["matmul float64", "matmul float32", "matmul bf16", "matmul int64", "csr @", "lu", "solve", "eigvalsh of some"]


def outcomes(row):
    campaign = Campaign(ROWS[row])
    found = list(campaign.outcomes(2 * len(KINDS), seed=1))
    assert not campaign.alarms and [f.kind for f, _ in found[: len(KINDS)]] == [*KINDS]
    return found


@pytest.mark.parametrize("row", SAMPLE)
def test_no_planted_fault_leaves_an_error_above_its_target(row):
    found = outcomes(row)
    assert [(f, e) for f, e in found if e is not None and not e <= 1] == []
    noticed = {f.kind for f, e in found if e is None}
    assert {"raises", "compile error", "hangs", "zeros"} <= noticed


def test_without_proofs_the_campaign_finds_silent_errors(monkeypatch):
    monkeypatch.setattr(checksums, "accept", lambda *_, **__: None)
    silent = {f.kind for f, e in outcomes("matmul float32") if e is not None and not e <= 1}
    assert {"zeros", "stale", "tiles swapped"} <= silent


@pytest.mark.parametrize("kind", DAMAGES)
def test_each_damage_changes_an_array(kind):
    for dtype in ("f4", "u1", "i8"):
        rng = np.random.default_rng(0)
        x = rng.integers(1, 100, (256, 300)).astype(dtype)
        before = x.copy()
        DAMAGES[kind](x, np.roll(x, 1), rng)
        assert not np.array_equal(x, before), dtype


@pytest.mark.parametrize("name", [name for name in HEALTHY if name not in PRODUCTS])
def test_no_check_fails_a_sound_result_of_hostile_data(name):
    rng, (sound, _) = np.random.default_rng(0), sound_engines()
    others = HOSTILE if any(part in name for part in ("solve", "lstsq", "csr")) else ["normal"]
    for n, left, right in itertools.product((3, 33), HOSTILE, others):
        operands = [hostile(family, n, "f8", rng) for family in (left, right)]
        assert not refused(sound, HEALTHY[name], operands), (n, left, right)


def test_healthy_calls_on_hostile_data_are_not_taken_for_faults(monkeypatch):
    assert list(alarms(300, seed=1)) == []
    monkeypatch.setattr(checksums, "CERTIFIED", 1e-3)
    monkeypatch.setattr(checksums, "DEVIATIONS", 1e-3)
    assert next(alarms(300, seed=1))


def test_the_command_prints_a_table_and_fails_if_an_error_is_silent(capsys, monkeypatch):
    assert main(["--rows", "matmul float32", "--faults", str(len(KINDS))]) == 0
    said = capsys.readouterr().out
    assert "matmul float32" in said and f"{len(KINDS)} faults" in said and ": 0 undetected (seed 0)" in said
    with monkeypatch.context() as without:
        without.setattr(checksums, "accept", lambda *_, **__: None)
        assert main(["--rows", "matmul float32", "--faults", "12"]) == 1
    assert main(["--healthy", "20"]) == 0 and "20 healthy calls" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--rows", "nonsense"])
    assert ended.value.code == 2
