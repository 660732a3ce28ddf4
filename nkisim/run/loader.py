"""Loads a kernel file unmodified, with ``nki`` and its modules bound to the simulator.

The file is compiled under its own name, so tracebacks show its lines. It runs in a module of its own, whose
``__import__`` returns the simulator for ``nki``. sys.modules does not change, and two threads may load at once.
Imported files that import ``nki`` themselves are loaded in the same way.
"""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import itertools
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from nkisim import collectives, isa, language
from nkisim.chip.context import DEFAULT_TARGET
from nkisim.chip.dtypes import STORAGE
from nkisim.chip.errors import SimulatorError
from nkisim.run import neuron_dtypes
from nkisim.run.launch import Kernel, simulate

NKI_VERSION = "0.6.0"
JIT_MODES = ("auto", "trace", "jax", "torchxla")  # values from before NKI 0.4, without effect
INIT = "__init__.py"
_SERIAL = itertools.count()
IMPORTS_NKI = re.compile(r"^\s*(?:import|from)\s+(?:nki|neuronxcc|neuron_dtypes)\b", re.MULTILINE)


def jit(function: Any = None, **options: Any) -> Any:
    """``nki.jit``, with or without arguments: a kernel that runs on the simulator when called.

    ``mode`` and ``debug_kernel`` of earlier versions have no effect; the lint reports them.
    """
    if "platform_target" in options:
        raise SimulatorError("nki.jit(platform_target=...) does not exist any more: set the target of the run", rule=10)
    if options.get("mode", "auto") not in JIT_MODES:
        raise SimulatorError(f"nki.jit(mode={options['mode']!r}) does not exist any more: call nki.simulate", rule=10)
    if function is None:
        return lambda f: jit(f, **options)
    return function if isinstance(function, Kernel) else Kernel(function)


@cache
def nki_modules() -> dict[str, ModuleType]:
    """The simulator's modules, named as in the nki package; made once, and not put into sys.modules."""
    nki, typing, dtype = ModuleType("nki"), ModuleType("nki.typing"), ModuleType("nki.dtype")
    modules: dict[str, ModuleType] = {
        "nki": nki,
        "nki.language": language,
        "nki.isa": isa,
        "nki.isa.constants": isa.constants,
        "nki.collectives": collectives,
        "nki.typing": typing,
        "nki.dtype": dtype,
        "neuron_dtypes": neuron_dtypes,
        "neuronxcc.nki.typing": typing,  # dialect before 0.4; kernels import it for annotations
    }
    typing.tensor = typing.mutable_tensor = language.NkiTensor  # type: ignore[attr-defined]
    vars(dtype).update({name: name for name in STORAGE})
    for name, module in modules.items():
        if name.startswith("nki.") and name.count(".") == 1:
            setattr(nki, name.removeprefix("nki."), module)
    vars(nki).update(jit=jit, simulate=simulate, __version__=NKI_VERSION, __path__=[])
    return modules


