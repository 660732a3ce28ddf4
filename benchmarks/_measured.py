"""Published measurements on trn1 and trn2 (docs/hardware.md#measurements), and the model's figure for each.

The kernels in benchmarks/nki_kernels are our own, with the published structure. Times of whole kernels include a
launch. Where shapes were not published, only ratios within an entry count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nkisim.chip.record import Trace
from nkisim.hardware import MACHINES, Hardware
from nkisim.price.cost import Cost, group_barrier_s, price
from nkisim.run.launch import Specification, run
from nkisim.run.loader import load

KERNELS = Path(__file__).parent / "nki_kernels"
FEW, MANY = 16, 272  # repeats of an instruction; the time of one is the difference over 256
STEPS = 1024  # of one call, by which its whole time is divided: launch, steps, and 128 x 512 float32 read back
CALL_S = 4e-6  # calls of an empty program took 137 to 145 us, in medians of 20 (entry 47)
IN_DIFFERENCE, IN_STEP = 2 / (MANY - FEW), 1 / STEPS  # what of the error of a call is in a figure
IN_PROFILE = 0.0
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}


@dataclass(frozen=True)
class Launch:
    """One kernel at one size."""

    file: str
    kernel: str
    target: str
    operands: tuple[tuple[tuple[int, ...], str], ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Measurement:
    """A published figure, and the model's figure for given machines."""

    entry: int  # of docs/hardware.md#measurements
    group: str
    what: str
    unit: str
    measured: float
    predict: Callable[[Machines], float]
    exact: bool = True  # whether the case can be built exactly; if not, only ratios within its entry count
    remark: str = ""
    calls: float = 1.0  # timed, over what the figure is divided by

    @property
    def error(self) -> float:
        """How far the figure may be off because calls of one program differ: 0 where it is no time."""
        return self.calls * CALL_S / SECONDS[self.unit] if self.unit in SECONDS else 0.0


Machines = Callable[[str], Hardware]  # the machine of a name, possibly with changed constants


def published(name: str) -> Hardware:
    return MACHINES[name]


@functools.cache
def traced(launch: Launch) -> Trace:
    kernel = getattr(load(KERNELS / launch.file), launch.kernel)
    operands = tuple(Specification(shape, dtype) for shape, dtype in launch.operands)
    return run(kernel, operands, dict(launch.options), target=launch.target, mode="trace").trace


def priced(launch: Launch, machines: Machines) -> Cost:
    return price(traced(launch), machines(launch.target))


def wall_s(launch: Launch, machines: Machines) -> float:
    """Seconds of a kernel and of its launch, which is that of an empty kernel."""
    machine = machines(launch.target)
    return priced(launch, machines).device_s - machine.timing.kernel_floor_s + machine.launch_s


def rates(kernel: str, *operands: tuple[tuple[int, ...], str], **options: Any) -> Callable[[Machines], float]:
    """Nanoseconds that one more instruction takes."""

    def predict(machines: Machines) -> float:
        few, many = (
            priced(Launch("rates.py", kernel, "trn1", operands, (*options.items(), ("count", n))), machines).device_s
            for n in (FEW, MANY)
        )
        return (many - few) / (MANY - FEW) * 1e9

    return predict


def per_step(kind: str) -> Callable[[Machines], float]:
    tile = ((128, 128), "bfloat16"), ((128, 512), "bfloat16"), ((128, 1), "float32")
    launch = Launch("rates.py", "steps", "trn1", tile, (("kind", kind), ("count", STEPS)))
    back = 128 * 512 * 4
    return lambda machines: (wall_s(launch, machines) + back / machines("trn1").unlink_bytes_per_s) / STEPS * 1e9


def streams(kernel: str, *operands: tuple[tuple[int, ...], str], **options: Any) -> Launch:
    return Launch("streams.py", kernel, "trn1", operands, tuple(options.items()))


def ms(launch: Launch) -> Callable[[Machines], float]:
    return lambda machines: wall_s(launch, machines) * 1e3


def constant(find: Callable[[Hardware], float], target: str = "trn1") -> Callable[[Machines], float]:
    return lambda machines: find(machines(target))


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
        wide = ((128, 2048), "float32")
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
    block = ((128, 4096), "float32")
    for parts, us in ((64, 5.84), (8, 3.74)):
        launch = Launch("rates.py", "blocks", "trn1", (block, block), (("parts", parts),))
        what = f"128 x 4096 in {parts} operations"
        yield Measurement(23, "VectorE", what, "us", us, _busy_us(launch, "vector"), calls=IN_PROFILE)
    dead = "31 of 32 results are never read: 1024 products take 224 us, and the whole call took 230"

    def step(what: str, ns: float, kind: str, remark: str = "") -> Measurement:
        return Measurement(59, "steps", what, "ns", ns, per_step(kind), remark=remark, calls=IN_STEP)

    yield step("call of 1024 products", 225, "products", dead)
    yield step("and relu in place", 250, "relu", dead)
    yield step("product and a weighted sum", 1004, "one sum")
    yield step("and two sums in turn", 687, "two sums")
    yield step("product, relu and a weighted sum", 1324, "relu and one sum")
    yield step("and two sums in turn", 1121, "relu and two sums")
    for width, found in ((512, 0.35), (16384, 3.10)):
        launch = Launch("rates.py", "selections", "trn1", (((128, width), "float32"),))
        yield Measurement(58, "steps", f"eight largest of {width}, 64 rounds", "ms", found, ms(launch))


