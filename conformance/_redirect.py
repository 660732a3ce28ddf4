"""Gives test files, and only them, trnpy's objects wherever they import or look up the reference's."""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance._suites import Name


class Redirection(importlib.abc.MetaPathFinder):
    """While installed, modules in folders ``<package>/…/tests`` get an ``import`` of their own.

    It returns proxies of the package's modules. An attribute of a proxy that is the reference's object (also
    ``scipy.linalg._basic.solve``) is replaced by trnpy's; the modules themselves stay unchanged.
    """

    def __init__(self, names: Iterable[Name], package: str) -> None:
        self.package = package
        self.fetched: Counter[str] = Counter()  # how often test files got each name
        self._names = {id(n.reference): n for n in names}  # the Name keeps its reference alive, and with it the id
        _enter(self._names.values())
        self.replaced = {n.name for n in self._names.values()}
        self._proxies: dict[str, Proxy] = {}
        self._folder = Path(sys.modules[package].__path__[0])
        self.builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Some folders of tests are not packages: pytest imports their files as top-level modules.
        if "." in fullname and not fullname.startswith(f"{self.package}."):
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and self._is_test(spec.origin):
                    spec.loader = _Loader(spec.loader, self.builtins)
                return spec
        return None

    def _is_test(self, file: str | None) -> bool:
        path = Path(file or "")
        return path.is_relative_to(self._folder) and "tests" in path.relative_to(self._folder).parts

    def covers(self, module: ModuleType) -> bool:
        """Whether ``module`` was created with redirected imports."""
        return vars(module).get("__builtins__") is self.builtins

    def redirect(self, value: Any) -> Any:
        """The object that a test file gets where the reference has ``value``."""
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] != self.package:
                return value
            return self._proxies.setdefault(value.__name__, Proxy(value, self))
        name = self._names.get(id(value))
        if name is None:
            return value
        self.fetched[name.name] += 1
        return name.ours

    def _import(self, *args: Any, **kwargs: Any) -> Any:
        return self.redirect(builtins.__import__(*args, **kwargs))


def _enter(names: Iterable[Name]) -> None:
    """Add trnpy's functions beside SciPy's to the table in which tests look functions up, if there is one."""
    table = getattr(sys.modules.get("scipy._lib._array_api"), "xp_capabilities_table", {})
    table.update({name.ours: table[name.reference] for name in names if name.reference in table})


class Proxy(ModuleType):
    """A module as test files see it: reads are redirected, writes (monkeypatch) reach the module."""

    def __init__(self, module: ModuleType, redirection: Redirection) -> None:
        super().__init__(module.__name__, module.__doc__)
        object.__setattr__(self, "_conformance", (module, redirection))

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Proxy
        module, redirection = object.__getattribute__(self, "_conformance")
        return redirection.redirect(getattr(module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_conformance")[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_conformance")[0], name)

    def __dir__(self) -> list[str]:
        return dir(object.__getattribute__(self, "_conformance")[0])


class _Loader(importlib.abc.Loader):
    """Wraps a loader: gives the module other builtins."""

    def __init__(self, loader: Any, builtin: dict[str, Any]) -> None:
        self._loader, self._builtin = loader, builtin

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = self._loader.create_module(spec) or ModuleType(spec.name)
        module.__dict__["__builtins__"] = self._builtin
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for tracebacks
        return getattr(self._loader, name)
