"""``python -m trnpy doctor`` and ``calibrate``: versions, settings, devices, problems, and the speed of the host."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields

from nkisim.hardware import ERROR_FACTOR, GIB, MACHINES
from trnpy._base import distribution, store
from trnpy._base.records import record
from trnpy._call.gate import is_compiled
from trnpy._cli import calibration, probes, timings
from trnpy._cli.options import near
from trnpy._engine import health, tuning
from trnpy._engine.engines import Engine, available, current_engine
from trnpy._engine.precision import probed
from trnpy._nki.device import (
    AUTO_CAST,
    CASTS,
    COMPILE_CACHE,
    COMPILER_FLAGS,
    LNC,
    LOGICAL_CORES,
    compile_cache,
    detect,
    front_end,
    pinned_flags,
    route,
    software,
)
from trnpy._nki.instances import hardware_of
from trnpy._nki.runtime import DeviceUnavailable
from trnpy._patch.patch import patch_status, patched
from trnpy._settings import host_rates
from trnpy._settings.policy import REQUIRE, Policy, from_environment, unknown_variables

PACKAGES = ("numpy", "scipy", "opt_einsum", "pyscf", "rich", "ml_dtypes", "nki", "neuronx-cc", "torch", "torch-neuronx")
USAGE = """usage: python -m trnpy doctor [module ...] | --probe [--device neuron|simulator]

Modules are imported and searched for names that a later patch would not reach; the runner patches before
the program imports.  --probe launches every kernel and runs self-tests of the hardware properties that the
arithmetic relies on, and stores the results."""
CALIBRATE = """usage: python -m trnpy calibrate [--kernels [--device neuron|simulator]]

