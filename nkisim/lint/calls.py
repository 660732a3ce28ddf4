"""Lint rules about the NKI names that a kernel calls and the form of each call (6, 7, 9, 10, 14, 34, 37-39)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from nkisim.chip.dialects import PARSER, SEVEN, TRACER, TRACERS
from nkisim.lint.rules import Severity
from nkisim.lint.scope import LOOPS, Function, Module, Violation, body_nodes, dotted, is_jit

NL, NISA = "nki.language.", "nki.isa."
STATIC_LOOPS = tuple(NL + n for n in ("affine_range", "range", "sequential_range", "static_range"))
DYNAMIC_RANGE = NL + "dynamic_range"
ALLOCATORS = tuple(NL + n for n in ("ndarray", "zeros", "ones", "full", "zeros_like", "empty_like", "load"))
REGISTER_WRITES = (NISA + "register_move", NISA + "register_load")
VIEW_METHODS = ("permute", "slice", "select", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims",
                "reshape", "rearrange", "view", "vector_select")  # fmt: skip
ENUM_ARGUMENTS = ("engine", "dge_mode", "oob_mode", "reduce_cmd", "perf_mode")
SCALAR_OPERANDS = ("operand0", "operand1", "scale", "bias", "value", "initial", "scalar", "on_false_value", "on_false")
BARRIERS = (NISA + "sendrecv", NISA + "core_barrier")
FRAMEWORKS = ("torch_xla", "torch_neuronx")
SYNCS = ("mark_step", "sync")

REMOVED: Mapping[str, tuple[int, Severity, str]] = MappingProxyType(
    {
        NISA + "tensor_copy_dynamic_src": (10, "E", "removed in 0.4; use tensor_copy on a view with scalar_offset"),
        NISA + "tensor_copy_dynamic_dst": (10, "E", "removed in 0.4; use tensor_copy on a view with scalar_offset"),
        NL + "tile_size.psum_fmax": (10, "E", "deprecated in 0.4; use tile_size.psum_bank_fmax"),
        NL + "tile_size.total_available_sbuf_size": (10, "E", "deprecated in 0.4; use tile_size.sbuf_size_bytes"),
        NL + "load": (10, "W", "a convenience that hides the tile; performance code calls nisa.dma_copy"),
        NL + "store": (10, "W", "a convenience that hides the tile; performance code calls nisa.dma_copy"),
        NL + "mgrid": (10, "E", "removed in 0.3; index with slices"),
        NL + "arange": (10, "E", "removed in 0.3; index with slices"),
        NL + "divide": (34, "E", "no engine divides; multiply by nisa.reciprocal"),
        NL + "mod": (34, "E", "runs in a simulator, fails on hardware"),
        NL + "fmod": (34, "E", "runs in a simulator, fails on hardware"),
        NISA + "rsqrt": (34, "E", "does not exist; use nisa.activation(op=nl.rsqrt)"),
    }
)


def call_findings(function: Function, module: Module) -> Iterator[Violation]:
    """Findings of all call rules in one function of the call tree."""
    registers = _registers(function, module)
    yield from _names(function, module)
    yield from _loops(function, module, registers)
    yield from _loop_bodies(function, module)
    yield from _views(function, module)
    yield from _scalars(function, module)
    yield from _two_cores(function, module)


def _registers(function: Function, module: Module) -> frozenset[str]:
    """Names that hold a run-time register: allocated here, or the argument of a device loop's body."""
    names = {
        target.id
        for node in body_nodes(function.node)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func, module) == NISA + "register_alloc"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names |= {
        node.target.id
        for node in body_nodes(function.node)
        if isinstance(node, ast.For)
        and isinstance(node.target, ast.Name)
        and isinstance(node.iter, ast.Call)
        and dotted(node.iter.func, module) == DYNAMIC_RANGE
    }
    for body in function.loop_bodies.values():
        names |= {a.arg for a in body.args.args[:1]}
    return frozenset(names)


def _names(function: Function, module: Module) -> Iterator[Violation]:
    """Rules 10 and 34: names that were removed, are deprecated, or that no hardware implements."""
    for node in body_nodes(function.node):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, module)
            if name is not None and name in REMOVED:
                rule, severity, sentence = REMOVED[name]
                yield node, rule, severity, f"{name}: {sentence}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func, module)
            words = {k.arg: k.value for k in node.keywords if k.arg}
            buffer = words.get("buffer")
            if isinstance(buffer, ast.Constant) and isinstance(buffer.value, str):
                yield node, 10, "E", f"buffer={buffer.value!r} is a string; pass nl.{buffer.value}"
            for argument in ENUM_ARGUMENTS:
                value = words.get(argument)
                if isinstance(value, ast.Constant) and isinstance(value.value, int):
                    yield node, 10, "E", f"{argument}={value.value} is a number; pass the member of the enumeration"
            if name == NL + "power" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                yield node, 34, "E", "nl.power with a constant exponent is not supported; multiply"
            if name == NL + "matmul":
                flag = words.get("transpose_x", node.args[2] if len(node.args) > 2 else None)
                if not (isinstance(flag, ast.Constant) and flag.value is True):
                    yield node, 34, "E", "nl.matmul needs transpose_x=True: the stationary operand is K-major"
    for decorator in function.node.decorator_list:
        if isinstance(decorator, ast.Call) and is_jit(decorator, module):
            for keyword in decorator.keywords:
                if keyword.arg in ("mode", "platform_target", "debug_kernel"):
                    how: Severity = "E" if keyword.arg == "platform_target" else "W"
                    yield decorator, 10, how, f"nki.jit({keyword.arg}=) was removed in 0.3"