@dataclass(slots=True)
class Loader:
    """One load: the private modules of a kernel file and of the kernel files that it imports."""

    folder: Path
    loaded: dict[Path, ModuleType] = field(default_factory=dict)

    def file(self, path: Path, name: str) -> ModuleType:
        """Execute a file as module ``name``."""
        if path in self.loaded:
            return self.loaded[path]
        try:
            source = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SimulatorError(f"cannot read {path}: {error}", file=str(path), line=0) from None
        try:
            code = compile(source, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise SimulatorError(
                f"{path.name} is not Python: {error.msg}", file=str(path), line=error.lineno or 0
            ) from None
        module = ModuleType(f"{name}@{next(_SERIAL)}")
        module.__file__ = str(path)
        module.__package__ = name if path.name == INIT else name.rpartition(".")[0]
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        if path.name == INIT:
            module.__path__ = [str(path.parent)]
        self.loaded[path] = module
        # dataclasses looks up the module of a class while it decorates it; only this load uses the name.
        sys.modules[module.__name__] = module
        try:
            exec(code, vars(module))
        finally:
            del sys.modules[module.__name__]
            inspect.modulesbyfile.pop(str(path), None)  # otherwise inspect gives the next load this module's name
        return module

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        """``__import__`` for the loaded files."""
        top = name.partition(".")[0]
        if level == 0 and top == "nki":
            return self._nki(name, fromlist)
        if level == 0 and name in (shared := nki_modules()):
            return shared[name] if fromlist else _package(name, shared[name])
        if level == 0 and top == "neuronxcc":
            raise SimulatorError("neuronxcc.nki is the dialect before 0.4: import nki", rule=3)
        if level:
            package = (globals or {}).get("__package__") or ""
            parts = package.split(".")[: len(package.split(".")) - level + 1]
            name = ".".join([*filter(None, parts), *([name] if name else [])])
        path = self._kernel_file(name, relative=level > 0)
        if path is None:
            return builtins.__import__(name, globals, locals, fromlist, 0)
        module = self.file(path, name)
        for member in fromlist or ():
            if not hasattr(module, member) and self._beside(f"{name}.{member}") is not None:
                setattr(module, member, self._import(f"{name}.{member}", fromlist=(member,)))
        return module if fromlist else _package(name, module)

    def _nki(self, name: str, fromlist: Any) -> ModuleType:
        modules = nki_modules()
        if name not in modules:
            raise SimulatorError(
                f"{name} is not a module of NKI {NKI_VERSION} that this simulator has: {', '.join(modules)}"
            )
        return modules[name] if fromlist else modules["nki"]

    def _beside(self, name: str) -> Path | None:
        """The file of a module below the folder of this load."""
        top, *below = name.split(".")
        # A folder above with this name is a package without an __init__.py.
        above = next((folder.parent for folder in (self.folder, *self.folder.parents) if folder.name == top), None)
        for root in filter(None, (self.folder, above)):
            place = root.joinpath(top, *below)
            for file in (place.with_suffix(".py"), place / INIT):
                if file.is_file():
                    return file
        return None

    def _kernel_file(self, name: str, relative: bool) -> Path | None:
        """The file to load privately for an import, None for an ordinary module.

        Relative imports stay in the kernel's package. Other files are private if they import nki, or if they are found
        only in the folder of this load.
        """
        beside = self._beside(name)
        if relative or (beside is not None and _imports_nki(beside)):
            return beside
        if name in sys.modules or name.partition(".")[0] in sys.stdlib_module_names:
            return None
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return beside
        if spec.origin is None or not spec.origin.endswith(".py"):
            return None
        origin = Path(spec.origin)
        return origin if _imports_nki(origin) else None


def _package(name: str, module: ModuleType) -> ModuleType:
    """The object that ``import a.b.c`` binds to ``a``: empty packages around the module."""
    top, *parts = name.split(".")
    if not parts:
        return module
    outer = inner = ModuleType(top)
    for part in parts[:-1]:
        setattr(inner, part, ModuleType(part))
        inner = getattr(inner, part)
    setattr(inner, parts[-1], module)
    return outer


def _imports_nki(path: Path) -> bool:
    return IMPORTS_NKI.search(path.read_text(errors="replace")) is not None


def load(path: str | Path) -> ModuleType:
    """The module of a kernel file; its ``nki.jit`` functions run on the simulator when called.

    Raises SimulatorError if the file cannot be read or is not Python.
    """
    file = Path(path).resolve()
    folder, name = file.parent, file.stem
    if file.name == INIT:
        folder, name = folder.parent, folder.name
    while (folder / INIT).is_file():  # a file keeps its place in its package, for relative imports
        folder, name = folder.parent, f"{folder.name}.{name}"
    return Loader(folder).file(file, name)


def load_kernel(path: str | Path, name: str | None = None) -> Kernel:
    """The kernel of this name in a file; if no name is given, the only ``nki.jit`` function of the file."""
    module = load(path)
    kernels = [k for k, value in vars(module).items() if isinstance(value, Kernel)]
    if name is None:
        if len(kernels) != 1:
            raise SimulatorError(_without_name(path, kernels), file=str(path), line=0)
        name = kernels[0]
    found = vars(module).get(name)
    if isinstance(found, Kernel):
        return found
    if isinstance(found, FunctionType):
        return Kernel(found, target=DEFAULT_TARGET)
    known = f": it has {', '.join(kernels)}" if kernels else ""
    raise SimulatorError(f"{path} has no kernel named {name}{known}", file=str(path), line=0)


def _without_name(path: str | Path, kernels: list[str]) -> str:
    if not kernels:
        return f"{path} has no nki.jit function"
    return f"{path} has {len(kernels)} kernels: name one, as in {path}:{kernels[0]} (others: {', '.join(kernels[1:])})"
