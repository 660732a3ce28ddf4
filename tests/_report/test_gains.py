"""What ``python -m benchmarks programs`` makes of a report."""

import pytest

from benchmarks import programs


def line(calls, seconds, modelled=0, sure_s=0.0, won_s=0.0, won_device_s=0.0):
    return {
        "calls": calls, "seconds": seconds, "modelled": modelled, "sure_s": sure_s, "won_s": won_s,
        "won_device_s": won_device_s,
    }  # fmt: skip


def report(*lines):
    part_s = sum(x["seconds"] for x in lines)
    instance = [{"vcpus_s": 10.0, "cores_s": (9.0, 9.0)}] * 2
    return {"what_if": {"accelerated_s": part_s}, "elapsed_s": part_s + 5.0, "by_line": lines, "instance": instance}


@pytest.mark.parametrize("waited", [1.0, 4.0])
def test_other_work_on_the_machine_hides_no_gain(waited):
    """Two seconds of the processor become half a second on the device, beside one second of small calls."""
    calls = line(3, 2.0 * waited, 3, 2.0, 2.0, 0.5), line(100, 1.0)
    part_s, core, *_ = programs.gains(report(*calls))
    assert part_s == 2.0 * waited + 1.0 and core == pytest.approx(3.0 / 1.5, rel=1e-12)


def test_calls_that_the_model_has_no_price_of_count_as_measured():
    assert programs.undisturbed([line(4, 3.0, 2, 1.0), line(1, 2.0)]) == 5.0