def _arithmetic(node: ast.expr, register: str, counter: bool) -> Iterator[Violation]:
    """Rule 6: Python cannot compute with a register, except the NkiScalar that counts a loop of 0.7."""
    advice = "compute in SBUF and register_load it"
    yield node, 6, "E", f"'add' expected (int, int), got (int, object): arithmetic on {register!r}; {advice}", (PARSER,)
    if counter:
        yield node, 6, "E", f"arithmetic on the counter {register!r} is a TypeError; {advice}", (TRACER,)
    else:
        yield node, 6, "E", f"arithmetic on register {register!r} is a TypeError; {advice}", TRACERS


def _loops(function: Function, module: Module, registers: frozenset[str]) -> Iterator[Violation]:
    """Rule 6: one kind of compile-time loop, and no register where Python needs a value."""
    scalars = {a.arg for body in function.loop_bodies.values() for a in body.args.args[:1]}

    def holds_register(node: ast.AST) -> str | None:
        return next((n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in registers), None)

    for node in body_nodes(function.node):
        if isinstance(node, ast.Call):
            name = dotted(node.func, module)
            if name in STATIC_LOOPS:
                yield node, 6, "W", f"{name} is a deprecated name of range"
            elif name == DYNAMIC_RANGE:
                yield node, 6, "W", "nl.dynamic_range is deprecated; use nl.fori_loop", (PARSER, TRACER)
                yield node, 6, "E", "nl.dynamic_range was removed in 0.7; use nl.fori_loop", (SEVEN,)
            elif name in ("range", "int", "float", "bool"):
                register = next((r for a in node.args if (r := holds_register(a))), None)
                if register:
                    yield node, 6, "E", f"register {register!r} in {name}(): its value does not exist at compile time"
        elif isinstance(node, ast.While | ast.If | ast.IfExp):
            register = holds_register(node.test)
            if register:
                if isinstance(node, ast.While) and isinstance(node.test, ast.Name):
                    yield node, 6, "W", f"while {register}: is deprecated; use nl.while_loop", (PARSER,)
                    yield node, 6, "E", f"while on register {register!r} is a TypeError; use nl.while_loop", TRACERS
                else:
                    word = "while" if isinstance(node, ast.While) else "if"
                    yield node, 6, "E", f"{word} on register {register!r}; use nl.while_loop or masks on the device"
        elif isinstance(node, ast.BinOp | ast.Compare | ast.UnaryOp):
            operands = (
                (node.left, node.right)
                if isinstance(node, ast.BinOp)
                else (node.left, *node.comparators)
                if isinstance(node, ast.Compare)
                else (node.operand,)
            )
            register = next((o.id for o in operands if isinstance(o, ast.Name) and o.id in registers), None)
            if register:
                yield from _arithmetic(node, register, register in scalars)


