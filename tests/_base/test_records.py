"""Records behave as frozen dataclasses do, but for the refusal of assignments."""

import abc
import pickle
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from trnpy._base.records import record


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


def test_the_first_comparison_compiles_and_the_next_do_not():
    @record()
    class Fresh:
        """One field."""

        a: int

    before = Fresh.__eq__, Fresh.__hash__
    assert Fresh(1) == Fresh(1)
    after = Fresh.__eq__, Fresh.__hash__
    assert hash(Fresh(1)) == hash(Fresh(1)) and (Fresh.__eq__, Fresh.__hash__) == after
    assert before[0] is not after[0] and before[1] is not after[1]


def test_records_show_replace_pickle_and_list_their_fields():
    assert repr(Point("a")) == "Point(x='a', y=2, note={})" == repr(Frozen("a")).replace("Frozen", "Point")
    assert repr(Weighted(1, weight=0.5)) == "weight 0.5"
    for one in (Point(1, 3, {"k": 1}), Weighted(1, weight=2.0), Concrete((1, 2))):
        again = pickle.loads(pickle.dumps(one))
        assert again == one and type(again) is type(one) and asdict(again) == asdict(one)
        assert replace(one) == one and not hasattr(one, "__dict__")
    assert replace(Point(1), x=5) == Point(5)
    assert [f.name for f in fields(Weighted)] == ["x", "y", "note", "weight"]
    with pytest.raises(TypeError):
        Weighted(1, 2, {}, 0.5)  # weight is a keyword
