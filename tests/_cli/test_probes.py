"""doctor --probe: hardware that is what products rest on passes; what differs is named, kept and acted upon."""

import numpy as np
import pytest

import nkisim.isa
from nkisim.hardware import TRN2
from nkisim.lint.linter import lint_file, lint_launch
from nkisim.run.launch import run
from trnpy._base import store
from trnpy._cli import doctor, probes
from trnpy._engine.cost_model import DryRuntime
from trnpy._engine.engines import DeviceEngine, Refused
from trnpy._engine.precision import FORMS, Facts, facts_path, probed, save_facts
from trnpy._nki import device
from trnpy._nki.device import identity
from trnpy._nki.kernels import FOLDER, source
from trnpy._nki.runtime import Buffer, CompileError, dtype_of
from trnpy._nki.simulated import SimulatorRuntime, kernel


class Odd(SimulatorRuntime):
    """A simulator of hardware on which one kernel's answer is not what it should be."""

    def __init__(self, kernel, change):
        super().__init__(TRN2)
        self.odd, self.change = kernel, change

    def run(self, name, /, *operands, **parameters):
        outputs = super().run(name, *operands, **parameters)
        if name == self.odd:
            self.change((outputs[0] if isinstance(outputs, tuple) else outputs).value)
        return outputs


def test_all_is_as_expected_on_the_simulator(capsys):
    assert doctor.doctor(["--probe", "--device", "simulator"]) == 0
    said = capsys.readouterr().out
    assert "WRONG" not in said and f"all {len(probes.PROBES) + len(probes.KERNELS)} as expected" in said
    assert "float64: 8-bit digits\nintegers: 8-bit digits\n" in said and "float32: float32 products" in said
    assert probed("simulator", "trn2").content == Facts()


def test_there_are_eleven_probes_and_every_kernel_is_checked():
    assert len({c.kernel for c in probes.PROBES}) == 11
    twins = {p.name.removesuffix("_reference.py") for p in FOLDER.rglob("*_reference.py")} - {"probes"}
    between_cores = {"exchange"}  # of which a probe has one
    assert twins - between_cores == {c.kernel for c in probes.KERNELS}


@pytest.mark.parametrize("check", probes.PROBES, ids=lambda c: c.kernel)
def test_probes_are_clean_under_lint(check):
    findings = lint_launch(kernel(check.kernel), check.operands(), check.parameters, target="trn2")
    assert not [f for f in (*findings, *lint_file(source("probes"))) if f.severity == "E"]


def first(change):
    def changed(main):
        main.flat[0] = change(main.flat[0])

    return changed


def largest(main):
    """The element furthest from zero made another one."""
    at = np.abs(main.astype(np.float64)).argmax()
    main.flat[at] = ~main.flat[at] if main.dtype.kind in "iu" else main.flat[at] * 2 + 3


@pytest.mark.parametrize("check", (*probes.PROBES, *probes.KERNELS), ids=lambda c: c.kernel)
def test_one_wrong_element_is_found(check):
    odd = Odd(check.kernel, largest if check.kernel != "abs_bound" else first(lambda x: x * 0 + 2.0**-20))
    assert "1 of" in probes.run(DeviceEngine(odd), check).differs


def test_products_of_perturbed_float32_are_found_and_replaced_by_slices(capsys):
    runtime = SimulatorRuntime(TRN2, perturb_fp32=True)
    assert probes.report(DeviceEngine(runtime)) == 1
    said = capsys.readouterr().out
    assert "WRONG: float32 products are rounded once" in said and "float32: six products of bfloat16 slices" in said
    assert probed("simulator", "trn2").content == Facts(float32_products=False)
    e = DeviceEngine(runtime)
    for dtype, shapes in (("f4", ((60, 70), (70, 40))), ("F", ((60, 70), (70, 40))), ("f4", ((3, 20, 70), (3, 70, 9)))):
        a, b = (np.random.default_rng(0).standard_normal(shape).astype(dtype) for shape in shapes)
        runtime.counters.launches.clear()
        c = e.matmul(a, b)
        assert c.dtype == dtype and set(e.counters.launches) == {"matmul" if a.ndim == 2 else "batched_matmul"}
        assert (np.abs(c - a.astype("D") @ b.astype("D")) <= 10 * 2.0**-24 * np.abs(a) @ np.abs(b)).all()
    g = e.gram(a[0])
    np.testing.assert_allclose(g, a[0].astype("d") @ a[0].T.astype("d"), rtol=2.0**-23, atol=1e-7)
    np.testing.assert_array_equal(g, g.T)


