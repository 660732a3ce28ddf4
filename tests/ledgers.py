"""Hand-made ledgers for the tests of the report: runs as they happen, without running them."""

from __future__ import annotations

from types import FrameType
from typing import Any

from trnpy._call.dispatch import Decision, Reason
from trnpy._report.ledger import Ledger

OPENED = 100.0  # perf_counter seconds


KEPT: list[dict[str, Any]] = []  # the collector of Python 3.13.0 frees the variables of a generator's frame in use


def frame(file: str, line: int, module: str = "script") -> FrameType:
    """A frame that stands at ``line`` of ``file`` in ``module``, and has no caller."""
    code = compile("\n" * (line - 1) + "def here(): yield", file, "exec")
    space: dict[str, Any] = {"__name__": module}
    exec(code, space)
    space["started"] = space["here"]()
    next(space["started"])
    KEPT.append(space)
    here: FrameType = space["started"].gi_frame
    return here


def decision(
    op: str,
    host_s: float | None,
    device_s: float | None,
    *,
    on_device: bool = False,
    engine: str = "host",
    **more: object,
) -> Decision:
    """A priced decision for trn2; without times one for a call that was never priced."""
    if host_s is None:
        return Decision(op, False, Reason.SMALL, "at most 4096 elements")
    values: dict[str, object] = {
        "reason": Reason.FASTER if on_device else Reason.NO_DEVICE,
        "detail": "3.1 times" if on_device else "no device",
        "dtype": "float64",
        "flops": host_s * 4e10,
        "moved_bytes": int(host_s * 2e8),
        "machine": "trn2",
        "calibrated": True,
    }
    return Decision(op, on_device, host_s=host_s, device_s=device_s, engine=engine, **(values | more))  # type: ignore[arg-type]


class Idle:
    """The processor of a run that had it for all of its time."""

    waited_s, share = 0.0, 1.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


def closed(ledger: Ledger, at: float) -> Ledger:
    """``ledger`` as if closed at this time, on an idle host."""
    ledger.closed, ledger._cpu = at, Idle(at - ledger.opened)  # type: ignore[assignment]
    return ledger


def small() -> Ledger:
    """Four lines, 10 s: one product that trn2 wins, one it loses, small calls, an option it has not."""
    ledger = Ledger("small.py", opened=OPENED)
    script = "/home/ada/small.py"
    ledger.add(decision("numpy.einsum", 4.5, 1.5), OPENED + 1, 4.0, frame(script, 12))
    ledger.add(decision("numpy.einsum", 1.0, 3.0), OPENED + 5, 1.25, frame(script, 14))
    tiny, at = decision("numpy.matmul", None, None), frame(script, 20)
    for i in range(1500):
        ledger.add(tiny, OPENED + 7 + i * 1e-3, 2e-6, at)
    option = Decision("scipy.linalg.eigh", False, Reason.PARAM, "driver='evx' has no device path")
    ledger.add(option, OPENED + 9, 0.25, frame(script, 31))
    return closed(ledger, OPENED + 10)


def losing() -> Ledger:
    """A run that no device would make faster: every call is bound by its transfers."""
    ledger = Ledger("losing.py", opened=OPENED)
    at = frame("/home/ada/losing.py", 7)
    for i in range(40):
        ledger.add(decision("numpy.einsum", 0.02, 0.09, calibrated=False), OPENED + i * 0.1, 0.021, at)
    return closed(ledger, OPENED + 4.2)


def chemistry(device: str = "none", calls: int = 400) -> Ledger:
    """A density-fitted MP2 in the large: ``device`` is none, null or neuron."""
    ledger = Ledger("python -m trnpy examples/benzene_dfmp2.py", opened=OPENED)
    here, pyscf = "/home/ada/examples/benzene_dfmp2.py", "/opt/venv/lib/python3.11/site-packages/pyscf"
    now = OPENED + 0.9
    tiny = [decision(op, None, None) for op in ("numpy.einsum", "numpy.dot")]
    tiny_at = [frame(f"{pyscf}/scf/hf.py", 1201, "pyscf.scf.hf"), frame(f"{pyscf}/lib/diis.py", 260, "pyscf.lib.diis")]
    # op, host s, trn2 s (modelled), file, line, module
    kinds = [
        ("numpy.einsum", 0.062, 0.0103, f"{pyscf}/df/df_jk.py", 287, "pyscf.df.df_jk"),
        ("numpy.dot", 0.018, 0.0076, f"{pyscf}/df/incore.py", 143, "pyscf.df.incore"),
        ("numpy.einsum", 0.004, 0.0131, f"{pyscf}/scf/hf.py", 1010, "pyscf.scf.hf"),
        ("scipy.linalg.eigh", 0.021, 0.0198, f"{pyscf}/scf/hf.py", 1330, "pyscf.scf.hf"),
        ("numpy.einsum", 0.34, 0.041, here, 24, "__main__"),
        ("scipy.linalg.eigh", 0.024, 0.0199, here, 31, "__main__"),
        ("scipy.linalg.cholesky", 0.009, 0.0071, f"{pyscf}/df/incore.py", 88, "pyscf.df.incore"),
    ]
    frames = [frame(file, line, module) for *_, file, line, module in kinds]
    for i in range(calls):
        for d, at in zip(tiny, tiny_at, strict=True):
            for _ in range(20):
                ledger.add(d, now, 6e-6, at)
                now += 9e-6
        k = i % 4 if i < 0.8 * calls else 4 if i % 2 else (i // 2) % 3 + 4
        op, host_s, device_s, *_ = kinds[k]
        host_s *= 1 + 0.2 * ((i * 7919) % 11 - 5) / 5
        wins = device != "none" and device_s * 1.2 <= host_s
        measured = device_s * 1.07 if wins and device == "neuron" else host_s * 1.04
        engine = "neuron" if wins and device == "neuron" else "host"
        d = decision(op, host_s, device_s, on_device=wins, engine=engine, calibrated=i % 2 == 0)
        if device != "none" and not wins:
            detail = "0.25 flop/byte, 0.0083 to 0.017 s of transfers, modelled"
            d = decision(op, host_s, device_s, reason=Reason.MEMORY_BOUND, detail=detail, calibrated=i % 2 == 0)
        ledger.add(d, now, measured, frames[k])
        now += measured * 1.15
    option = Decision("scipy.linalg.eigh", False, Reason.PARAM, "driver='evx' has no device path")
    ledger.add(option, now, 0.31, frame(here, 40, "__main__"))
    return closed(ledger, now + 0.8)
