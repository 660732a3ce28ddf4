"""Tests of the random number instructions: ranges, reproducibility, state, dropout, refusals."""

import ml_dtypes
import numpy as np
import pytest

from nkisim import isa as nisa
from nkisim import language as nl
from nkisim.chip.errors import SimulatorError
from nkisim.run.launch import Kernel, run
from tests.simulator.tiles import execute, filled, refused

INTEGERS = (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)


def draws(body, shape, dtype="uint32", **settings):
    """Tiles that ``body`` writes one after the other, as one array."""

    def kernel():
        outs = []
        for tile in body():
            out = nl.ndarray(shape, dtype, buffer=nl.shared_hbm)
            nl.store(out, tile)
            outs.append(out)
        return tuple(outs)

    return np.stack(run(Kernel(kernel), **settings).outputs)


def seed(value):
    nisa.set_rng_seed(src_seeds=filled((1, 1), "int32", value=value))


def rng(shape=(128, 64), **options):
    tile = nl.ndarray(shape, nl.uint32)
    nisa.rng(dst=tile, **options)
    return tile


@pytest.mark.parametrize("dtype", INTEGERS)
def test_rng_fills_all_bits_evenly(dtype):
    found = execute(nisa.rng, {}, {"dst": ((128, 512), dtype)})
    patterns = np.unpackbits(found.view(np.uint8)).reshape(-1, 8 * found.itemsize)
    assert np.all(np.abs(patterns.mean(0) - 0.5) < 0.01)
    assert np.unique(found, axis=0).shape[0] == 128  # lanes differ


def test_equal_seeds_give_equal_sequences_and_draws_differ():
    def body():
        for value in (42, 42, 43):
            seed(value)
            yield rng()
            yield rng()

    a1, a2, b1, b2, c1, _ = draws(body, (128, 64))
    assert np.array_equal(a1, b1) and np.array_equal(a2, b2)
    assert not np.array_equal(a1, a2) and not np.array_equal(a1, c1)


def test_a_draw_in_two_halves_is_the_draw():
    def body():
        seed(1)
        yield rng((128, 8))
        seed(1)
        halves = nl.ndarray((128, 8), nl.uint32)
        for half in (slice(0, 4), slice(4, 8)):
            nisa.rng(dst=halves[:, half])
        yield halves

    whole, halves = draws(body, (128, 8))
    assert np.array_equal(whole, halves)


@pytest.mark.parametrize("mode", ["run", "reorder"])
def test_a_saved_state_continues_its_sequence(mode):
    def body():
        gpsimd = nisa.engine.gpsimd
        state = nl.ndarray((128, 6), nl.uint32)
        nisa.rand_get_state(dst=state)
        yield rng((128, 8), engine=gpsimd)
        nisa.rand_set_state(src_seeds=state)
        yield rng((128, 8), engine=gpsimd)
        yield rng((128, 8), engine=gpsimd)

    first, again, other = draws(body, (128, 8), mode=mode)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_each_lane_has_the_state_of_its_row():
    def body():
        nisa.rand_set_state(src_seeds=filled((128, 6), "uint32", value=9))
        yield rng((128, 8), engine=nisa.engine.gpsimd)

    found = draws(body, (128, 8))[0]
    assert np.all(found == found[0])  # equal states, equal sequences


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
def test_rand2_is_uniform_between_its_bounds(dtype):
    low = np.linspace(-4, 0, 128, dtype=np.float32)[:, None]
    found = execute(nisa.rand2, {"min": low}, {"dst": ((128, 512), dtype)}, target="trn3", max=8.0)
    values = found.astype(np.float64)
    slack = 1 if dtype == np.int32 else 0.05
    assert np.all(values >= low - slack) and np.all(values <= 8)
    assert np.all(np.abs(values.mean(1) - (low[:, 0] + 8) / 2) < 0.6)


def test_rand2_refuses_an_empty_range():
    with pytest.raises(SimulatorError, match="min is not below max"):
        execute(nisa.rand2, {}, {"dst": ((2, 2), np.float32)}, target="trn3", min=1.0, max=1.0)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
