"""Random numbers: the generators of Vector and GpSimd Engine, their state, and dropout.

The random bits differ from the hardware's, but the documented contract holds: equal states give equal
sequences, every lane has its own sequence, and a restored state continues its sequence. Lanes are
counter-based (the finaliser of SplitMix64, Steele, Lea & Flood 2014) so that one array expression fills a tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.chip.context import current, hardware, issue
from nkisim.chip.dtypes import FLOATS, STORAGE, Array, is_integer
from nkisim.chip.record import Engine as EngineName
from nkisim.chip.tensor import NkiTensor
from nkisim.hardware import PARTITIONS
from nkisim.isa import _checks as check
from nkisim.isa._enums import engine as Engine
from nkisim.isa._lanes import raw_rows, scalar

__all__ = ["dropout", "rand2", "rand_get_state", "rand_set_state", "rng", "set_rng_seed"]

STATE_WORDS = {"gpsimd": 6, "vector": 24}  # of XORWOW (nki.isa.rand_set_state); here the last is a counter
RNG_DTYPES = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32"})
RAND2_DTYPES = RNG_DTYPES | {"float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32"}
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # increment and multipliers of SplitMix64
MIX1, MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
UNIT = np.float32(2.0**-24)  # spacing of float32 in [1/2, 1)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * MIX1
    z = (z ^ (z >> np.uint64(27))) * MIX2
    result: Array = z ^ (z >> np.uint64(31))
    return result


class Generator:
    """State of one engine's generator: ``words`` is uint32 (128, words per lane); the last word is a counter."""

    __slots__ = ("keys", "words")

    def __init__(self, engine: str, seed: int) -> None:
        self.words = np.empty((PARTITIONS, STATE_WORDS[engine]), np.uint32)
        self.keys = np.empty((PARTITIONS, 1), np.uint64)  # one per lane: a hash of all words but the counter
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Seed all lanes from one 32-bit seed, each differently."""
        lane = np.arange(self.words.size, dtype=np.uint64).reshape(self.words.shape)
        words = (_mix(np.uint64(seed & 0xFFFFFFFF) * GOLDEN + lane) >> np.uint64(32)).astype(np.uint32)
        words[:, -1] = 0
        self.restore((0, PARTITIONS), words)

    def restore(self, lanes: tuple[int, int], words: Array) -> None:
        """Set the state of the lanes, which then continue its sequence."""
        keys = np.zeros((len(words), 1), np.uint64)
        for word in words[:, :-1].T:
            keys = _mix(keys * GOLDEN + word[:, None])
        self.words[slice(*lanes)], self.keys[slice(*lanes)] = words, keys

    def bits(self, lanes: tuple[int, int], n: int) -> Array:
        """The next n 32-bit words of each given lane, uint32 (P, n)."""
        words = self.words[slice(*lanes)]
        count = words[:, -1:] + np.arange(n, dtype=np.uint32)
        words[:, -1] += np.uint32(n)
        result: Array = (_mix(self.keys[slice(*lanes)] + count * GOLDEN) >> np.uint64(32)).astype(np.uint32)
        return result

    def uniform(self, lanes: tuple[int, int], n: int) -> Array:
        """The next n float32 numbers of each lane, in [0, 1)."""
        result: Array = (self.bits(lanes, n) >> np.uint32(8)).astype(np.float32) * UNIT
        return result


def _generator(engine: str) -> tuple[Generator, str]:
    """This core's generator of an engine, and the name of its state; the default seed is the core's number."""
    run = current()
    name = f"{engine} random"
    if name not in run.engine_state:
        run.engine_state[name] = Generator(engine, run.core)
    found: Generator = run.engine_state[name]
    return found, name


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> Any:
    """32 random bits for each element of dst, an integer tile that keeps the lowest bits."""
    this = "rng"
    check.on_chip(this, dst=dst)
    check.dtype_in(this, RNG_DTYPES, None, dst=dst)
    where = check.one_engine(this, engine, ("vector",) if hardware().generation < 3 else ("vector", "gpsimd"), "vector")
    if where == "gpsimd":
        check.sbuf_only(this, dst=dst)
    generator, state = _generator(where)
    lanes = dst.partitions

    def compute() -> None:
        bits = generator.bits(lanes, dst.free_size)
        dst.write(bits.astype(f"u{dst.itemsize}").view(STORAGE[dst.dtype]))

    return issue(this, where, {}, {"dst": dst}, compute, {}, name, state=state)


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> Any:
    """Uniform float32 numbers in [min, max], converted to dst; min and max are numbers or (P, 1) tiles. trn3."""
    this = "rand2"
    check.needs_generation(this, 4)
    check.on_chip(this, dst=dst)
    check.dtype_in(this, RAND2_DTYPES, None, dst=dst)
    reads = {}
    for role, value in (("min", min), ("max", max)):
        if check.scalar_operand(this, role, value, dst.shape[0]):
            reads[role] = value
    generator, state = _generator("vector")
    lanes = dst.partitions

    def compute() -> None:
        low, high = scalar(min), scalar(max)
        if not np.all(low < high):
            check.refuse(this, "min is not below max")
        dst.write(low + (high - low) * generator.uniform(lanes, dst.free_size))

    return issue(this, "vector", reads, {"dst": dst}, compute, {}, name, state=state)


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> Any:
    """data with each element replaced by zero with probability prob, a number or a (P, 1) tile; not rescaled."""
    this = "dropout"
    check.on_chip(this, dst=dst, data=data)
    check.same_size(this, dst, data=data)
    check.same_dtype(this, dst, None, data=data)
    reads = {"data": data}
    dtypes = check.FLOAT32 if is_integer(data.dtype) else FLOATS
    if check.scalar_operand(this, "prob", prob, data.shape[0], dtypes):
        reads["prob"] = prob
    generator, state = _generator("vector")
    lanes = data.partitions

    def compute() -> None:
        probability = scalar(prob)
        if not np.all((probability >= 0) & (probability <= 1)):
            check.refuse(this, "prob is outside [0, 1]")
        kept = generator.uniform(lanes, data.free_size) >= probability
        source = raw_rows(data)
        dst.write(np.where(kept, source, np.zeros((), source.dtype)))

    return issue(this, "vector", reads, {"dst": dst}, compute, {}, name, state=state)


# --- state ----------------------------------------------------------------------------------------------


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Any:
    """Seed VectorEngine's generator from a [1, 1] tile of a 32-bit dtype."""
    this = "set_rng_seed"
    check.on_chip(this, src_seeds=src_seeds)
    if src_seeds.shape != (1, 1) or src_seeds.itemsize != 4:
        check.refuse(this, f"src_seeds is {src_seeds.shape} {src_seeds.dtype}; one 32-bit value [1, 1] is needed")
    generator, state = _generator("vector")

    def compute() -> None:
        generator.seed(int(src_seeds.read().view(np.uint32)[0, 0]))

    return issue(this, "vector", {"src_seeds": src_seeds}, {}, compute, {}, name, state=state)


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Any:
    """Set the generator state of the lanes of src_seeds, uint32 (P, 6 | 24) in SBUF. trn2 and later."""
    this = "rand_set_state"
    check.on_chip(this, src_seeds=src_seeds)
    where = _check_state(this, "src_seeds", src_seeds, engine)
    check.sbuf_only(this, src_seeds=src_seeds)
    generator, state = _generator(where)

    def compute() -> None:
        generator.restore(src_seeds.partitions, src_seeds.read())

    return issue(this, where, {"src_seeds": src_seeds}, {}, compute, {}, name, state=state)


def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Any:
    """Store the generator state of the lanes of dst, uint32 (P, 6 | 24). trn2 and later."""
    this = "rand_get_state"
    check.on_chip(this, dst=dst)
    where = _check_state(this, "dst", dst, engine)
    if where == "gpsimd" or hardware().generation < 4:
        check.sbuf_only(this, dst=dst)
    generator, state = _generator(where)

    def compute() -> None:
        dst.write(generator.words[slice(*dst.partitions)])

    return issue(this, where, {}, {"dst": dst}, compute, {}, name, state=state)


def _check_state(this: str, role: str, tile: NkiTensor, engine: Engine) -> EngineName:
    """The requested engine, after checking that the tile has the size of its state."""
    check.needs_generation(this, 3)
    allowed = ("gpsimd",) if hardware().generation < 4 else ("gpsimd", "vector")
    where = check.one_engine(this, engine, allowed, "gpsimd")
    check.dtype_in(this, ("uint32",), None, **{role: tile})
    words = STATE_WORDS[where]
    if tile.ndim != 2 or tile.shape[1] != words:
        check.refuse(this, f"{role} has shape {tile.shape}; (P, {words}) is needed for {where} Engine")
    return where
