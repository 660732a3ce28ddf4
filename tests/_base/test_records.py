"""Records behave as dataclasses do, whether their methods are compiled already or not."""

import abc
import copy
import inspect
import pickle
import types
import weakref
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from trnpy._base.records import MANY, record


@record()
class Point:
    """Two coordinates and a note that is not compared."""

    x: Any
    y: int = 2
    note: dict = field(default_factory=dict, compare=False)


@record(kw_only=True)
class Weighted(Point):
    """A point with a weight, and no attribute of its own."""

    weight: float

    def __repr__(self):
        return f"weight {self.weight}"


@dataclass(frozen=True, slots=True)
class Frozen:
    """The fields of a point."""

    x: Any
    y: int = 2
    note: dict = field(default_factory=dict, compare=False)


class Abstract(abc.ABC):
    __slots__ = ()

    @abc.abstractmethod
    def f(self): ...


@record()
class Concrete(Abstract):
    """One field over an abstract class."""

    a: tuple

    def f(self):
        return self.a


@record(frozen=True)
class Public:
    """Assignments to it are refused."""

    a: int
    b: int = 2


@record(eq=False)
class Identity:
    """Compared by identity."""

    x: int


def test_equal_fields_make_equal_records_with_one_hash():
    for same in (Point(1), Point(x=1, y=2, note={"not": "compared"})):
        assert Point(1) == same and hash(Point(1)) == hash(same) and {Point(1): "found"}[same] == "found"
    assert Point(1) != Point(2) and Point(1) != Point(1, 3) and Point(1) != Frozen(1)
    assert Point(1) != Weighted(x=1, weight=0.0) and Weighted(x=1, weight=0.0) == Weighted(x=1, weight=0.0)
    assert Concrete((1,)) == Concrete((1,)) and hash(Concrete((1,))) == hash(Concrete((1,)))


def test_a_record_without_eq_is_itself_only():
    one = Identity(1)
    assert one == one and one != Identity(1) and len({one, Identity(1)}) == 2


def test_a_field_that_cannot_be_hashed_is_refused_as_by_a_frozen_dataclass():
    for cls in (Frozen, Point):
        with pytest.raises(TypeError, match="unhashable type: 'list'"):
            hash(cls([]))


def mutable(made):
    @made
    class Some:
        """Fields, and an attribute of the class."""

        kind: ClassVar[str] = "of the class"
        x: Any
        y: list = field(default_factory=list)

        def __post_init__(self):
            self.y = [*self.y, self.x]

    return Some


def constant(made):
    @made
    class Some:
        """A field with a default value, and one that is not compared."""

        x: Any
        y: Any = 2.0
        note: dict = field(default_factory=dict, compare=False)

    return Some


FORMS = [
    (mutable, dataclass(slots=True), record(frozen=False)),
    (constant, dataclass(frozen=True, slots=True), record(frozen=True)),
    (constant, dataclass(frozen=True, slots=True), record()),
]


def outcome(function, *args, **kwargs):
    """What a call returns, or its exception."""
    try:
        return repr(function(*args, **kwargs))
    except Exception as why:
        return type(why), str(why)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("body, theirs, ours", FORMS)
def test_a_record_takes_and_refuses_what_a_dataclass_does(body, theirs, ours, compiled):
    cls, like = body(ours), body(theirs)
    for _ in range(MANY + 1 if compiled else 0):
        cls(1)
    assert isinstance(vars(cls)["__init__"], types.FunctionType) is compiled
    for args, named in [((1,), {}), ((1, [2]), {}), ((), {"x": 1, "y": [3]}), ((), {}), ((1, [2], {}, 4), {}),
                        ((1,), {"x": 2}), ((1,), {"z": 2})]:  # fmt: skip
        assert outcome(cls, *args, **named) == outcome(like, *args, **named)
    a, b = cls(5), like(5)
    for act in (
        lambda one: one == type(one)(5), lambda one: one == type(one)(6), lambda one: one != 5,
        lambda one: hash(one) == hash(type(one)(5)), copy.copy, copy.deepcopy, lambda one: replace(one, x=7), asdict,
        lambda one: type(one).__match_args__, lambda one: type(one).__slots__, lambda one: one.__dict__,
    ):  # fmt: skip
        assert outcome(act, a) == outcome(act, b)
    for f, same in zip(fields(cls), fields(like), strict=True):
        assert (f.name, f.default, f.compare, f.kw_only) == (same.name, same.default, same.compare, same.kw_only)
    assert inspect.signature(body(ours)) == inspect.signature(like)


def test_records_refuse_assignments_if_they_say_so():
    for body, ours, refuses in ((mutable, FORMS[0][2], False), (constant, FORMS[1][2], True)):
        one = body(ours)(1)
        assert outcome(setattr, one, "x", 2) == (
            (FrozenInstanceError, "cannot assign to field 'x'") if refuses else "None"
        )
        assert one.x == (1 if refuses else 2)
        assert outcome(delattr, one, "x") == ((FrozenInstanceError, "cannot delete field 'x'") if refuses else "None")


def test_a_record_may_be_referred_to_weakly_if_its_body_says_so():
    @record(eq=False)
    class Referred:
        """One field."""

        __slots__ = ("__weakref__",)
        x: int

    one = Referred(1)
    assert weakref.ref(one)() is one and [f.name for f in fields(Referred)] == ["x"]
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(Point(1))


def test_a_subclass_that_is_no_record_is_filled_in_by_the_compiled_method():
    class Plain(Point):
        pass

    assert Plain(1, 3).y == 3 and Point(1, 3) != Plain(1, 3)


def test_records_show_replace_pickle_and_list_their_fields():
    assert repr(Point("a")) == "Point(x='a', y=2, note={})" == repr(Frozen("a")).replace("Frozen", "Point")
    assert repr(Weighted(1, weight=0.5)) == "weight 0.5"
    for one in (Public(1, 3), Point(1, 3, {"k": 1}), Weighted(1, weight=2.0), Concrete((1, 2))):
        again = pickle.loads(pickle.dumps(one))
        assert again == one and type(again) is type(one) and asdict(again) == asdict(one)
        assert replace(one) == one and not hasattr(one, "__dict__")
    assert replace(Point(1), x=5) == Point(5)
    assert [f.name for f in fields(Weighted)] == ["x", "y", "note", "weight"]
    with pytest.raises(TypeError):
        Weighted(1, 2, {}, 0.5)  # weight is a keyword
