"""Reasons: each has a meaning, and decisions and errors carry its phrase."""

import re

from nkisim.hardware import between
from trnpy._report.reasons import Decision, FallbackError, Reason, small_decision


def test_every_reason_has_a_meaning():
    sentences = [reason.meaning for reason in Reason]
    assert len(set(sentences)) == len(sentences) and all(re.match(r"(Host|Device): .+[^ ]\.$", s) for s in sentences)
    assert all(f"{reason.name}\n" in Reason.__doc__ and reason.meaning in Reason.__doc__ for reason in Reason)


def decided(**changes):
    facts = {"host_s": 3.0, "device_s": 2.0, "machine": "trn2"} | changes
    return Decision("numpy.dot", facts.pop("on_device", False), facts.pop("reason", Reason.SMALL), "a phrase", **facts)


def test_a_decision_is_a_line_with_place_reason_and_marked_times():
    assert (
        str(decided())
        == f"numpy.dot: host: small (a phrase; host 3 s predicted, uncalibrated, trn2 {between(2.0)} modelled)"
    )
    assert "uncalibrated" not in str(decided(calibrated=True))
    assert "trn2" not in str(decided(host_s=None)) and "4 physical cores of trn2" in str(decided(cores=4))


def test_the_way_is_the_method_on_a_device_and_the_route_on_the_host():
    ways = {"method": "jacobi", "route": "stack"}
    assert decided(on_device=True, **ways).where == "device by jacobi"
    assert decided(**ways).where == "host by stack"
    assert decided().where == "host"


def test_a_gain_needs_both_times():
    assert decided().gain_s == 1.0
    assert decided(host_s=None).gain_s == decided(device_s=None).gain_s == 0.0


def test_a_result_that_the_device_path_left_to_the_host_is_by_the_device_path():
    assert decided(reason=Reason.NO_LAUNCH).by_device_path and not decided(reason=Reason.NO_LAUNCH).on_device
    assert not decided().by_device_path


def test_decisions_about_small_calls_are_kept_and_say_the_limit():
    decision = small_decision("numpy.dot", 1000)
    assert small_decision("numpy.dot", 1000) is decision
    assert (decision.reason, decision.detail) == (Reason.SMALL, "at most 1,000 elements")
    assert small_decision("numpy.dot", 1000, "operations").detail == "at most 1,000 operations"


def test_the_error_of_a_refused_fallback_carries_its_decision():
    error = FallbackError(decided())
    assert isinstance(error, RuntimeError) and str(error) == str(error.decision) == str(decided())
