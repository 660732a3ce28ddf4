"""``python -m trnpy calibrate --kernels``: the cases that it times, the tiles that it keeps, and what it says."""

import pytest

from nkisim.hardware import TRN1, TRN2
from trnpy._cli import doctor, timings
from trnpy._engine import tuning
from trnpy._engine.engines import DeviceEngine
from trnpy._nki.kernels.shared.parameters import for_digits
from trnpy._nki.runtime import CompileError
from trnpy._nki.simulated import SimulatorRuntime, kernel

CUBE = (128, 128, 128)


class Compiling(SimulatorRuntime):
    """A simulator of a device on which new shapes take time, which it states."""

    name = "neuron"
    compiles = True

    def run(self, name, /, *operands, **parameters):
        before = sum(self.counters.compiles.values())
        result = super().run(name, *operands, **parameters)
        if sum(self.counters.compiles.values()) > before:
            self.counters.compile_s[name] = 7.0
        return result


def case(kernel, extents):
    return next(c for c in timings.cases(TRN2) if c.kernel == kernel and c.extents == extents)


@pytest.mark.parametrize("kernel", ["matmul", "matmul turned", "abs_bound", "float64_matmul", "float64_matmul halved"])
def test_the_model_chooses_nothing_slower_than_the_default(kernel):
    for n in (128, 512):
        c = case(kernel, (n, n, n))
        found = timings.choose(c, DeviceEngine(SimulatorRuntime(TRN2)))
        assert found.seconds <= timings.modelled_s(c, c.default.tiles, TRN2) and not found.measured


def test_small_products_of_digits_take_small_tiles():
    assert (
        timings.choose(case("float64_matmul", CUBE), DeviceEngine(SimulatorRuntime(TRN2))).tiles
        != for_digits(7, TRN2).tiles
    )


@pytest.mark.parametrize("machine", [TRN1, TRN2], ids=lambda m: m.name)
def test_every_case_names_a_kernel_and_its_default_first(machine):
    for c in timings.cases(machine):
        assert c.default.tiles in c.tilings and set(c.tilings) <= tuning.TILINGS
        kernel(c.name)


class Timed(Compiling):
    """A device on which only some tiles compile, and the fewer the faster."""

    refused = ()
    launches = 0

    def run(self, name, /, *operands, **parameters):
        self.launches += 1
        if parameters["m_tiles"] in self.refused:
            raise CompileError("NCC_ITEN404")
        return super().run(name, *operands, **parameters)


def test_a_device_decides_among_the_best_of_the_model(monkeypatch):
    seconds = {8: 3.0, 4: 2.0, 2: 1.0}
    now = [0.0]
    monkeypatch.setattr(timings.time, "perf_counter", lambda: now[0])

    class Clock(Timed):
        def run(self, name, /, *operands, **parameters):
            now[0] += seconds[parameters["m_tiles"]]
            return super().run(name, *operands, **parameters)

    monkeypatch.setattr(timings, "modelled_s", lambda c, tiles, machine: -tiles[0] - tiles[2] / 100)
    found = timings.choose(case("matmul", CUBE), DeviceEngine(Clock(TRN2)))
    assert found.measured and found.tiles[0] == 8 and found.seconds == 3.0  # the model left it nothing else
    monkeypatch.setattr(timings, "modelled_s", lambda c, tiles, machine: tiles[0])
    found = timings.choose(case("matmul", CUBE), DeviceEngine(Clock(TRN2)))
    assert found.measured and found.tiles[0] == 2 and found.seconds == 1.0
    Clock.refused = (2,)
    assert timings.choose(case("matmul", CUBE), DeviceEngine(Clock(TRN2))).tiles[0] in (4, 8)


def test_a_kernel_that_never_compiles_is_said_and_left_out(monkeypatch):
    only = case("matmul", CUBE)
    monkeypatch.setattr(timings, "cases", lambda machine: [only])
    runtime, said = Timed(TRN2), []
    runtime.refused = (2, 4, 8)
    assert timings.calibrate(DeviceEngine(runtime), said.append, lambda what, fraction: None, 1.0) == (0, 1)
    assert "failed: NCC_ITEN404" in said[0]


def test_the_command_keeps_what_it_had_time_for(monkeypatch, capsys):
    monkeypatch.setattr(timings, "MODELLED_BUDGET_S", 0.0)
    assert doctor.calibrate(["--kernels", "--device", "simulator"]) == 0
    said = capsys.readouterr().out
    assert "modelled, no device, at most 0 s" in said and "us modelled" in said and "1 of " in said
    assert "have their defaults" in said and len(tuning.load("simulator", "trn2").choices) == 1
    assert doctor.doctor([]) == 0
    assert "tiles of 1 shapes, 0 measured and 1 modelled" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, status, says",
    [
        (["--kernels"], 1, "nothing to time, and nothing was stored: no Neuron device"),
        (["--kernels", "--device", "neuron"], 1, "nothing to time, and nothing was stored: TRNPY_DEVICE=neuron"),
        (["--kernels", "--device", "null"], 2, "expected neuron or simulator"),
        (["--help"], 0, "--kernels"),
    ],
)
def test_what_else_the_command_says(argv, status, says, capsys):
    assert doctor.calibrate(argv) == status
    assert says in "".join(capsys.readouterr())
