"""Tests that kernels of the cost model's benchmark compute what they are priced for: attention, and an expert."""

import ml_dtypes
import numpy as np
import pytest

from benchmarks.nki_model import KERNELS
from nkisim.run.launch import run
from nkisim.run.loader import load

BF16 = ml_dtypes.bfloat16
ROWS, HEADS, DEPTH, KEYS, POOLS, CHOSEN = 256, 3, 512, 1280, 320, 60
SCALE = 0.0625  # of the products in the kernels


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(3)
    queries = (rng.standard_normal((ROWS, HEADS, DEPTH)) / 2).astype(BF16)
    keys = (rng.standard_normal((KEYS, DEPTH)) / 2).astype(BF16)
    return queries, keys, np.eye(128).astype(BF16), rng


def attention(queries, keys, kept):
    """In float64, over the keys that are kept (rows, keys)."""
    scores = np.einsum("chr,lr->chl", queries.astype(float), keys.astype(float)) * SCALE
    weights = np.exp(np.where(kept[:, None], scores, -np.inf))
    return np.einsum("chl,lr->chr", weights / weights.sum(axis=-1, keepdims=True), keys.astype(float))


def off(found, right):
    return np.abs(found - right).max() / np.abs(right).max()


def kernel(name, file="attention.py"):
    return getattr(load(KERNELS / file), name)


def launched(name, arguments, file="attention.py", **options):
    return run(kernel(name, file), arguments, options, target="trn1", mode="run").outputs


def indexed(rng):
    """An indexer's operands, and the pools that it chooses: the largest scores that a row sees, and all after it."""
    indexer = rng.standard_normal((4, 128, ROWS)).astype(BF16)
    pools = rng.standard_normal((128, POOLS)).astype(BF16)
    weights = rng.standard_normal((ROWS, 4)).astype(np.float32)
    positions = rng.integers(4 * CHOSEN, KEYS, (ROWS, 1)).astype(np.float32)
    scores = np.einsum("hdc,dn->chn", indexer.astype(float), pools.astype(float))
    scores = (np.maximum(scores, 0) * weights[:, :, None]).sum(axis=1)
    seen = 4 * np.arange(POOLS) + 3 <= positions
    order = np.argsort(-np.where(seen, scores, -np.inf), axis=1, kind="stable")[:, :CHOSEN]
    marks = ~seen
    np.put_along_axis(marks, order, True, axis=1)
    return (indexer, weights, pools, positions), marks


def test_attention_under_a_mask_is_right_written_out_and_in_loops(operands):
    queries, keys, unit, rng = operands
    kept = rng.random((ROWS, KEYS)) < 0.5
    mask = np.where(kept, 0, -1e30).astype(BF16)
    right = attention(queries, keys, kept)
    assert off(launched("dense", (queries, keys, mask, unit)), right) <= 2**-8
    offsets = np.array([[0, 0]], np.int32)
    assert off(launched("looped", (queries, keys, mask, unit, offsets), pairs=1), right) <= 2**-8
    assert off(launched("dense", (queries, keys, np.roll(mask, 1, axis=1), unit)), right) > 2**-8


def test_chosen_pools_are_those_of_the_largest_scores(operands):
    arguments, marks = indexed(operands[3])
    np.testing.assert_array_equal(launched("chosen_pools", arguments, "pools.py", keep=CHOSEN).astype(bool), marks)


def test_attention_over_chosen_pools_is_right(operands):
    queries, keys, unit, rng = operands
    arguments, marks = indexed(rng)
    kept = np.repeat(marks, 4, axis=1) & (np.arange(KEYS) <= arguments[3])
    found = launched("selected", (queries, keys, unit, *arguments), keep=CHOSEN)
    assert off(found, attention(queries, keys, kept)) <= 2**-8


@pytest.mark.parametrize("by_row", [True, False])
def test_a_pass_of_an_expert_is_right(by_row):
    rng, width, chunks, lanes = np.random.default_rng(4), 1024, 2, 128
    inner = 128 * chunks
    x = rng.standard_normal((lanes, width)).astype(BF16)
    raw = [rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3) for shape in ((2, width, inner), (inner, width))]
    # Scales of blocks of 128 x 128, or of rows of such blocks: of the first weights' columns, of the last ones' too.
    into = 0.05 * rng.random((2, width // 128, inner)).astype(np.float32).astype(BF16).astype(np.float32)
    back = 0.05 * rng.random((chunks, width)).astype(np.float32).astype(BF16).astype(np.float32)
    if not by_row:
        into = np.repeat(into[:, :, ::128], 128, axis=2)
        back = np.repeat(back[:, ::128], 128, axis=1)
    first = raw[0].astype(float) * np.repeat(into, 128, axis=1)
    last = raw[1].astype(float) * np.repeat(back, 128, axis=0)
    gate, other = (x.astype(float) @ w for w in first)
    gate, other = np.minimum(gate, 10), np.clip(other, -10, 10)
    right = (gate / (1 + np.exp(-gate)) * other) @ last

    blocks = raw[0].reshape(2, width // 128, 128, chunks, 128).transpose(2, 3, 0, 1, 4)
    operands = [blocks.reshape(1, 128, chunks, 2, width), raw[1].reshape(chunks, 128, width).transpose(1, 0, 2)[None]]
    operands = [np.ascontiguousarray(w).view(np.uint8) for w in operands]
    scales = into.reshape(2, width // 128, chunks, 128).transpose(2, 0, 1, 3)
    if by_row:
        parts = np.zeros((1, chunks, 3, 2 * width // 512, 512), BF16)
        parts[0, :, 0] = scales.reshape(chunks, 2 * width // 512, 512)
        more = np.zeros((1, width // 512, 3, chunks, 512), BF16)
        more[0, :, 0] = back.reshape(chunks, width // 512, 512).transpose(1, 0, 2)
        operands += [parts, more]
    else:
        operands += [np.ascontiguousarray(scales[None, ..., 0]), np.ascontiguousarray(back[None, :, ::128])]
    found = launched("passes", (x, *operands), "experts.py", lanes=lanes, by_row=by_row)
    assert off(found.astype(float), right) <= 2**-6
