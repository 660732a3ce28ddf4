"""Published measurements on trn1 and trn2 (docs/model.md#measurements), and the model's figure for each.

The kernels in benchmarks/nki_kernels are our own, with the published structure. Times of whole kernels include a
launch. Where shapes were not published, only ratios within an entry count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks._measured_layers import layers
from benchmarks._published import (
    FEW,
    IN_DIFFERENCE,
    IN_PROFILE,
    IN_STEP,
    MANY,
    Launch,
    Machines,
    Measurement,
    constant,
    ms,
    per_step,
    priced,
    queued,
    rates,
    streams,
    wall_s,
)  # fmt: skip
from nkisim.price.cost import group_barrier_s


def _engines() -> Iterator[Measurement]:
    bf, full = "bfloat16", ((128, 128), (128, 512))

    def product(what: str, entry: int, ns: float, x: tuple[int, int], y: tuple[int, int], dtype: str = bf,
                moving: str = "", remark: str = "", **options: Any) -> Measurement:  # fmt: skip
        predict = rates("products", (x, dtype), (y, moving or dtype), **options)
        return Measurement(entry, "TensorE", what, "ns", ns, predict, remark=remark, calls=IN_DIFFERENCE)

    yield product("bf16, 512 columns", 1, 219, *full)
    unknown = "no mechanism is known: 128 columns cost 48 ns and 512 cost 219"
    yield product("bf16, 256 columns", 2, 175, *full, columns=256, remark=unknown)
    yield product("bf16, 128 columns", 2, 48, *full, columns=128)
    yield product("float32, 512 columns", 4, 1150, *full, dtype="float32")
    yield product("float32, 128 columns", 3, 192, *full, dtype="float32", columns=128)
    yield product("float32, 1 stationary column, 128 moving", 6, 233, *full, dtype="float32", depth=1, columns=128)
    yield product("float32, products with the identity", 6, 232, (128, 512), (128, 128), dtype="float32", columns=128,
                  others=4)  # fmt: skip
    below = "less than 128 columns take at the documented clock, 46 ns"
    yield product("bf16, product with the identity", 5, 40, (128, 128), (128, 128), columns=128, remark=below)
    turned = rates("transposes", ((128, 512), "float32"))
    yield Measurement(5, "TensorE", "float32 transpose", "ns", 208, turned, calls=IN_DIFFERENCE)
    narrow = "one factor stands for all narrow products, 1.4 to 1.9 measured"
    yield product("bf16, 64 rows", 7, 271, (64, 128), (64, 512))
    yield product("bf16, 1 row", 7, 373, (1, 128), (1, 512))
    yield product("bf16, 8 stationary columns", 7, 421, *full, depth=8)
    yield product("bf16, 8 stationary, 128 moving", 7, 68, *full, depth=8, columns=128, remark=narrow)
    yield product("bf16 and fp8, 512 columns", 10, 263, *full, moving="float8_e4m3")

    def vector(what: str, entry: int, ns: float, kind: str, columns: int = 512, group: str = "VectorE") -> Measurement:
        wide = ((128, max(columns, 2048)), "float32")
        predict = rates("vectors", wide, wide, kind=kind, columns=columns)
        return Measurement(entry, group, what, "ns", ns, predict, calls=IN_DIFFERENCE)

    yield vector("maximum of 512 sums in PSUM", 8, 494, "max of sums")
    yield vector("maximum of 2048", 8, 1908, "max", 2048)
    yield vector("copy of 512 sums to bf16", 10, 447, "copy of sums")
    yield vector("product of two tiles, 512", 11, 1039, "add")
    yield vector("product with 512 sums", 11, 494, "add to sums")
    yield vector("exp of 512 sums, and their sum", 13, 466, "exp of sums", group="ScalarE")
    yield vector("copy of 512 sums", 14, 383, "activation of sums", group="ScalarE")
    yield vector("copy of 128", 14, 106, "activation", 128, group="ScalarE")
    yield vector("2048 times a number", 9, 1894, "scaled", 2048)
    yield vector("2112 compared, and their sum", 9, 2154, "compared and added", 2112)
    yield vector("512 sums times a number plus a tile", 12, 505, "weighted sums")
    yield vector("sum of 128", 12, 147, "sum", 128)
    yield vector("exp of 2048 to bf16, and their sum", 15, 1574, "exp", 2048, "ScalarE")
    yield vector("128 to bf16", 15, 165, "narrowed", 128)
    yield vector("128 to bf16", 15, 117, "narrowed by activation", 128, "ScalarE")
    yield vector("128 less as many of bf16, to bf16", 15, 387, "difference", 128)
    yield from _blocks()
    dead = "31 of 32 results are never read: 1024 products take 224 us, and the whole call took 230"

    def step(what: str, ns: float, kind: str, remark: str = "") -> Measurement:
        return Measurement(59, "steps", what, "ns", ns, per_step(kind), remark=remark, calls=IN_STEP)

    yield step("call of 1024 products", 225, "products", dead)
    yield step("and relu in place", 250, "relu", dead)
    yield step("product and a weighted sum", 1004, "one sum")
    yield step("and two sums in turn", 687, "two sums")
    yield step("product, relu and a weighted sum", 1324, "relu and one sum")
    yield step("and two sums in turn", 1121, "relu and two sums")
    for width, found in ((512, 0.35), (8192, 1.68), (16384, 3.10)):
        launch = Launch("rates.py", "selections", "trn1", (((128, width), "float32"),))
        yield Measurement(58, "steps", f"eight largest of {width}, 64 rounds", "ms", found, ms(launch))


def _blocks() -> Iterator[Measurement]:
    """A block of 128 x 4096 in parts: the engines' busy time in a profile."""
    block = ((128, 4096), "float32")
    for entry, parts, kind, engines, us in (
        (23, 64, "scaled", ("vector",), 5.84), (23, 8, "times sums", ("vector",), 3.74),
        (24, 64, "by activation", ("scalar",), 4.43), (24, 8, "times a tile", ("vector",), 8.50),
        (24, 64, "by both", ("vector", "scalar"), 2.69),
    ):  # fmt: skip
        launch = Launch("rates.py", "blocks", "trn1", (block, block), (("parts", parts), ("kind", kind)))
        group = "ScalarE" if engines == ("scalar",) else "VectorE"
        what = f"128 x 4096 in {parts} operations, {kind}"
        yield Measurement(entry, group, what, "us", us, _busy_us(launch, *engines), calls=IN_PROFILE)


