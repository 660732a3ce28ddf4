"""Tests of the modelled time of one instruction on its own engine."""

from dataclasses import replace

import numpy as np
import pytest

from nkisim.hardware import (
    TRN1,
    TRN2,
)
from nkisim.price.durations import compute_duration, product_columns, tensor_duration, transfer
from nkisim.price.schedule import schedule
from tests.simulator.hand_made import Script


@pytest.mark.parametrize(
    "rows, depth, columns, dtype, ns",
    [(128, 128, 512, "bfloat16", 219), (128, 128, 128, "bfloat16", 48), (128, 128, 512, "float32", 1150),
     (128, 128, 128, "float32", 192), (128, 1, 128, "float32", 233), (1, 128, 512, "bfloat16", 373),
     (128, 8, 512, "bfloat16", 421)],
)  # fmt: skip
def test_products_take_their_measured_times_on_trn1(rows, depth, columns, dtype, ns):
    script = Script("trn1")
    left, right = script.tile((rows, depth), dtype), script.tile((rows, columns), dtype)
    bank = script.tile((depth, columns), "float32", "psum")
    script.product(bank.operand("dst"), left.operand("stationary"), right.operand("moving"))
    assert tensor_duration(script.instructions[0], TRN1).busy_s == pytest.approx(ns * 1e-9, rel=0.25)


def test_wide_float32_products_take_more_passes_on_trn1():
    def passes(columns, machine):
        script = Script(machine.name)
        left, right, bank = (script.tile((128, n)) for n in (128, columns, columns))
        script.product(bank.operand("dst"), left.operand("stationary"), right.operand("moving"))
        return product_columns(script.instructions[0], machine)[3]

    assert [passes(n, TRN2) for n in (64, 128, 320, 512)] == [4.0] * 4
    assert [passes(n, TRN1) for n in (64, 128)] == [4.0] * 2
    assert passes(320, TRN1) == pytest.approx(4.7, rel=1e-14) and passes(512, TRN1) == pytest.approx(5.4, rel=1e-14)


def test_two_tiles_of_different_types_cost_a_copy_more():
    """387 ns were measured for 128 columns on trn1, 240 of which take operands of one type by the same formula."""

    def busy_s(other, machine=TRN1, buffer="sbuf"):
        script = Script("trn1")
        one, two, out = script.tile((128, 128)), script.tile((128, 128), other, buffer), script.tile((128, 128))
        script.add("tensor_tensor", "vector", (one.operand("data1"), two.operand("data2")), (out.operand("dst"),))
        script.add("tensor_copy", "vector", (one.operand("src"),), (out.operand("dst"),))
        alone, copy = (compute_duration(x, machine).busy_s for x in script.instructions)
        return alone, copy

    (mixed, copy), (same, _) = busy_s("bfloat16"), busy_s("float32")
    assert mixed == pytest.approx(same + copy, rel=1e-12) and mixed == pytest.approx(387e-9, rel=0.05)
    assert busy_s("bfloat16", buffer="psum") == busy_s("float32", buffer="psum")
    assert busy_s("int32") == busy_s("float32")  # not measured


@pytest.mark.parametrize("width, times", [(1, 1.68), (2, 1.64), (8, 2.09), (32, 3.0), (512, 1.42)])
def test_gathers_of_short_rows_take_longer_with_their_bytes(width, times):
    """Microseconds of one of many, of 128 rows of ``width`` float32, on trn1 (kiln)."""
    script = Script("trn1")
    table = script.tile((4096, width), "float32", "hbm")
    for _ in range(3):
        tile = script.tile((128, width))
        read = (table.operand("src", slice(0, 128)),)
        script.add("dma_copy", "dma", read, (tile.operand("dst"),), dge="swdge", indirect=True)
    starts = np.array(schedule(script.trace(), TRN1).start)
    np.testing.assert_allclose(np.diff(starts), times * 1e-6, rtol=0.25)


@pytest.mark.parametrize(
    "pitch, factor, stored",
    [(4096, 1.5, 1), (4096 + 128, 1, 1), (512, 1, 1), (8192, 1.5, 1.5), (2**20, 1.5, 1.5)],
)
def test_rows_a_power_of_two_apart_take_half_as_long_again_on_trn1(pitch, factor, stored):
    def seconds(machine, pitch, store=False):
        script = Script()
        rows = script.tile((128, pitch), "float32", "hbm").operand("src", None, slice(0, 512))
        tile = script.tile((128, 512)).operand("dst")
        script.copy(*((rows, tile) if store else (tile, rows)))
        return transfer(script.instructions[0], machine).engine_s

    assert TRN1.timing.power_of_two_factor == 1.5 and TRN2.timing.power_of_two_factor == 1
    even = replace(TRN1, timing=TRN1.timing._replace(power_of_two_factor=1))
    assert seconds(TRN1, pitch) == pytest.approx(factor * seconds(even, pitch), rel=1e-12)
    assert seconds(TRN1, pitch, True) == pytest.approx(stored * seconds(even, pitch, True), rel=1e-12)


def test_strided_rows_cost_a_descriptor_per_element():
    script = Script()
    column = script.tile((4096, 512), "float32", "hbm").operand("src", slice(0, 128), slice(0, 1))
    script.copy(script.tile((128, 1), "float32").operand("dst"), column)
    assert transfer(script.instructions[0], TRN2).descriptor_bytes == 4


@pytest.mark.parametrize(
    ("opcode", "engine", "dtype", "source", "per_element"),
    [
        ("tensor_copy", "vector", "bfloat16", "sbuf", 0.25),  # performance modes of 16 bits (trainium2_arch.rst)
        ("tensor_copy", "vector", "bfloat16", "psum", 0.5),
        ("tensor_copy", "vector", "float32", "sbuf", 1),
        ("tensor_copy", "scalar", "bfloat16", "sbuf", 1),
        ("tensor_tensor", "vector", "bfloat16", "sbuf", 1),
        ("tensor_tensor", "vector", "float32", "sbuf", 2),  # both inputs through one port
        ("tensor_tensor", "vector", "float32", "psum", 1),
    ],
)
def test_an_element_takes_its_documented_cycles(opcode, engine, dtype, source, per_element):
    def seconds(columns, **options):
        script = Script()
        operands = [script.tile((128, columns), dtype, b).operand(r) for r, b in (("data1", source), ("dst", "sbuf"))]
        script.add(opcode, engine, (operands[0],), (operands[1],), **options)
        return compute_duration(script.instructions[0], TRN2).busy_s

    hz = TRN2.vector_hz if engine == "vector" else TRN2.scalar_hz
    assert (seconds(1024) - seconds(512)) * hz == pytest.approx(512 * per_element, rel=1e-12)
    assert (seconds(512, reduce_res=True) - seconds(512)) * hz == pytest.approx(
        TRN2.timing.accumulator_cycles, rel=1e-12
    )


def test_topk_costs_its_documented_four_cycles_an_element():
    script = Script()
    source, values = script.tile((16, 3), "bfloat16"), script.tile((16, 8), "bfloat16")
    script.add("topk", "gpsimd", (source.operand("src"),), (values.operand("val_dst"),), n=42)
    assert schedule(script.trace(), TRN2).total_s * TRN2.gpsimd_hz == pytest.approx(4 * 42 + 8, rel=1e-12)
