"""What a proof needs of the operands is summed while the device computes, in a thread, and dry runs price it so."""

import threading

import numpy as np
import pytest
from doubles import RecordingEngine

from nkisim.hardware import TRN2
from trnpy._engine import at_once
from trnpy._engine.abstract_arrays import new
from trnpy._engine.cost_model import DryRuntime, tally
from trnpy._engine.device import DeviceEngine
from trnpy._engine.handles import stored
from trnpy._engine.precision import Facts
from trnpy._engine.proof import checksums
from trnpy._engine.proof.engine import Proving
from trnpy._engine.tuning import Tuning
from trnpy._settings.host_rates import current_rates

N = 300


class Beside(RecordingEngine):
    """An engine that waits in its products until the operands have been summed, in another thread."""

    parallel = True
    wrong = 0.0

    def matmul(self, a, b, **options):
        assert summed.wait(10)
        c = a @ b
        c[3, 5] += self.wrong
        return c

    gram = None


summed = threading.Event()


@pytest.fixture
def threads(monkeypatch):
    """The names of the threads that sum operands."""
    names, sums = [], checksums.sums

    def recorded(*args, **options):
        names.append(threading.current_thread().name)
        found = sums(*args, **options)
        summed.set()
        return found

    summed.clear()
    monkeypatch.setattr(checksums, "sums", recorded)
    return names


def operands(n=N, dtype="f8"):
    rng = np.random.default_rng(n)
    return [rng.standard_normal((n, n)).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("dtype", ["f8", "c16", "f4"])
def test_operands_are_summed_while_a_device_computes_and_its_product_is_proved(threads, dtype):
    a, b = operands(dtype=dtype)
    np.testing.assert_array_equal(Proving(Beside()).matmul(a, b), a @ b)
    assert threads == ["trnpy beside"]


def test_operands_that_stay_are_summed_before_the_words_of_their_product_arrive(threads):
    a, b = operands()
    prove = checksums.begun(stored(a), stored(b), 7, True)
    assert summed.wait(10) and threads == ["trnpy beside"]
    prove(a @ b)
    with pytest.raises(checksums.Wrong, match="wrong by"):
        checksums.begun(stored(a), stored(b), 7, True)(a @ b + 1e-6)


def test_a_wrong_product_is_noticed(threads):
    engine = Beside()
    engine.wrong = 1e-2
    with pytest.raises(checksums.Wrong):
        Proving(engine).matmul(*operands())


def test_small_operands_and_other_engines_take_no_thread(threads):
    small = int((checksums.BESIDE / 2) ** 0.5) - 1
    summed.set()
    Proving(Beside()).matmul(*operands(small))
    Proving(RecordingEngine()).matmul(*operands())
    assert set(threads) == {threading.current_thread().name}


def test_errors_of_the_other_thread_are_raised_in_this_one():
    def fails():
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        at_once.beside(fails)()
    assert at_once.beside(lambda: 3)() == 3


def modelled(n):
    runtime = DryRuntime(TRN2)
    engine = Proving(DeviceEngine(runtime, Tuning(), Facts()))
    engine.matmul(*(new((n, n), np.dtype(float), runtime.count) for _ in range(2)))
    return tally([runtime])


def test_a_dry_run_counts_of_a_proof_what_the_device_does_not_hide():
    n = 4096
    counted, rates = modelled(n), current_rates()
    host = {kind: elements for (kind, *_), elements in counted.host}
    assert host["beside proof"] == 2 * n * n and host["proof of result"] == n * n
    assert counted.parts(TRN2, rates).from_digits_s == rates.step_s("proof of result", n, n * n)
    assert (("proof", 128, "d"), 2.0 * 128 * 128) in modelled(128).host  # small: no thread


def test_sums_that_take_longer_than_the_device_count_with_the_rest():
    counted = modelled(1024)
    amount, rates = 1e9, current_rates()
    host = tuple(((kind, *key), amount if kind == "beside proof" else 0.0) for (kind, *key), _ in counted.host)
    longer = type(counted)(counted.launches, counted.products, counted.bytes_in, counted.bytes_out, host)
    parts = longer.parts(TRN2, rates)
    hidden = parts.launch_s + parts.send_s + parts.engine_s
    assert parts.from_digits_s == pytest.approx(rates.step_s("proof", 1024, amount) - hidden, rel=1e-12)