def _busy_us(launch: Launch, *engines: str) -> Callable[[Machines], float]:
    """Microseconds for which the busiest of the engines is."""
    return lambda machines: max(priced(launch, machines).busy_s[e] for e in engines) * 1e6


def _transfers() -> Iterator[Measurement]:
    matrices = (9, 128, 196608)

    def rate(launch: Launch) -> Callable[[Machines], float]:
        return lambda machines: 9 * 128 * 196608 / (priced(launch, machines).device_s * 1e9)

    for columns, buffers in ((8192, 4), (32768, 4), (65536, 2)):
        launch = streams("stream", (matrices, "uint8"), columns=columns, buffers=buffers)
        yield Measurement(17, "DMA", f"stream, {columns // 1024} KB a partition", "GB/s", 262.5, rate(launch))
    launch = streams("stream", ((9, 128, 2 * 196608), "uint8"), columns=8192, run=512)
    yield Measurement(19, "DMA", "stream, runs of 512 B", "GB/s", 160, _half(launch))
    rows = (((1024, 1024), "bfloat16"), ((128, 1), "int32"))
    gathers = _more("gathers", rows)
    yield Measurement(16, "DMA", "gather of 128 rows of 2 KB", "ns", 1419, gathers, calls=IN_DIFFERENCE)
    blocks = ((64, 128, 6528), "uint8"), ((1, 256), "int32")
    yield Measurement(
        20, "DMA", "256 blocks of 128 x 6528 B by address", "ms", 0.98, ms(streams("dynamic", *blocks, times=256))
    )
    quarters = streams("quarters", (matrices, "uint8"), ((1, 9), "int32"))
    yield Measurement(18, "DMA", "stream, tiles in four of 32 partitions", "GB/s", 196, rate(quarters))
    for width, found in ((2, 0.98), (8, 1.21), (32, 1.72)):
        launch = streams("picked", ((128 * 4096, width), "float32"), ((128, 512), "int32"))
        yield Measurement(57, "DMA", f"512 gathers of 128 x {4 * width} B", "ms", found, ms(launch))
    column = ((128, 1), "float32"), ((128, 1), "int32")
    for times, found in ((512, 1.0), (256, 0.55)):
        launch = streams("scatters", *column, times=times)
        yield Measurement(22, "DMA", f"{times} scatters of 128 x 4 B", "ms", found, ms(launch))
    even = streams("passes", ((128, 512, 512), "float32"), turns=512)
    padded = streams("passes", ((128, 65, 8 * 512), "float32"), turns=64, body_tiles=8)
    yield Measurement(
        26, "DMA", "pass of a tile a turn, even rows, over 8 a turn, padded", "ratio", 1708 / 743,
        lambda m: priced(even, m).device_s / priced(padded, m).device_s, False,
    )  # fmt: skip
    for kept, found in ((64, 2798), (88, 2823), (96, 11201)):
        what = f"residents of {kept} KB over those of 32"
        yield Measurement(28, "SBUF", what, "ratio", found / 2752, _ratio(kept // 2, 16), False)
    yield Measurement(
        31, "SBUF", "residents of 128 KB, staged, over 32", "ratio", 3839 / 2752, _ratio(64, 16, True), False
    )


def _half(launch: Launch) -> Callable[[Machines], float]:
    return lambda machines: 9 * 128 * 196608 / (priced(launch, machines).device_s * 1e9)


def _more(kernel: str, operands: tuple[tuple[tuple[int, ...], str], ...]) -> Callable[[Machines], float]:
    def predict(machines: Machines) -> float:
        few, many = (priced(streams(kernel, *operands, times=n), machines).device_s for n in (FEW, MANY))
        return (many - few) / (MANY - FEW) * 1e9

    return predict


def _ratio(kept: int, less: int, staged: bool = False) -> Callable[[Machines], float]:
    """A stream against ``kept`` residents of 2 KB, relative to one against ``less``."""

    def predict(machines: Machines) -> float:
        def seconds(count: int, staged: bool = False) -> float:
            operands = ((1024, 128, 512), "float32"), ((count, 128, 512), "float32")
            return priced(streams("residents", *operands, staged=staged), machines).device_s

        return seconds(kept, staged) / seconds(less)

    return predict


def _loops() -> Iterator[Measurement]:
    small = ((128, 128), "float32"), ((1, 1), "int32")
    for looped, found in ((True, 0.257), (False, 0.161)):
        launch = streams("turns", *small, looped=looped)
        what = f"64 vector operations, {'in a loop' if looped else 'written out'}"
        yield Measurement(29, "loops", what, "ms", found, ms(launch))
    factor = ((128, 128), "float32")

    def per_tile(body_tiles: int) -> Callable[[Machines], float]:
        def predict(machines: Machines) -> float:
            many, few = (
                priced(
                    streams("factored", ((128, 512 * n), "float32"), factor, tiles=n, body_tiles=body_tiles), machines
                )
                for n in (1024, 128)
            )
            return (many.device_s - few.device_s) / 896 * 1e6

        return predict

    for body_tiles, found in ((0, 3.18), (1, 11.94), (32, 3.32)):
        what = (
            "written out"
            if not body_tiles
            else f"{body_tiles} in a body"
            if body_tiles == 1
            else "two chunks in a body"
        )
        yield Measurement(25, "loops", f"float32 tile and product, {what}", "us", found, per_tile(body_tiles), False)


def _kernels() -> Iterator[Measurement]:
    for pairs, found in ((8, 0.207), (32, 0.298), (128, 0.672), (512, 2.204)):
        operands = ((64, 128, 6528 // 2), "bfloat16"), ((1, pairs), "int32")
        launch = streams("dynamic", *operands, times=pairs, products=True)
        yield Measurement(
            32, "kernels", f"{pairs} pairs: a block by address, small products", "ms", found, ms(launch), False
        )
    weights = ((8, 4096, 4096), "bfloat16")
    for vectors in (1, 16):
        launch = streams("chain", ((128, 32, vectors), "bfloat16"), weights)
        what = f"8 products with {vectors} vectors, one kernel"
        yield Measurement(55, "kernels", what, "ms", 1.02, queued(launch))
    one = streams("chain", ((128, 32, 1), "bfloat16"), ((1, 4096, 4096), "bfloat16"))
    each = "a kernel of a graph is charged as a launch"
    yield Measurement(56, "kernels", "the same as 8 kernels", "ms", 2.70, lambda m: 8 * ms(one)(m), remark=each)


# Steps by the points in each direction and the ranks, without the time of launching (spectral: results.md).
SPECTRAL_STEPS_MS = {(64, 1): 5.2, (128, 1): 20.4, (128, 2): 18.55, (256, 2): 151.23}


def _spectral() -> Iterator[Measurement]:
    """Steps of three launches on one core; python -m conformance nki --spectral has those of two ranks."""
    for entry, n in ((41, 64), (43, 128)):
        field, square = ((6, n, n, n), "float32"), ((n, n), "float32")
        stage = Launch("spectral.py", "stage", "trn1", (field, field, square, square, field))
        what = f"Navier-Stokes step of {n}^3, three stages"
        yield Measurement(entry, "spectral", what, "ms", SPECTRAL_STEPS_MS[n, 1], _three(stage))


def _three(stage: Launch) -> Callable[[Machines], float]:
    return lambda machines: 3e3 * priced(stage, machines).device_s


def _calls() -> Iterator[Measurement]:
    yield Measurement(47, "calls", "empty graph", "us", 141, constant(lambda m: m.launch_s * 1e6))
    size = 18.45e6
    yield Measurement(
        47, "calls", "18.45 MB to the device", "ms", 2.53, constant(lambda m: size / m.link_bytes_per_s * 1e3)
    )
    yield Measurement(47, "calls", "and back", "ms", 3.01, constant(lambda m: size / m.unlink_bytes_per_s * 1e3))


def _later() -> Iterator[Measurement]:
    """trn2, to which no constant is fitted, and programs on several cores."""
    wide = ((128, 512), "float32"), ((1, 1), "int32")

    def operation(machines: Machines) -> float:
        options = (("looped", False), ("times", MANY)), (("looped", False), ("times", FEW))
        many, few = (priced(Launch("streams.py", "turns", "trn2", wide, o), machines).device_s for o in options)
        return (many - few) / (MANY - FEW) * 1e9

    yield Measurement(52, "trn2", "dependent vector operation, 512", "ns", 685, operation, calls=IN_PROFILE)
    table = constant(lambda m: m.timing.table_load_s * 1e9, "trn2")
    yield Measurement(53, "trn2", "activation table", "ns", 1283, table, calls=IN_PROFILE)
    tiled = (("block_m", 8), ("block_n", 2), ("row_loads", True))
    half = Launch("products.py", "blocked", "trn2", (((4096, 2048), "bfloat16"), ((4096, 4096), "bfloat16")), tiled)
    other = "another program: the graph compiler's own product, against AWS's tiling on each of two cores"
    yield Measurement(
        49,
        "trn2",
        "bf16 4096^3 on two cores",
        "TFLOP/s",
        106.7,
        lambda m: 2 * 4096**3 / wall_s(half, m) / 1e12,
        remark=other,
    )
    barrier = constant(lambda m: group_barrier_s(32, m) * 1e3)
    yield Measurement(62, "ranks", "barrier of 32 ranks", "ms", 6.14 - 1.16, barrier, calls=2)
    operands = ((128, 128), "bfloat16"), ((128, 512), "bfloat16")
    stream = rates("products", *operands)
    yield Measurement(62, "TensorE", "8192 products of 512 columns", "ms", 1.89, lambda m: 8192e-6 * stream(m))


MEASUREMENTS: tuple[Measurement, ...] = (
    *_engines(), *_transfers(), *_loops(), *_kernels(), *_spectral(), *_calls(), *_later(), *layers(),
)  # fmt: skip
