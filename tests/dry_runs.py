"""A dry run beside the run it stands for: the simulator adds up what is really launched, moved and multiplied."""

import math
import sys
from collections import Counter

import pytest

import trnpy
from nkisim.hardware import TRN2
from trnpy._call.decisions import _tally, work_of
from trnpy._engine import cost_model
from trnpy._engine.abstract_arrays import Outline, StandIn, usual
from trnpy._engine.engines import DeviceEngine
from trnpy._engine.engines import engine as at_hand
from trnpy._nki.kernels.outputs import outputs as outputs_of
from trnpy._nki.simulated import SimulatorRuntime
from trnpy._settings.policy import Policy


class Recorded(SimulatorRuntime):
    """The simulator, which adds up the products of its launches by the formats they multiply."""

    def __init__(self):
        super().__init__(TRN2)
        self.products = Counter()

    def run(self, name, /, *operands, **parameters):
        outputs = super().run(name, *operands, **parameters)
        form, flops = cost_model.KERNELS[name](*operands, **parameters)
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        assert tuple((b.shape, b.dtype.name) for b in found) == outputs_of(name, *operands, **parameters), name
        if flops:
            self.products[form] += flops
        return outputs


# Conversions by the numbers that they convert: their time also depends on the order of a matrix's elements in memory,
# which values may decide.
CONVERSIONS = {
    "float64_digits": lambda x, *_, **__: ("float32", float(math.prod(x.shape))),
    "float64_round": lambda v, *_, **__: ("float32", float(math.prod(v.shape))),
}


class Told:
    """What values decided in a run, in turn, so that a dry run can take the same."""

    def __init__(self, patch):
        self.patch, self.log = patch, []
        modules = [m for name, m in list(sys.modules.items()) if name.startswith("trnpy.")]
        self.modules = [m for m in modules if vars(m).get("usual") is usual]

    def note(self):
        def noted(value, otherwise):
            if isinstance(value, StandIn):  # a dry run of a step, which decides where it runs
                return otherwise
            self.log.append(value)
            return value

        self._tell(noted)

    def repeat(self):
        self._tell(lambda value, otherwise: self.log.pop(0))

    def _tell(self, function):
        for module in self.modules:
            self.patch.setattr(module, "usual", function)


def tallied(problem, work=None):
    """Not remembered."""
    policy, work = Policy(), work or work_of(problem)
    return _tally.__wrapped__(work._replace(method=problem.method), TRN2, policy)


def assert_dry_is_the_run(problem, before=0):
    """As many launches of each kernel, the same bytes each way, the same products.

    before: how often the engine has run the same problem already.
    """
    runtime = Recorded()
    engine, counters = DeviceEngine(runtime), runtime.counters
    with pytest.MonkeyPatch.context() as patch, trnpy.policy(precision="matched"), at_hand(engine):
        patch.setattr(cost_model, "KERNELS", cost_model.KERNELS | CONVERSIONS)
        told = Told(patch)
        told.note()
        tallied(problem)  # decides where the steps of a contraction run, which is remembered
        told.log.clear()
        for _ in range(before):
            problem.run(engine)
        work = work_of(problem)  # decisions are taken before a run, which may keep something
        kept = any(isinstance(o, Outline) and o.resident for o in work.options)
        if not kept:  # too small: one dry run is enough
            told.log.clear()
        launched, sent, fetched = Counter(counters.launches), counters.bytes_in, counters.bytes_out
        runtime.products.clear()
        problem.run(engine)
        told.repeat()
        tally = tallied(problem, work)
        assert not told.log
    assert dict(tally.launches) == dict(counters.launches - launched)
    assert (tally.bytes_in, tally.bytes_out) == pytest.approx(
        (counters.bytes_in - sent, counters.bytes_out - fetched), rel=0.01
    )
    assert dict(tally.products) == pytest.approx(runtime.products, rel=1e-12)
