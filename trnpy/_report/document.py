"""The report as one document of JSON types."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trnpy._report.instance_cost import rentals
from trnpy._report.ranks import to_dict
from trnpy._report.run_record import Run
from trnpy._report.scaling import curve
from trnpy._report.small_calls import Call
from trnpy._report.what_if import predicted, priced
from trnpy._settings.host_rates import machine_id

SCHEMA = "trnpy-report/1"  # the number changes when readers of the file must change


def document(ledger: Run) -> dict[str, Any]:
    """The whole report in JSON types. ``schema`` names the layout; all times are in seconds."""
    calls, what_if = ledger.calls, predicted(ledger)
    return {
        "schema": SCHEMA,
        "title": ledger.title,
        "host": machine_id(),
        "began": ledger.began,
        "elapsed_s": what_if.elapsed_s,
        "what_if": {
            **asdict(what_if),
            "speedup": what_if.speedup,
            "verdict": what_if.verdict,
            "sentence": str(what_if),
        },
        "advice": [asdict(a) for a in priced(ledger)],
        "instance": [e.to_dict() for e in rentals(ledger)],
        "ranks": to_dict(ledger.ranks),
        "scaling": None if (found := curve(ledger)) is None else asdict(found),
        "by_function": [asdict(t) for t in ledger.by_function()],
        "by_line": [asdict(t) for t in ledger.by_line()],
        "missed": [asdict(t) for t in ledger.missed()],
        "regret": [asdict(t) for t in ledger.regret()],
        "engines": {
            name: {"faults": dict(h.causes), "refusals": dict(h.refusals), "rests": h.open}
            for name, h in ledger.engines.items()
        },
        "routes": [asdict(c) for c in ledger.comparisons.found.values()],
        "unrouted": [u._asdict() for u in ledger.unrouted()],
        "longest_calls": [_call(c, c.started - ledger.opened) for c in calls],
        "calls_not_listed": what_if.calls - len(calls),
    }


def _call(call: Call, started: float) -> dict[str, Any]:
    return {**call._asdict(), "decision": asdict(call.decision), "started": started}
