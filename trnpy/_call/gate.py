"""The start of every call of an accelerated function: small calls and calls that stay on the host run at once.

Direct, patched and recorded calls all run one function, ``call`` below. Its frame is trnpy's only frame between the
program's line and NumPy's or SciPy's function, and the only one that warnings skip. ``call`` passes its findings to the
compiled gate (``_gate.c``), which then runs such calls without Python code.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from trnpy._base.conventions import OWN, uncounted
from trnpy._base.garbage import not_collected
from trnpy._call.cache_key import kind_of
from trnpy._call.fast_path import COMPRESSED, ENTERED, LIMITS, UNSEEN, Limits, _trace, sizes
from trnpy._report import ledger as _ledger
from trnpy._report.small_calls import EXACT
from trnpy._settings import policy as _policy
from trnpy._settings.policy import Attention, Rates, _override, _own, current_policy

try:
    from trnpy._call import _gate as compiled
except ImportError:  # installed without a C compiler: every call runs Python code
    compiled = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from trnpy._call.decisions import Op
    from trnpy._report.reasons import Decision
    from trnpy._report.small_calls import SmallCalls

OPERANDS = 5  # calls with this many positional arguments or more do not count as small
# NumPy's functions that call a function of the program for parts of an array.
APPLYING = frozenset(
    {
        *("apply_along_axis", "apply_over_axes", "fromfunction", "piecewise", "vectorize.__call__"),
        *("vectorize._call_as_normal", "vectorize._get_ufunc_and_otypes", "vectorize._vectorize_call"),
        "vectorize._vectorize_call_with_signature",
    }
)
OPERATORS = "scipy.sparse._base", "scipy.sparse._coo", "scipy.sparse._matrix"  # modules of its operators
KINDS = 4096  # cache keys of one function, more than most programs have
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# The state on which a decision depends: activation, policy of the process and of the context, ledger, calibration.
State = tuple[Any, Any, Any, Any, Any]
FORGOTTEN: State = (None,) * 5  # a state without remembered calls
NEVER = Limits(-1.0, -1.0)  # no call is small


class Way:
    """How to run one call: the function or its result, and the record to make."""

    def __init__(
        self, function: Callable[..., Any] | None, args: Args, kwargs: Kwargs, *,
        decides: Callable[..., None] | None = None, alone: bool = True, timed: bool = False,
        record: Callable[[Way], None] | None = None,
    ) -> None:  # fmt: skip
        self.function, self.args, self.kwargs = function, args, kwargs
        self.decides = decides  # puts a function or a result here
        self.alone = alone  # whether the function calls the originals of accelerated functions
        self.timed, self.record = timed or record is not None, record
        self.result: Any = None
        self.form: Callable[[Any], Any] | None = None  # converts the function's result
        self.refusals: tuple[type[Exception], ...] = ()  # with which the function may refuse the values
        self.instead: Callable[[Any], None] | None = None  # called with the refusal: puts another function here
        self.decision: Decision | None = None
        self.settled: Callable[..., Any] | None = None  # the function for later calls with this cache key
        self.routed = False  # whether ``settled`` is a CPU fast path, which may refuse the values

    def run(self, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        """Run this next."""
        self.function, self.args, self.kwargs = function, args, kwargs

    def start(self) -> None:
        """Start the clocks: of the process, of this thread and of the wall."""
        self.cpu_from, self.ran_from, self.started = time.process_time(), time.thread_time(), time.perf_counter()

    def stop(self) -> None:
        """Stop the clocks."""
        self.seconds, self.ran_s = time.perf_counter() - self.started, time.thread_time() - self.ran_from
        self.cpu_s = time.process_time() - self.cpu_from

    def note(self, decision: Decision, ledger: Any, log: list[Decision] | None, frame: FrameType) -> None:
        """Record this call, whose clocks have stopped."""
        if ledger is not None:
            ledger.add(decision, self.started, self.seconds, frame, self.ran_s, self.cpu_s)
        if log is not None:
            log.append(decision)


class Patched(NamedTuple):
    """Properties of a patched function: whether the patch is active here, and which module calls."""

    name: str
    own: Any  # ContextVar of the activation of a thread or task
    process: Any  # class whose attribute ``activation`` holds for all others
    nothing: Any  # the activation without a patch
    # For methods: whether the operands are too small, the limit in words, and the frame that used an operator.
    judge: Callable[..., bool] | None = None
    limit: tuple[int, str] | None = None
    caller: Callable[[FrameType], FrameType] | None = None


class Face:
    """A replacement for a function of NumPy or SciPy, with its name, doc, signature, attributes and class."""

    def __init__(self, original: Callable[..., Any], load: Callable[[], Op]) -> None:
        functools.update_wrapper(cast(Any, self), original)
        self._original, self._load = original, load

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Python functions that are attributes of a class become methods; ufuncs and f2py's functions do not.
        binds = instance is not None and hasattr(type(self._original), "__get__")
        return types.MethodType(cast(Any, self), instance) if binds else self

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # copy and pickle look up attributes before __init__ has run
            raise AttributeError(name)
        return getattr(self._original, name)

    @property
    def __trnpy_op__(self) -> Op:
        return self._load()

    # isinstance(np.matmul, np.ufunc), inspect.isfunction and help() give the same answers as for the original.
    __class__ = property(lambda self: type(self._original))


def gated(kind: type[Face]) -> type[Face] | None:
    """``kind`` as a class whose small calls pass the compiled gate; None without a C compiler."""
    name = f"Gated{kind.__name__}"
    return None if compiled is None else type(name, (kind, compiled.Gated), {"__doc__": kind.__doc__})


def stand_in(
    kind: type[Face], gated: type[Face] | None, original: Any, load: Callable[[], Op], row: str,
    patched: Patched | None = None, function: Any = None,
) -> Any:  # fmt: skip
    """An instance of ``kind`` for ``original``, of ``gated`` if trnpy is compiled.

    Calls run ``function`` if it is given, otherwise ``original``. ``load`` returns the row; it runs at the first call
    that needs it. ``row`` is its name, which reports show.
    """
    door = _Door(original if function is None else function, load, row, patched)
    door.function = call = _call(door)
    if compiled is None or gated is None:
        # Each has its own type with a static __call__, because an ordinary method would double the overhead.
        made: Any = object.__new__(type(kind.__name__, (kind,), {"__call__": staticmethod(call)}))
    else:
        settings = (_policy.ProcessPolicy, "policy"), (_ledger.ProcessLedger, "ledger")
        attributes = *settings, (Rates, "turn"), (Attention, "apart")
        shown = *attributes, (door.process, "activation" if patched is not None else "policy")
        alone = patched is not None and not row.startswith("numpy.")  # NumPy's functions do not call public names
        variables = door.own, _own, _override, _trace
        if row.startswith("scipy.sparse."):
            _sparse()
        sparse = patched is not None and patched.judge is not None
        made = cast(Any, gated).__new__(gated, call, door.original, door.nothing, variables, shown, alone, sparse)
        door.function = door.gate = made
        door.gate._limit(*door.limits)
    kind.__init__(made, original, load)
    return made


@functools.cache
def _sparse() -> None:
    """Let the compiled gate know SciPy's classes of CSR and CSC matrices, and its operators."""
    classes = [
        x for name in COMPRESSED for x in vars(sys.modules[name]).values() if getattr(x, "__module__", "") == name
    ]
    compiled.sparse(
        tuple([x for x in classes if isinstance(x, type)]),
        tuple([vars(sys.modules[name]) for name in OPERATORS if name in sys.modules]),
    )