def test_dropout_zeroes_with_the_probability_of_the_partition(dtype):
    x = np.full((128, 512), 3, dtype)
    prob = np.repeat(np.float32([0, 0.25, 0.75, 1]), 32)[:, None]
    found = execute(nisa.dropout, {"data": x, "prob": prob}, {"dst": (x.shape, dtype)})
    assert set(np.unique(found.astype(np.float32))) == {0.0, 3.0}
    dropped = (found.astype(np.float32) == 0).mean(1).reshape(4, 32)
    assert np.all(dropped[0] == 0) and np.all(dropped[3] == 1)
    assert np.allclose(dropped[1:3].mean(1), [0.25, 0.75], rtol=0, atol=0.02)


def test_dropout_refuses_what_is_no_probability():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(SimulatorError, match=r"outside \[0, 1\]"):
        execute(nisa.dropout, {"data": x}, {"dst": (x.shape, np.float32)}, prob=1.5)


def dropout(dst="float32", data="float32", prob=lambda: 0.5):
    return lambda: nisa.dropout(dst=filled((4, 8), dst), data=filled((4, 8), data), prob=prob())


def with_engine(name):
    return {"engine": getattr(nisa.engine, name)}


@pytest.mark.parametrize(
    ("body", "match", "rule", "target"),
    [
        (lambda: nisa.rng(dst=filled((4, 8))), "dst is float32", None, "trn2"),
        (lambda: nisa.rng(dst=filled((4, 8), "int32"), **with_engine("gpsimd")), "engine=gpsimd", 30, "trn1"),
        (
            lambda: nisa.rng(dst=filled((4, 8), "int32", nl.psum), **with_engine("gpsimd")),
            "GpSimd Engine reaches",
            27,
            "trn2",
        ),
        (lambda: nisa.rng(dst=filled((4, 8), "int32"), **with_engine("scalar")), "engine=scalar", 30, "trn2"),
        (lambda: nisa.rand2(dst=filled((4, 8)), min=0.0, max=1.0), "needs NeuronCore-v4", 30, "trn2"),
        (
            lambda: nisa.rand2(dst=filled((4, 8), "float8_e4m3fn"), min=0.0, max=1.0),
            "dst is float8_e4m3fn",
            None,
            "trn3",
        ),
        (lambda: nisa.rand2(dst=filled((4, 8)), min=None, max=1.0), "a number or a", 28, "trn3"),
        (dropout(dst="bfloat16"), "the same dtype", None, "trn2"),
        (dropout("int32", "int32", lambda: filled((4, 1), "bfloat16")), "prob is bfloat16", 28, "trn2"),
        (dropout(prob=lambda: filled((4, 1), "int32")), "prob is int32", 28, "trn2"),
        (lambda: nisa.set_rng_seed(src_seeds=filled((1, 2), "int32")), r"\[1, 1\] is needed", None, "trn2"),
        (lambda: nisa.set_rng_seed(src_seeds=filled((1, 1), "int16")), "32-bit", None, "trn2"),
        (lambda: nisa.rand_set_state(src_seeds=filled((4, 6), "uint32")), "needs NeuronCore-v3", 30, "trn1"),
        (lambda: nisa.rand_set_state(src_seeds=filled((4, 24), "uint32")), r"\(P, 6\) is needed", None, "trn2"),
        (lambda: nisa.rand_set_state(src_seeds=filled((4, 6), "int32")), "src_seeds is int32", None, "trn2"),
        (
            lambda: nisa.rand_set_state(src_seeds=filled((4, 24), "uint32"), **with_engine("vector")),
            "gpsimd is needed",
            30,
            "trn2",
        ),
        (
            lambda: nisa.rand_set_state(src_seeds=filled((4, 6), "uint32"), **with_engine("vector")),
            r"\(P, 24\)",
            None,
            "trn3",
        ),
        (
            lambda: nisa.rand_get_state(dst=filled((4, 6), "uint32", nl.psum)),
            "GpSimd Engine reaches SBUF only",
            27,
            "trn2",
        ),
    ],
)
def test_random_instructions_refuse(body, match, rule, target):
    refused(body, match, rule, target)