def _loop_bodies(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 7: tensors of a device loop stay in it, its counter is read-only, and it is not inside no_reorder."""
    counted = {
        argument.id
        for node in body_nodes(function.node)
        if isinstance(node, ast.Call) and dotted(node.func, module) == LOOPS[0]
        for argument in (*node.args, *(k.value for k in node.keywords))
        if isinstance(argument, ast.Name)
    }
    for body in function.loop_bodies.values():
        local = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        tensors = {
            target.id
            for node in ast.walk(body)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and dotted(node.value.func, module) in ALLOCATORS
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        counters = {a.arg for a in body.args.args[:1]} if body.name in counted else set()
        for node in ast.walk(body):
            if isinstance(node, ast.Call):
                yield from _escapes(node, local, tensors)
                if dotted(node.func, module) in REGISTER_WRITES:
                    target = next(
                        (k.value for k in node.keywords if k.arg == "dst"), node.args[0] if node.args else None
                    )
                    if isinstance(target, ast.Name) and target.id in counters:
                        yield node, 7, "E", f"write to the loop counter {target.id!r}; it is passed by value"
            elif isinstance(node, ast.Assign):
                for place in node.targets:
                    if (
                        isinstance(place, ast.Subscript)
                        and isinstance(place.value, ast.Name)
                        and (
                            place.value.id not in local
                            and isinstance(node.value, ast.Name)
                            and node.value.id in tensors
                        )
                    ):
                        yield node, 7, "E", f"tensor {node.value.id!r} of a device loop is stored outside of it"
    for node in body_nodes(function.node):
        if isinstance(node, ast.With):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and dotted(inner.func, module) in (*LOOPS, DYNAMIC_RANGE):
                    yield inner, 7, "E", "a device loop inside nl.no_reorder(); put no_reorder inside its body"


def _escapes(node: ast.Call, local: set[str], tensors: set[str]) -> Iterator[Violation]:
    method = node.func
    if not isinstance(method, ast.Attribute) or method.attr not in ("append", "extend", "insert", "setdefault"):
        return
    if isinstance(method.value, ast.Name) and method.value.id not in local:
        for argument in node.args:
            if isinstance(argument, ast.Name) and argument.id in tensors:
                yield node, 7, "E", f"tensor {argument.id!r} of a device loop is kept outside of it"


def _views(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 14: .ap() describes the storage and ignores the view that it is called on, without a warning."""
    for node in body_nodes(function.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "ap":
            base = node.func.value
            sliced = isinstance(base, ast.Subscript) and not isinstance(base.slice, ast.Constant)
            method = base.func.attr if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) else None
            if sliced or method in VIEW_METHODS:
                yield node, 14, "W", ".ap() on a view: only the offset of the view survives; call it on the tensor"


def _scalars(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 9: a kernel is compiled again for each value of a Python number given at launch and used as an operand."""
    if not function.kernel:
        return
    unreported = {a.arg for a in function.node.args.args}
    for node in body_nodes(function.node):
        if not isinstance(node, ast.Call) or not (dotted(node.func, module) or "").startswith("nki."):
            continue
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg in SCALAR_OPERANDS and isinstance(value, ast.Name) and value.id in unreported:
                unreported.remove(value.id)
                sentence = f"{keyword.arg}={value.id} is a Python number from the launch: each value is compiled anew"
                yield node, 9, "W", f"{sentence}, pass a (P, 1) tensor"


def _two_cores(function: Function, module: Module) -> Iterator[Violation]:
    """Rule 37: both cores must reach every barrier."""
    ids = {
        target.id
        for node in body_nodes(function.node)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func, module) == NL + "program_id"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in body_nodes(function.node):
        if not isinstance(node, ast.If):
            continue
        asks = any(
            (isinstance(n, ast.Name) and n.id in ids)
            or (isinstance(n, ast.Call) and dotted(n.func, module) == NL + "program_id")
            for n in ast.walk(node.test)
        )
        if asks and any(isinstance(n, ast.Call) and dotted(n.func, module) in BARRIERS for n in ast.walk(node)):
            yield (
                node,
                37,
                "W",
                "sendrecv or core_barrier under a branch on program_id: the other core may never arrive",
            )


def host_findings(tree: ast.Module, module: Module, kernels: tuple[str, ...]) -> Iterator[Violation]:
    """Rules 37 to 39, for the host code of the same file: grids, targets, launches through frameworks."""
    inside = {id(n) for name in kernels for n in ast.walk(module.functions[name])}
    text = ast.unparse(tree)
    frameworks = [f for f in FRAMEWORKS if any(a.split(".")[0] == f for a in module.aliases.values())]
    with_numpy = "numpy" in module.aliases.values() and not frameworks
    looped = {id(n) for loop in ast.walk(tree) if isinstance(loop, ast.For | ast.While) for n in ast.walk(loop)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in inside:
            continue
        if dotted(node.func, module) == "nki.simulate" and "NEURON_PLATFORM_TARGET_OVERRIDE" not in text:
            yield node, 38, "W", "simulated for the default target trn3; set NEURON_PLATFORM_TARGET_OVERRIDE"
        launched = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if not (isinstance(launched, ast.Name) and launched.id in kernels):
            continue
        if isinstance(node.func, ast.Subscript) and isinstance(node.func.slice, ast.Constant):
            grid = node.func.slice.value
            if grid not in (1, 2):
                yield node, 37, "E", f"{launched.id}[{grid!r}]: a launch runs on 1 or 2 cores"
        if with_numpy and id(node) in looped:
            yield node, 39, "W", f"{launched.id} launched on NumPy arrays in a loop: every call copies its operands"
        if frameworks and "auto-cast" not in text:
            yield node, 39, "W", f"through {frameworks[0]} without --auto-cast=none, float32 graph products become bf16"
        if frameworks and id(node) in looped and not any(s in text for s in SYNCS):
            yield node, 39, "W", "launches in a loop without mark_step: the lazy graph grows with every pass"