def _call(door: _Door) -> Callable[..., Any]:
    """The function that runs calls that do not pass the compiled gate."""
    original, patched, own, process, nothing = door.original, door.patched, door.own, door.process, door.nothing

    @uncounted
    def call(*args: Any, **kwargs: Any) -> Any:
        here = None
        if patched is not None:
            here = own.get() or process.activation
            if patched.name not in here.names:
                return original(*args, **kwargs)
        try:
            frame = sys._getframe(1)
        except ValueError:  # a thread of C code, without a program's frame
            return original(*args, **kwargs)
        way = door.way(here, args, kwargs, frame)
        token = own.set(nothing) if patched is not None and way.alone else None
        if way.timed:
            way.start()
        try:
            if way.decides is not None:
                way.decides(way, args, kwargs, frame)
            while way.function is not None:
                try:
                    way.result = way.function(*way.args, **way.kwargs)
                    way.function = None
                except way.refusals as why:
                    way.instead(why)  # type: ignore[misc]  # set with the refusals
            if way.form is not None:
                way.result = way.form(way.result)
        finally:
            if token is not None:
                own.reset(token)
        if way.record is not None:
            way.stop()
            way.record(way)
        if way.settled is not None:
            door.settle(here, way, args, kwargs)
        return way.result

    return call