Measures this host in under a minute and stores its rates.  --kernels chooses and stores the tiles with which
kernels are compiled: with the cost model (under three minutes) and, on a device, by launching the best few (about
half an hour, including compilation)."""
STOCHASTIC = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
COVERS, MARGIN, WIDTH = "covers ", 14, 100
DAY_S = 86400
STALE_DAYS = 180  # age of a calibration after which microcode, BLAS or other load have probably changed


@record(frozen=True)
class Finding:
    """One line that the doctor prints."""

    topic: str
    text: str
    wrong: bool = False


def doctor(argv: list[str]) -> int:
    """Print all findings. Returns 1 if anything is wrong, otherwise 0.

    ``argv`` names modules to import and search for names that a patch would not reach.
    """
    if argv[:1] == ["--probe"]:
        return _probe(argv[1:])
    if argv[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if wrong := next((name for name in argv if name.startswith("-")), ""):
        remedy = ": it follows --probe" if wrong == "--device" else near(wrong, ("--probe", "--help"))
        return _usage_error("doctor", f"unknown option {wrong}{remedy}")
    findings = [
        *_versions(),
        *_settings(os.environ),
        *_devices(os.environ),
        *_kernels(os.environ),
        *_rates(),
        *_escapes(argv),
    ]
    topic = ""
    for f in findings:
        said = f"{'' if f.topic == topic else f.topic:<{MARGIN}}{'WRONG: ' if f.wrong else ''}{f.text}"
        print(
            textwrap.fill(said, WIDTH, subsequent_indent=" " * MARGIN, break_on_hyphens=False)
            if f.text.startswith(COVERS)
            else said
        )
        topic = f.topic
    count = sum(f.wrong for f in findings)
    print(f"\n{count} of these {'is' if count == 1 else 'are'} wrong" if count else "\nnothing is wrong")
    return 1 if count else 0


def _probe(argv: list[str]) -> int:
    """Test the device that ``--device`` or the policy names. Returns 1 if a self-test fails or there is no device."""
    if wrong := _wrong_device(argv):
        return _usage_error("doctor --probe", wrong)
    engine = _device("probe", argv)
    return 1 if engine is None else probes.report(engine)


def _usage_error(command: str, message: str) -> int:
    print(f"trnpy {command}: {message}", file=sys.stderr)
    return 2


def _wrong_device(argv: list[str]) -> str:
    """A message unless ``argv`` is empty, or ``--device`` with a device that launches kernels."""
    if not argv:
        return ""
    if argv[0] != "--device":
        return f"unknown argument {argv[0]}{near(argv[0], ('--device',))}"
    devices = ("neuron", "simulator")
    if argv[1:] and argv[1] not in devices:
        return f"--device {argv[1]!r}: expected neuron or simulator{near(argv[1], devices)}"
    return "" if len(argv) == 2 else f"expected one device after --device: {' or '.join(devices)}"


def _device(what: str, argv: list[str]) -> Engine | None:
    """The engine that ``--device`` or the policy names; None, with a message, if it launches no kernels."""
    try:
        settings = from_environment({**os.environ, **({"TRNPY_DEVICE": argv[1]} if argv else {})})
        engine = current_engine(settings)
    except (DeviceUnavailable, ValueError) as why:  # ValueError: an environment variable is wrong
        print(f"nothing to {what}: {why}")
        return None
    if engine is not None and engine.executes and engine.hardware is not None:
        return engine
    reason = available()[1] or "this device computes on the host"
    print(f"nothing to {what}: {reason} (--device simulator can run all of it)")
    return None


def _versions() -> Iterator[Finding]:
    yield Finding("trnpy", f"{distribution.version()} ({distribution.NAME}), {distribution.FOLDER}")
    if conflict := distribution.conflict():
        yield Finding("trnpy", conflict, True)
    yield Finding("python", f"{platform.python_version()}, {platform.platform()}")
    missing = []
    for package in PACKAGES:
        try:
            yield Finding("packages", f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        yield Finding("packages", f"not installed: {', '.join(missing)}")
    for name in ("numpy", "scipy"):
        build = importlib.import_module(name).show_config(mode="dicts")["Build Dependencies"]
        blas = build.get("blas", {})
        yield Finding("BLAS", f"{name}: {blas.get('name', 'unknown')} {blas.get('version', '')}".rstrip())
    variable, unset = "OPENBLAS_THREAD_TIMEOUT", "28, OpenBLAS's own"
    cycles = os.environ.get(variable, unset)
    yield Finding("BLAS", f"threads of OpenBLAS sleep after 2^n cycles without work, n = {cycles} ({variable})")
    if not is_compiled():
        without = "without a C compiler: each call of a patched function costs 1 us instead of 1/8 us"
        yield Finding("small calls", f"installed {without}")
        yield Finding("a @ b", "runs in NumPy, neither accelerated nor counted: installed without a C compiler")


def _settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        settings = from_environment(environ)
    except ValueError as why:
        yield Finding("policy", str(why), True)
        return
    for f in fields(Policy):
        variable, value = f"TRNPY_{f.name.upper()}", getattr(settings, f.name)
        source = f"from {variable}" if variable in environ else "default"
        if f.name == "fallback" and from_environment({**environ, REQUIRE: "0"}).fallback != value:
            source = f"from {REQUIRE}"
        yield Finding("policy", f"{f.name} = {value} ({source})")
    for complaint in unknown_variables(environ):
        yield Finding("policy", complaint, True)


def _devices(environ: Mapping[str, str]) -> Iterator[Finding]:
    found = detect()
    yield Finding("device", ", ".join(found.nodes) if found.available else f"none: {found.missing}")
    with contextlib.suppress(ValueError):  # reported already
        settings = from_environment(environ)
        try:
            engine = current_engine(settings)
        except DeviceUnavailable as why:
            yield Finding("device", str(why), True)
        else:
            yield Finding("device", f"calls go to: {engine.name if engine is not None else 'the host'}")
            yield from _faults(engine)
        machine = hardware_of(settings.machine)
        yield Finding(
            "machine",
            f"{machine.name}: link {machine.link_bytes_per_s / GIB:.3g} GiB/s, "
            f"HBM {machine.hbm_bytes_per_s / GIB:.4g} GiB/s, launch {machine.launch_s * 1e6:.3g} us "
            f"(published; times are modelled within a factor of {ERROR_FACTOR:g})",
        )


def _faults(engine: Engine | None) -> Iterator[Finding]:
    """Faults of devices in earlier processes, and of the ``engine`` in this one."""
    for machine in MACHINES:
        found = health.remembered("neuron", machine)
        if found.ignored:
            yield Finding("faults", f"ignored: {found.ignored}")
        for cause, count in (found.content or {}).items():
            yield Finding("faults", f"{machine}, {count:,} {cause}: {health.CAUSES[cause].then}", True)
        if found.content:
            yield Finding("faults", f"counted in {health.path('neuron', machine)}; delete it to reset the count")
    if engine is not None and (said := engine.health.sentence()):
        yield Finding("faults", f"{engine.name}, in this process: {said}", bool(engine.health.causes))


def _kernels(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on compiled kernels, and on environment variables that change their results."""
    for name in ("neuron", "simulator"):
        for machine in MACHINES:
            found = tuning.load(name, machine)
            if found.ignored:
                yield Finding("kernels", f"ignored: {found.ignored}; calibrate --kernels renews it")
            if ignored := probed(name, machine).ignored:
                yield Finding("probes", f"ignored: {ignored}; doctor --probe renews it", True)
            elif found.choices or found.compiled:
                measured = sum(c.measured for c in found.choices)
                yield Finding(
                    "kernels",
                    f"{tuning.path(name, machine)}: tiles of {len(found.choices)} shapes, {measured} measured and "
                    f"{len(found.choices) - measured} modelled; {len(found.compiled)} calls compiled",
                )
    source = f"from {COMPILE_CACHE}" if environ.get(COMPILE_CACHE) else "trnpy's own"
    yield Finding("kernels", f"compiled ones are kept in {compile_cache(environ)} ({source})")
    yield Finding("kernels", f"compiled by nki's {front_end(environ)}, for LNC {LNC}: a NeuronCore is a physical core")
    if through := route(software()):
        yield Finding("kernels", f"launched through {through}")
    flags = environ.get(COMPILER_FLAGS, "")
    if dropped := [flag.strip() for flag in CASTS.findall(flags) if flag.strip() != AUTO_CAST]:
        yield Finding("environment", f"{COMPILER_FLAGS} has {' '.join(dropped)}: trnpy compiles with {AUTO_CAST}")
    from nkisim.lint.linter import environment  # imported late: it loads the whole of NKI

    for f in environment({LOGICAL_CORES: LNC, **environ, COMPILER_FLAGS: pinned_flags(flags)}):
        yield Finding("environment", f.message, f.severity == "E")
    if environ.get(STOCHASTIC, "0") not in ("", "0"):
        yield Finding("environment", f"{STOCHASTIC}={environ[STOCHASTIC]}: float32 results are rounded at random", True)


