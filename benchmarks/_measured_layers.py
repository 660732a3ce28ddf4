"""Published measurements of parts of language models, and the model's figure for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks._published import IN_PROFILE, Launch, Machines, Measurement, ms, priced, queued
from nkisim.price.cost import Cost


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
    for entry, rows, found in ((50, 1024, 0.22), (51, 4096, 1.12)):
        half = (
            ((rows + 3, 3072 // 2), "bfloat16"), ((3072 // 2, 4), "bfloat16"), ((128, 128), "bfloat16"), square,
        )  # fmt: skip
        convolution = queued(Launch("layers.py", "convolution", "trn2", half))
        remark = "of four taps, without a launch: neither is published"
        what = f"short convolution of {rows} x 3072 on two cores"
        yield Measurement(entry, "trn2", what, "ms", found, convolution, entry == 51, remark)
    stack = ((16, 64, 4096), "float32")
    stacked = Launch("layers.py", "stacked", "trn1", (stack, stack))
    tiling = "of generated code: only its products and the rows of its result are known"
    what = "16 products of 4096 x 64 x 4096 in float32"
    yield Measurement(64, "kernels", what, "us", 4611, lambda m: 1e3 * queued(stacked)(m), False, tiling)
    rows = ((4096, 1024), "float32"), ((1024, 2048), "float32"), square
    normalized = Launch("layers.py", "normalized", "trn1", rows)
    what = "4096 rows over their norm times 1024 x 2048 in float32"
    yield Measurement(64, "kernels", what, "us", 1056, lambda m: 1e3 * queued(normalized)(m), False, tiling)


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


def layers() -> Iterator[Measurement]:
    """All of this file."""
    yield from _chains()
    yield from _layers()
    yield from _attention()
    yield from _experts()