class _Door:
    """The gate's state for one accelerated function: its row, once loaded, and the calls that need no decision."""

    def __init__(self, original: Any, load: Callable[[], Op], row: str, patched: Patched | None) -> None:
        self.original, self.load, self.row, self.patched = original, load, row, patched
        direct = _own, _policy.ProcessPolicy, None  # without an activation
        parts: tuple[Any, Any, Any] = direct if patched is None else (patched.own, patched.process, patched.nothing)
        self.own, self.process, self.nothing = parts
        self.op: Op | None = None
        self.decides: Any = None
        self.function: Any = None  # the public one
        # No row has a fast path for so few elements, and loading one takes a program 20 to 60 ms.
        late = patched is not None and row.startswith(("numpy.", "scipy."))
        self.limits = (
            LIMITS.get(row, Limits(UNSEEN, math.inf if row.startswith("numpy.") else UNSEEN)) if late else NEVER
        )
        words = patched.limit if patched is not None else None
        if words is not None:
            self.limits = Limits(words[0])
        self.limit = (row, *(words or (int(self.limits.elements), "elements")))
        self.gate: Any = Kinds()
        self.refusing: set[Any] = set()  # cache keys of calls whose values a fast path has refused
        self.met: set[int] = set()  # ids of decisions
        self.lines: dict[Any, SmallCalls] = {}  # key: the address of the calling instruction in its code object

    def loaded(self) -> Op:
        with not_collected():
            dispatch = importlib.import_module("trnpy._call.dispatch")
            self.op = op = self.load()
        self.decides = partial(dispatch.decides, op, self.function)
        if self.patched is not None and self.patched.limit is not None:
            return op
        self.limit = self.row, op.small, "elements"
        # Small calls of trnpy's own functions may run ``direct``.
        direct = self.patched is None and op.host is not None and op.host.direct is not None
        self.limits = NEVER if direct else op.limits
        self.gate._limit(*self.limits)
        return op

    def way(self, here: Any, args: Args, kwargs: Kwargs, frame: FrameType) -> Way:
        """How to run a call; if it needs a decision, the function that decides it."""
        own, ledger, log, patched = _own.get(), _ledger.ProcessLedger.ledger, _trace.get(), self.patched
        policy = own or current_policy()
        if patched is not None and patched.caller is not None:
            frame = patched.caller(frame)
        if log is None and not policy.force and _override.get() is None:
            state = here, _policy.ProcessPolicy.policy, own, ledger, Rates.turn
            found = self.known(state, args, kwargs)
            if found is not None:
                if ledger is None:
                    return Way(found[0], args, kwargs)
                way = self.counted(state, policy, *found, (args, kwargs), frame)
                if way is not None:
                    return way
        if patched is not None:
            if is_excluded(here, frame):
                return self.excluded(args, kwargs, frame, ledger, log)
            op = self.op or self.loaded()
            if op.covers is not None and not op.covers(args, kwargs):
                return Way(self.original, args, kwargs, alone=False)
        if self.op is None:
            self.loaded()
        return Way(None, args, kwargs, decides=self.decides, timed=ledger is not None or log is not None)

    def known(self, state: State, args: Args, kwargs: Kwargs) -> tuple[Callable[..., Any], Decision | None] | None:
        """The function for a call that needs no decision, and the remembered decision unless the call is small."""
        self.gate._settle(state)
        if self.patched is not None and self.patched.judge is not None:
            return (self.original, None) if self.patched.judge(*args) else None
        elements, product, blas = sizes(args, kwargs)
        limits = self.limits
        fits = elements <= limits.elements and (product <= limits.product or (blas and limits.blas))
        if fits and len(args) < OPERANDS:
            return self.original, None
        if elements == math.inf:
            return None
        op = self.op or self.loaded()
        found = self.gate._known(state, args, kwargs)
        if found is not None or elements > op.small:
            return found  # type: ignore[no-any-return]
        seen = False if op.look is None else op.look(args, kwargs)
        if seen is True:
            return None
        function = seen or self.original
        self.remember(state, function, None, args, kwargs)
        return function, None

    def remember(
        self, state: State, function: Callable[..., Any], decision: Decision | None, args: Args, kwargs: Kwargs
    ) -> None:
        """Let calls with this cache key run ``function`` at once, if the row's check depends on nothing else."""
        if self.op is not None and (self.op.host is None or self.op.host.fixed(args, kwargs)):
            self.gate._remember(state, function, decision, args, kwargs)

    def settle(self, here: Any, way: Way, args: Args, kwargs: Kwargs) -> None:
        """Remember the decision of a call that ``way`` has run, for all calls with its cache key."""
        ledger = _ledger.ProcessLedger.ledger
        state = here, _policy.ProcessPolicy.policy, _own.get(), ledger, Rates.turn
        decision = None if ledger is None else way.decision
        if ledger is not None and decision is None:
            return
        if decision is not None and decision.host_s is not None and id(decision) not in self.met:
            if len(self.met) >= KINDS:
                self.met.clear()
            self.met.add(id(decision))  # a kind of call that is made only once needs no counter
            return
        function = self.original
        if way.routed and way.settled is not None:
            if kind_of(args, kwargs) in self.refusing:
                return
            function = self.route(here, way.settled)
        elif self.patched is None and self.op is not None and way.settled is not self.op.reference:
            function = way.settled
        self.remember(state, function, decision, args, kwargs)

    def route(self, here: Any, again: Callable[..., Any]) -> Callable[..., Any]:
        """``again``, or the original for an excluded caller and for values that the fast path refuses."""
        unsupported = _reasons().Unsupported

        @uncounted
        def run(*args: Any, **kwargs: Any) -> Any:
            if here is not None:
                frame = sys._getframe(1)
                if frame.f_globals is globals() and frame.f_back is not None:  # the caller is `call`, not the program
                    frame = frame.f_back
                if is_excluded(here, frame):
                    return self.original(*args, **kwargs)
            token = None if self.patched is None else self.own.set(self.nothing)
            try:
                return again(*args, **kwargs)
            except unsupported:
                pass
            finally:
                if token is not None:
                    self.own.reset(token)
            self.refusing.add(kind_of(args, kwargs))
            self.gate._settle(FORGOTTEN)
            return self.original(*args, **kwargs)

        return run

    def counted(
        self, state: State, policy: Any, function: Callable[..., Any], decision: Decision | None,
        given: tuple[Args, Kwargs], frame: FrameType,
    ) -> Way | None:  # fmt: skip
        """How to run and count a call that needs no decision of its own; None if it is not counted here."""
        here, ledger = state[0], state[3]
        at = id(frame.f_code) + frame.f_lasti, id(decision)
        calls = self.lines.get(at)
        if (
            calls is None
            or calls.ledger is not ledger.small
            or calls.activation is not here
            or calls.policy is not policy
        ):
            caller = frame.f_globals.get("__name__", "")
            excluded = here is not None and is_excluded(here, frame)
            if excluded and self.inner(caller):
                self.gate._let_pass(state, frame, decision, None, sys.maxsize, None)
                return None
            small = decision or _reasons().small_decision(*self.limit)
            told = _reasons().excluded_decision(self.row, caller) if excluded else small
            calls = ledger.small_calls(told, frame, here, policy)
            if calls is None:  # there are too many counters
                return None
            if len(self.lines) >= _ledger.SITES:
                self.lines.clear()
            self.lines[at] = calls
        excluded = decision is not None and calls.decision is not decision
        function = self.original if excluded else function
        turn = (next(calls.count) + int(calls.passed[0])) % calls.every  # 0: this call is timed
        if turn == 0 and calls.library and ledger.site(frame) is not calls.site:
            self.lines.pop(at, None)  # the next call gets the counter of its own line
        elif calls.timed >= EXACT and not excluded:
            # A library's line may change, so Python code looks at every such call. The gate times those of a program.
            left, sample = (
                (calls.every - 1 - turn, None) if calls.library else (calls.every - 1, partial(ledger.timed, calls))
            )
            if left or sample is not None:
                self.gate._let_pass(state, frame, decision, calls.passed, left, sample)
        if turn:
            return Way(function, *given)
        return Way(function, *given, record=lambda way: ledger.timed(calls, way.started, way.seconds))

    def excluded(self, args: Args, kwargs: Kwargs, frame: FrameType, ledger: Any, log: Any) -> Way:
        """How to run a call from an excluded module: the original, recorded unless it is part of another call."""
        caller = frame.f_globals.get("__name__", "")
        if (ledger is None and log is None) or self.inner(caller):
            return Way(self.original, args, kwargs, alone=False)
        decision = _reasons().excluded_decision(self.row, caller)
        return Way(self.original, args, kwargs, alone=False, record=lambda way: way.note(decision, ledger, log, frame))

    def inner(self, caller: str) -> bool:
        """Whether the caller is trnpy, or NumPy if it calls the ufunc with an entry, which keeps its name."""
        package = str(caller).partition(".")[0]
        return package in OWN or (self.row == ENTERED and package == "numpy")