@pytest.mark.parametrize("wrong", ["probes.exact_sums", "probes.integer_sums"])
def test_without_exact_sums_there_are_no_digits(wrong, capsys):
    assert probes.report(DeviceEngine(Odd(wrong, first(lambda x: x - 1)))) == 1
    assert "float64: on the host\nintegers: on the host\n" in capsys.readouterr().out
    e = DeviceEngine(SimulatorRuntime(TRN2))
    with pytest.raises(
        Refused, match="inexact digits" if wrong == "probes.exact_sums" else "inexact integer sums on GpSimd"
    ):
        e.matmul(np.ones((3, 3)), np.ones((3, 3)))


def test_without_integer_sums_nothing_is_launched(capsys):
    assert probes.report(DeviceEngine(Odd("probes.integer_sums", first(lambda x: x - 1)))) == 1
    assert "float32: on the host" in capsys.readouterr().out
    e = DeviceEngine(SimulatorRuntime(TRN2))
    a = np.ones((3, 3), "f4")
    for call in (lambda: e.matmul(a, a), lambda: e.gram(a), lambda: e.put(a), lambda: e.matmul(a > 0, a > 0)):
        with pytest.raises(Refused, match="need to find their blocks"):
            call()
    assert not e.counters.launches


def test_without_transposes_nothing_is_launched(capsys):
    assert probes.report(DeviceEngine(Odd("probes.transposes", largest))) == 1
    assert "float64: on the host\nintegers: on the host\nfloat32: on the host" in capsys.readouterr().out
    assert not probed("simulator", "trn2").content.blocks
    e, a = DeviceEngine(SimulatorRuntime(TRN2)), np.ones((3, 3), "f4")
    for call in (lambda: e.matmul(a, a), lambda: e.gram(a), lambda: e.put(a.astype("f8"))):
        with pytest.raises(Refused, match="self-tests found wrong transposes"):
            call()
    assert not e.counters.launches and e.format(np.dtype("f8")) == ""


@pytest.mark.parametrize(
    "wrong, most, name", [("register_offsets", 0, "no device loop"), ("sums_of_loops", 1, "one device loop at most")]
)
def test_without_offsets_or_loops_only_programs_without_them_run(wrong, most, name, capsys):
    assert probes.report(DeviceEngine(Odd(f"probes.{wrong}", largest))) == 1
    assert f"programs: with {name}; larger calls on the host" in capsys.readouterr().out
    e = DeviceEngine(SimulatorRuntime(TRN2))
    a, b = np.random.default_rng(0).standard_normal((2, 150, 140))
    np.testing.assert_allclose(e.matmul(a, b.T), a @ b.T, rtol=1e-12, atol=1e-12)
    assert e.counters.launches["float64_matmul"] == 1
    with pytest.raises(Refused, match="float64_digits of these shapes has 2 device loops"):
        e.runtime.run("float64_digits", Buffer(None, (8192, 2 * 8192), np.dtype("i4")), by_rows=True)
    assert e.runtime._most_loops == most


def test_pairs_have_programs_without_the_loops_that_are_wrong():
    cells = Buffer(None, (2, 40), np.dtype("i4"))
    digits, gaps = Buffer(None, (4, 1536, 448), dtype_of("bfloat16")), Buffer(None, (3, 448), np.dtype("f4"))
    operands = (digits, gaps, Buffer(None, (1, 5), np.dtype("f4")), cells)
    forms = []

    class Noted(DryRuntime):
        def run(self, name, /, *operands, **parameters):
            forms.append(parameters)

    for facts, form in (
        (Facts(), {}), (Facts(loops=False), {"loops": False}), (Facts(offsets=False), {"offsets": False})
    ):  # fmt: skip
        DeviceEngine(Noted(TRN2), facts=facts).kernel("mp2_energy", *operands, span=448)
        assert forms.pop() == {"span": 448, **form} and not forms


def test_kernels_take_another_form_on_a_device_that_answered_otherwise(capsys):
    assert probes.report(DeviceEngine(Odd("probes.repeated_rows", largest))) == 1
    assert probed("simulator", "trn2").content == Facts(repeats=False)
    assert "mp2_energy: without repeats\nschwarz_screened_spmm: without repeats\n" in capsys.readouterr().out
    launched = []

    class Noted(SimulatorRuntime):
        def run(self, name, /, *operands, **parameters):
            launched.append(
                (
                    name,
                    {k for k, v in parameters.items() if k in {n for form in FORMS.values() for n in form} and not v},
                )
            )
            return super().run(name, *operands, **parameters)

    facts = Facts(repeats=False, biases=False, offsets=False, loops=False)
    for check in probes.KERNELS:
        if check.kernel in FORMS or check.kernel == "axpby":
            assert not probes.run(DeviceEngine(Noted(TRN2), facts=facts), check).differs
    assert dict(launched) == {"axpby": set(), **{name: set(form) for name, form in FORMS.items()}}


