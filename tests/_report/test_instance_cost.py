"""A run on a rented instance: its NeuronCores against its vCPUs, the split of each line, and the price of a run."""

import json

import ledgers
import pytest

from nkisim.hardware import ERROR_FACTOR, MACHINES
from trnpy._call.dispatch import Reason
from trnpy._engine.time_parts import Parts
from trnpy._nki.instances import INSTANCES, hardware_of
from trnpy._report.instance_cost import Estimate, busy_cores, estimate, rentals, split, spread
from trnpy._report.larger import ordered
from trnpy._report.ledger import Ledger
from trnpy._report.page import page
from trnpy._report.tally import Tally
from trnpy._report.text import plain
from trnpy._report.units import price
from trnpy._settings.policy import CHOICES

TRN2 = INSTANCES["trn2.48xlarge"]
PARTS = Parts(
    launch_s=0.01, send_s=0.3, fetch_s=0.1, to_digits_s=0.2, from_digits_s=0.1, engine_s=1.0, host_steps_s=0.1
)


def run(instance="trn2.48xlarge", calls=4, host_s=6000.0):
    """Products of 6,000 s each on one thread, of which an instance has 96 cores."""
    ledger = Ledger("run.py", opened=0.0)
    ledger.instance = INSTANCES[instance]
    d = ledgers.decision("numpy.matmul", host_s, sum(PARTS), parts=PARTS, flops=1e14)
    for i in range(calls):
        ledger.add(d, i * host_s, host_s, ledgers.frame("/home/ada/run.py", 3))
    ledger.closed = calls * host_s + 10.0
    return ledger


def test_instances_have_whole_chips_of_a_known_generation():
    for name, row in INSTANCES.items():
        assert (row.name, row.hardware) == (name, hardware_of(name)) and row.hardware is MACHINES[row.generation]
        assert row.rent is None or (row.rent.usd_per_h > 0 and row.rent.source)
    assert {name: row.cores for name, row in INSTANCES.items()} == {
        "trn1.2xlarge": 2, "trn1.32xlarge": 32, "trn1n.32xlarge": 32, "trn2.3xlarge": 8, "trn2.48xlarge": 128,
        "trn2u.48xlarge": 128, "trn3pd98.3xlarge": 8,
    }  # fmt: skip
    assert (TRN2.host_cores, TRN2.hbm_gib) == (96, 1536)
    assert set(INSTANCES) < set(CHOICES["machine"])


def test_calls_at_the_same_time_have_a_core_each_and_share_the_links_of_chips():
    cores, parts = spread(PARTS, 64, TRN2, 96)
    assert cores == 64 and parts.engine_s == PARTS.engine_s / 64 and parts.launch_s == PARTS.launch_s / 64
    assert parts.send_s == PARTS.send_s / 16 and parts.to_digits_s == PARTS.to_digits_s / 64
    assert spread(PARTS, 1, TRN2, 96) == (1, PARTS)


def test_one_product_is_split_by_rows_where_that_is_faster_and_nothing_else_is():
    cores, parts = split(PARTS, "numpy.matmul", TRN2)
    assert split(PARTS, "trnpy.chem.dfmp2_energy", TRN2) == (cores, parts)
    assert cores == 10 and sum(parts) < sum(PARTS)
    assert parts.send_s == PARTS.send_s and parts.engine_s == pytest.approx(PARTS.engine_s / 10, rel=1e-12)
    assert all(
        sum(parts) <= sum(PARTS._replace(launch_s=c * PARTS.launch_s, engine_s=PARTS.engine_s / c)) + 1e-12
        for c in range(1, 129)
    )
    assert split(PARTS, "scipy.linalg.eigh", TRN2) == (1, PARTS)


def test_small_calls_keep_few_cores_busy_lapack_fewer_and_eigenvalues_fewest():
    def cores(op, flops, calls=1, count=96):
        return busy_cores(count, calls, Tally(op, modelled=1, flops=flops))

    assert [cores("numpy.matmul", f) for f in (1e6, 1e9, 1e12)] == [1, 10, 96]
    assert [cores("scipy.linalg.cholesky", f) for f in (1e9, 1e10, 1e12)] == [1, 10, 96]
    for op in ("scipy.linalg.eigh", "numpy.linalg.svd", "pyscf.scf.hf.eig"):
        assert [cores(op, f) for f in (1e9, 2e9, 1e12)] == [1, 2, 4]
    assert [cores("scipy.linalg.eigh", 1e12, calls) for calls in (10, 100)] == [40, 96]
    assert cores("scipy.linalg.eigh", 1e12, count=2) == 2