def _rates() -> Iterator[Finding]:
    machine = host_rates.machine_id()
    yield Finding("host", machine)
    if why := store.refused():
        yield Finding("cache", f"nothing that is measured or compiled can be kept: {why}", True)
    path = host_rates.path(machine)
    found = host_rates.stored(machine)
    if found.ignored:
        yield Finding("calibration", f"ignored: {found.ignored}; python -m trnpy calibrate renews it", True)
        return
    if found.content is None:
        known, how = host_rates.of_other_counts(machine), "none, predictions are rough"
        if known is not None:
            how = "interpolated between" if known.calibrated else "none, predictions rest on"
            how += " those of other thread counts"
        yield Finding("calibration", f"{how}: python -m trnpy calibrate would write {path}")
        return
    days = (time.time() - path.stat().st_mtime) / DAY_S
    stale = ", old: python -m trnpy calibrate renews it" if days > STALE_DAYS else ""
    yield Finding("calibration", f"{path}, {days:.1f} days old{stale}")
    if found.content.remark:
        yield Finding("calibration", f"disturbed: {found.content.remark}; python -m trnpy calibrate renews it", True)


def _escapes(modules: list[str]) -> Iterator[Finding]:
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as why:
            yield Finding("patch", f"{name} does not import: {why}", True)
    with patched():
        status = patch_status()
    yield Finding("patch", f"{COVERS}{', '.join(status['installed'])}")
    for name, function in status["escaped"].items():
        yield Finding(
            "patch", f"{name} is {function}: imported before a patch, it escapes it (rebind=True re-points it)"
        )


def calibrate(argv: list[str]) -> int:
    """Measure this host, store the rates and print a summary; with ``--kernels`` choose tiles instead."""
    if argv[:1] in (["-h"], ["--help"]):
        print(CALIBRATE)
        return 0
    if argv and argv[0] != "--kernels":
        return _usage_error("calibrate", f"unknown argument {argv[0]}{near(argv[0], ('--kernels', '--help'))}")
    if wrong := _wrong_device(argv[1:]):
        return _usage_error("calibrate --kernels", wrong)
    if argv:
        return _tiles(argv[1:])
    if why := store.refused():  # reported before a minute of measuring, not after
        print(f"nothing was measured, it could not be kept: {why}")
        return 1
    started = time.perf_counter()
    with _progress() as progress:
        rates = calibration.calibrate(progress)
    path = host_rates.save(rates)
    width = 2 + max(map(len, rates.curves))
    for kind, curve in rates.curves.items():
        print(kind.ljust(width) + "  ".join(f"n={n:.0f}: {rate / 1e9:.3g} Gflop/s" for n, rate in curve))
    print(f"{'copy':<{width}}{rates.copy_bytes_per_s / 1e9:.3g} GB/s")
    if rates.remark:
        print(f"disturbed: {rates.remark}; calibrate again when this host is idle")
    print(f"measured in {time.perf_counter() - started:.0f} s and saved: {path}")
    return 0


def _tiles(argv: list[str]) -> int:
    """Choose and store tiles for the device that ``--device`` or the policy names. Returns 1 if there is none."""
    engine = _device("time, and nothing was stored", argv)
    if engine is None:
        return 1
    started, machine = time.perf_counter(), engine.machine.name
    seconds = timings.budget_s(engine)
    how = "launches of the best choices by the model" if engine.compiles.active else "modelled, no device"
    print(f"tiles of kernels on {machine} ({engine.name}): {how}, at most {seconds:.0f} s", flush=True)
    with _progress() as progress:
        done, work = timings.calibrate(engine, lambda line: print(line, flush=True), progress, seconds)
    rest = f", {work - done} have their defaults" if done < work else ""
    kept = tuning.path(engine.name, machine)
    print(f"{done} of {work} cases in {time.perf_counter() - started:.0f} s{rest}; kept in {kept}")
    return 0


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """Progress as a bar if rich is installed, otherwise a line for each step."""
    if importlib.util.find_spec("rich") is None:
        yield lambda what, fraction: print(f"{fraction:4.0%}  {what}", file=sys.stderr)
        return
    import rich.console
    import rich.progress

    with rich.progress.Progress(console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("calibrating", total=1.0)

        def progress(what: str, fraction: float) -> None:
            bar.update(task, completed=fraction, description=what)

        yield progress
        bar.update(task, completed=1.0, description="calibrated")