# mp2_energy adds what is left of a number that it has rounded, so that another integer is no error there.
BY_SCALARE = [c for c in probes.ALL if "biases" in FORMS.get(c.kernel, ()) and c.kernel != "mp2_energy"]


@pytest.mark.parametrize("check", BY_SCALARE, ids=lambda c: c.kernel)
def test_the_other_form_does_not_rely_on_numbers_that_scalare_adds(check, monkeypatch):
    """On a device whose ScalarE adds something else, the default form is wrong and the other one right."""
    right = nkisim.isa.activation

    def wrong(*args, bias=None, **kwargs):
        more = {} if bias is None else {"bias": bias + 1.0 if isinstance(bias, float) else bias}
        return right(*args, **more, **kwargs)

    monkeypatch.setattr(nkisim.isa, "activation", wrong)
    assert probes.run(DeviceEngine(SimulatorRuntime(TRN2)), check).differs
    assert not probes.run(DeviceEngine(SimulatorRuntime(TRN2), facts=Facts(biases=False)), check).differs


@pytest.mark.parametrize("check", probes.KERNELS, ids=lambda c: c.kernel)
def test_no_kernel_transposes_16_bit_numbers_by_nc_transpose_on_trn1(check):
    """Which format of PSUM it writes there is not settled; a product with the identity writes float32."""
    trace = run(kernel(check.kernel), check.operands(), check.parameters, target="trn1", mode="trace").trace
    turned = {o.dtype for i in trace.instructions if i.opcode == "nc_transpose" for o in i.reads}
    assert turned <= {"float32"}


def test_transposes_of_16_bit_numbers_are_products_on_trn1():
    opcodes = {}
    for target in ("trn1", "trn2"):
        check = next(c for c in probes.PROBES if c.kernel == "probes.transposes")
        trace = run(kernel(check.kernel), check.operands(), {}, target=target, mode="trace").trace
        opcodes[target] = {i.opcode for i in trace.instructions if i.engine == "tensor"}
    assert opcodes == {"trn1": {"nc_matmul"}, "trn2": {"nc_transpose"}}


def test_a_kernel_that_does_not_compile_is_an_outcome(capsys):
    def refuse(result):
        raise CompileError("NCC_ITEN404")

    assert probes.report(DeviceEngine(Odd("transpose", refuse))) == 1
    assert "CompileError: NCC_ITEN404" in capsys.readouterr().out


def test_outcomes_are_kept_by_runtime_and_machine():
    save_facts(Facts(exact_sums=False), "neuron", "trn1")
    assert not probed("neuron", "trn1").content.digits and probed("neuron", "trn2").content is None


@pytest.mark.parametrize("content", [[], {"colour": True}, {"exact_sums": "no"}, {"exact_sums": 1}])
def test_an_outcome_that_is_none_is_ignored_and_the_doctor_says_so(content, capsys):
    store.write(facts_path("simulator", "trn2"), content, identity("simulator"))
    assert probed("simulator", "trn2").content is None
    assert DeviceEngine(SimulatorRuntime(TRN2)).facts == Facts()
    assert doctor.doctor([]) == 1
    assert "WRONG: ignored: " in capsys.readouterr().out


def test_outcomes_are_those_of_one_driver_and_one_release_of_the_software(monkeypatch):
    save_facts(Facts(exact_sums=False), "neuron", "trn1")
    monkeypatch.setattr(device, "software", lambda: {"nki": "0.7.0"})
    found = probed("neuron", "trn1")
    assert found.content is None and "nki 0.7.0" in found.ignored


@pytest.mark.parametrize(
    "argv, status, says",
    [
        (["--probe"], 1, "nothing to probe: no Neuron device"),
        (["--probe", "--device", "neuron"], 1, "nothing to probe: TRNPY_DEVICE=neuron"),
        (["--probe", "--device", "null"], 2, "expected neuron or simulator"),
        (["--probe", "--verbose"], 2, "unknown argument --verbose"),
        (["--help"], 0, "--probe"),
    ],
)
def test_what_else_can_be_said(argv, status, says, capsys):
    assert doctor.doctor(argv) == status
    assert says in "".join(capsys.readouterr())