def test_an_estimate_compares_neuroncores_with_the_vcpus_of_the_instance():
    ledger = run()
    e = estimate(ledger.by_line(), TRN2, 1, 24_010.0, 24_000.0, together=False)
    assert (e.here_s, e.vcpus_s) == pytest.approx((24_010.0, 10.0 + 24_000.0 / 96), rel=1e-12)
    (line,) = e.lines
    assert line.cores == 10
    fast_s, slow_s = e.cores_s
    total_s = sum(line.parts)
    assert (fast_s, slow_s) == pytest.approx((10.0 + total_s / ERROR_FACTOR, 10.0 + total_s * ERROR_FACTOR), rel=1e-12)
    assert e.dollars(3600.0) == 35.7608


@pytest.mark.parametrize("calibrated", [True, False])
def test_a_busy_host_adds_nothing_to_the_gain_of_neuroncores(calibrated):
    """A calibration knows the call's time; without one, the time that the thread had a processor counts."""
    quiet, busy = run(host_s=600.0), Ledger("run.py", opened=0.0)
    d = ledgers.decision("numpy.matmul", 600.0, sum(PARTS), parts=PARTS, flops=1e14, calibrated=calibrated)
    for i in range(4):
        ran_s = 2000.0 if calibrated else 600.0
        busy.add(d, i * 2000.0, 2000.0, ledgers.frame("/home/ada/run.py", 3), ran_s)
    found = [estimate(x.by_line(), TRN2, 1, 10_000.0, 10_000.0, False).lines[0].saved_s for x in (quiet, busy)]
    assert found[0] == found[1]


def test_the_report_names_instance_price_both_orders_and_the_split(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    ledger = run()
    text = plain(ledger)
    assert (
        "trnpy: trn2.48xlarge: 16 chips with 128 physical NeuronCores (LNC 1) and 1,536 GiB, "
        "192 vCPUs, 2,048 GiB of host memory, "
        "3,200 Gbit/s of network; $35.76 an hour (Capacity Block, 2026-10-09)"
    ) in text
    assert (
        "trn2.48xlarge, calls of a line one after another: 6 h 40 min on this machine, 4 min 20 s on its vCPUs" in text
    )
    assert "times faster than its vCPUs (modelled)" in text and "a run (predicted)" in text
    heading = "calls of a line at the same time; launches to host steps are modelled, to a factor of 1.45"
    assert f"on a trn2.48xlarge, {heading}" in text
    assert "conversions" in page(ledger) and "calls of a line at the same time" in page(ledger)
    ledger.to_json(tmp_path / "run.json")
    first, second = json.loads((tmp_path / "run.json").read_text())["instance"]
    assert (first["together"], second["together"]) == (False, True)
    assert first["lines"][0]["engine_s"] == pytest.approx(4 * PARTS.engine_s / 10, rel=1e-12)
    assert first["instance"]["rent"]["usd_per_h"] == 35.7608


def test_a_run_without_any_time_has_no_speedup():
    none = Estimate(TRN2, False, 0.0, 0.0, (0.0, 0.0), ())
    assert ordered(none, True).endswith("its NeuronCores make no difference to that (modelled)")


def test_prices_have_two_digits_or_whole_dollars():
    assert [price(x) for x in (0, 0.0000123, 0.0123, 0.4, 0.996, 1.24, 9.96, 120, 1240.4)] == [
        *("$0", "$0.000012", "$0.012", "$0.40", "$1.00", "$1.2", "$10.0", "$120", "$1,240"),
    ]


def test_without_a_price_or_vcpus_none_is_made_up():
    text = plain(run("trn3pd98.3xlarge"))
    assert "vCPUs not published" in text and "price not public" in text and "$" not in text
    assert rentals(ledgers.small()) == []


def test_without_a_device_the_report_shows_the_models_reason():
    ledger = Ledger("", opened=0.0)
    for line, reason in ((1, Reason.MEMORY_BOUND), (2, Reason.FASTER), (3, None)):
        d = ledgers.decision("numpy.dot", 1.0, 0.5, model_reason=reason, model_detail="as modelled" if reason else "")
        ledger.add(d, float(line), 1.0, ledgers.frame("x.py", line))
    assert {t.line: (t.reason, t.detail) for t in ledger.by_line()} == {
        1: ("memory_bound", "as modelled"),
        2: ("faster", "as modelled"),
        3: ("no_device", "no device"),
    }
    assert "host: memory_bound" in plain(ledger) and "host: faster on trn2" in plain(ledger)