def _busy_us(launch: Launch, engine: str) -> Callable[[Machines], float]:
    return lambda machines: priced(launch, machines).busy_s[engine] * 1e6


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
        yield Measurement(55, "kernels", what, "ms", 1.02, _chain(launch))
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


def _chains() -> Iterator[Measurement]:
    """Chains of small operations: the arithmetic is not the publisher's, its kind and count are."""
    square = ((128, 128), "float32")
    for rows, pieces, found in ((8, 16, 0.225), (256, 1, 0.68)):
        scores = ((rows * pieces, 2112 // pieces), "float32")
        options = (("pieces", pieces),)
        launch = Launch("rounds.py", "selection", "trn1", (scores, ((128, 31), "float32"), square), options)
        yield Measurement(40, "kernels", f"top-k by radix rounds, {rows} rows of 2112", "ms", found, ms(launch), False)
    for rows, found in ((4, 0.21), (16, 0.35), (64, 0.96)):
        operands = (
            ((rows, 8, 128, 128), "float32"), ((1, rows), "int32"), ((4, rows * 8, 128), "float32"), square,
        )  # fmt: skip
        launch = Launch("rounds.py", "decoding", "trn1", operands)
        yield Measurement(37, "kernels", f"decoding step of 8 states, {rows} rows", "ms", found, ms(launch), False)


def _layers() -> Iterator[Measurement]:
    """Parts of language models, from the publisher's description; the recurrence has its kind and count of steps."""
    square = ((128, 128), "float32")
    for entry, heads, short, long in ((34, 8, 0.698, 8.372), (35, 2, 0.311, 2.175)):
        for rows, found in ((512, short), (8192, long)):
            what = f"delta rule in chunks of 128, {heads} heads, {rows} rows"
            yield Measurement(entry, "kernels", what, "ms", found, _recurrence(heads, rows), False)
    half = (((1024 + 3, 3072 // 2), "bfloat16"), ((3072 // 2, 4), "bfloat16"), ((128, 128), "bfloat16"), square)
    convolution = _chain(Launch("layers.py", "convolution", "trn2", half))
    remark = "of four taps, without a launch: neither is published"
    what = "short convolution of 1024 x 3072 on two cores"
    yield Measurement(50, "trn2", what, "ms", 0.22, convolution, False, remark)


def _recurrence(heads: int, rows: int) -> Callable[[Machines], float]:
    """Milliseconds: chunks follow each other without a loop, so beyond 1024 rows each takes as long as those before."""

    def of(count: int) -> Callable[[Machines], float]:
        operands = (
            ((3, count, heads * 128), "float32"), ((2, count, heads), "float32"), ((heads, 128, 128), "float32"),
            ((128, 8, 128), "float32"),
        )  # fmt: skip
        return ms(Launch("layers.py", "recurrence", "trn1", operands, (("heads", heads),)))

    few, many = 512, 1024
    return lambda m: of(few)(m) + (of(many)(m) - of(few)(m)) * (rows - few) / (many - few)


def _chain(launch: Launch) -> Callable[[Machines], float]:
    """Milliseconds without a launch: launches are queued, and one ends while the next begins."""
    return lambda machines: priced(launch, machines).device_s * 1e3


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


def _attention() -> Iterator[Measurement]:
    """1024 rows of 8 heads, 512 deep; tiles of 128 rows follow each other, so each takes as long as one before."""
    heads, depth, few, many = 8, 512, 256, 384
    half, unit = "bfloat16", ((128, 128), "bfloat16")

    def dense(rows: int, keys: int = 8448) -> tuple[tuple[tuple[int, ...], str], ...]:
        return ((rows, heads, depth), half), ((keys, depth), half), ((rows, keys), half), unit

    def chosen(rows: int, keys: int) -> tuple[tuple[tuple[int, ...], str], ...]:
        indexer = ((32, 128, rows), half), ((rows, 32), "float32"), ((128, keys // 4), half), ((rows, 1), "float32")
        return (*dense(rows, keys)[:2], unit, *indexer)

    def of_rows(launch: Callable[[int], Launch], find: Callable[[Cost], float]) -> Callable[[Machines], float]:
        def predict(machines: Machines) -> float:
            less, more = (find(priced(launch(n), machines)) for n in (few, many))
            return (less + (more - less) * (1024 - few) / (many - few)) * 1e3

        return predict

    def static(rows: int) -> Launch:
        return Launch("attention.py", "dense", "trn1", dense(rows))

    def waited(launch: Callable[[int], Launch]) -> Callable[[Machines], float]:
        device = of_rows(launch, lambda cost: cost.device_s)
        return lambda m: device(m) + (m("trn1").launch_s - m("trn1").timing.kernel_floor_s) * 1e3

    yield Measurement(38, "kernels", "attention over 8448 keys", "ms", 3.34, waited(static))
    for engine, found in (("tensor", 2.27), ("vector", 1.72), ("scalar", 1.27)):
        busy = of_rows(static, lambda cost, engine=engine: cost.busy_s[engine])  # type: ignore[misc]
        yield Measurement(38, "kernels", f"of it {engine} busy", "ms", found, busy, calls=IN_PROFILE)
    for pairs, found in ((1, 1.19), (8, 4.02)):
        launch = Launch("attention.py", "looped", "trn1", (*dense(1024), ((8, 2), "int32")), (("pairs", pairs),))
        remark = LOOPED if pairs == 1 else ""
        yield Measurement(38, "kernels", f"and in loops of {pairs} turns", "ms", found, ms(launch), remark=remark)
    for keys, found in ((8448, 4.89), (4096, 2.50)):

        def selected(rows: int, keys: int = keys) -> Launch:
            return Launch("attention.py", "selected", "trn1", chosen(rows, keys))

        yield Measurement(61, "kernels", f"attention over 2048 of {keys} keys", "ms", found, waited(selected))


LOOPED = "0.28 ms short in four loops of one turn, of which no cause is known; eight turns of each are met"
WIDTH, CHUNKS, EXPERTS, ROUTED = 4096, 16, 288, 8  # of the published model's layer


def _experts() -> Iterator[Measurement]:
    """Tiles and passes follow each other without a loop, so each takes as long as one before."""
    for lanes, by_row, found in ((128, True, 250.0), (256, False, 195.0)):
        what = f"pass of an expert, {lanes} rows, scales by {'row' if by_row else 'tile'}"
        yield Measurement(46, "kernels", what, "us", found, _pass_us(lanes, by_row))
    # Blocks of 64 lanes, or of 128 for many rows, as many as any routing needs, in tiles of 128 lanes.
    for rows, tiles, blocks, found in ((256, 158, 2, 3.570), (1024, 206, 2, 4.986), (8192, 797, 1, 15.237)):
        what = f"{rows} rows through {EXPERTS} experts"
        yield Measurement(44, "kernels", what, "ms", found, _layer_ms(rows, tiles, blocks))


def _pass_us(lanes: int, by_row: bool) -> Callable[[Machines], float]:
    weights = ((2, 128, CHUNKS, 2, WIDTH), "uint8"), ((2, 128, CHUNKS, WIDTH), "uint8")
    into, back = ((2, CHUNKS, 2, WIDTH // 128), "float32"), ((2, CHUNKS, WIDTH // 128), "float32")
    if by_row:
        into = ((2, CHUNKS, 3, 2 * (WIDTH // 512), 512), "bfloat16")  # type: ignore[assignment]
        back = ((2, WIDTH // 512, 3, CHUNKS, 512), "bfloat16")  # type: ignore[assignment]

    def predict(machines: Machines) -> float:
        def seconds(count: int) -> float:
            operands = ((count * lanes, WIDTH), "bfloat16"), *weights, into, back
            options = (("lanes", lanes), ("by_row", by_row))
            return priced(Launch("experts.py", "passes", "trn1", operands, options), machines).device_s

        return (seconds(4) - seconds(2)) / 2 * 1e6

    return predict


def _layer_ms(rows: int, tiles: int, blocks: int) -> Callable[[Machines], float]:
    """Milliseconds of a plan, of the tiles and of the sums of their results, with one launch."""
    routed, square = ((rows, ROUTED), "int32"), ((128, 128), "bfloat16")
    plan = Launch("experts.py", "planned", "trn1", (routed, ((128, EXPERTS), "float32"), square), (("tiles", tiles),))
    results = ((tiles * 128, WIDTH), "bfloat16")
    sums = Launch("experts.py", "combined", "trn1", (results, routed, ((rows, ROUTED), "float32"), square))

    def grouped(count: int) -> Launch:
        blob = ((EXPERTS, 128, WIDTH * 25 // 16), "uint8")
        operands = ((rows, WIDTH), "bfloat16"), blob, ((128, count), "int32"), ((1, count * blocks), "int32"), square
        return Launch("experts.py", "grouped", "trn1", operands, (("tiles", count), ("blocks", blocks)))

    few, many = 8, 16

    def predict(machines: Machines) -> float:
        less, more = (priced(grouped(n), machines).device_s for n in (few, many))
        floor_s = machines("trn1").timing.kernel_floor_s
        parts = priced(plan, machines).device_s + priced(sums, machines).device_s - 2 * floor_s
        in_tiles = less + (more - less) * (tiles - few) / (many - few)
        return (parts + in_tiles - floor_s + machines("trn1").launch_s) * 1e3

    return predict


MEASUREMENTS: tuple[Measurement, ...] = (
    *_engines(), *_transfers(), *_loops(), *_kernels(), *_spectral(), *_chains(), *_layers(), *_calls(), *_later(),
    *_attention(), *_experts(),
)  # fmt: skip