def _reasons() -> Any:
    """The module that words decisions, which a program without recorded calls does not load."""
    return importlib.import_module("trnpy._report.reasons")


class Kinds:
    """The memory of the compiled gate, in Python, if trnpy is not compiled. Every call then runs Python code."""

    def __init__(self) -> None:
        self.state: State = FORGOTTEN
        self.kinds: dict[Any, tuple[Callable[..., Any], Decision | None]] = {}

    def _limit(self, elements: float, product: float, blas: bool) -> None: ...

    def _let_pass(self, state: State, frame: FrameType, tag: Any, count: Any, left: int, sample: Any) -> None: ...

    def _settle(self, state: State) -> None:
        if any(mine is not given for mine, given in zip(self.state, state, strict=True)) or len(self.kinds) > KINDS:
            self.state, self.kinds = state, {}

    def _known(self, state: State, args: Args, kwargs: Kwargs) -> tuple[Callable[..., Any], Decision | None] | None:
        self._settle(state)
        return self.kinds.get((kind_of(args, kwargs), _twice(args)))

    def _remember(self, state: State, function: Any, tag: Any, args: Args, kwargs: Kwargs) -> None:
        self._settle(state)
        kind = kind_of(args, kwargs)
        if kind is not None:
            self.kinds[kind, _twice(args)] = function, tag


def _twice(args: Args) -> tuple[int, ...]:
    """Positions of arrays that are given twice in a row."""
    return tuple([i for i, (a, b) in enumerate(itertools.pairwise(args)) if a is b and type(a) is np.ndarray])


def is_excluded(here: Any, frame: FrameType | None) -> bool:
    """Whether the module of ``frame`` is excluded. NumPy's functions that apply one of the program's pass it on."""
    while frame is not None:
        caller = frame.f_globals.get("__name__", "")
        if not here.excludes(caller):
            return False
        if frame.f_code.co_qualname not in APPLYING or caller.partition(".")[0] != "numpy":
            return True
        frame = frame.f_back
    return True


def is_compiled() -> bool:
    """Whether there is a compiled gate."""
    return compiled is not None
