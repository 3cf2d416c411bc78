"""Frozen dataclasses of this project are what the standard ones are."""

from __future__ import annotations

import dataclasses
from dataclasses import field, replace

import pytest

from provision.frozen import dataclass


def make(decorator):
    @decorator(frozen=True)
    class Thing:
        name: str
        size: int = 3
        tags: list[str] = field(default_factory=list, compare=False)
        note: str = field(default="", repr=False, compare=False)

    return Thing


BOTH = [make(dataclass), make(dataclasses.dataclass)]


@pytest.mark.parametrize("thing", BOTH, ids=["ours", "standard"])
def test_a_frozen_class_is_what_the_standard_one_is(thing):
    """Values by place and name, defaults, comparison, hash, text, fields and copies."""
    one, other = thing("a", tags=["x"]), thing("a", 3, note="n")

    assert one == other
    assert hash(one) == hash(other) == hash(("a", 3))
    assert one != thing("a", 4)
    assert one != ("a", 3)
    assert repr(one) == "make.<locals>.Thing(name='a', size=3, tags=['x'])"
    assert replace(one, size=5) == thing("a", 5)
    assert [item.name for item in dataclasses.fields(thing)] == ["name", "size", "tags", "note"]
    assert thing("a").tags is not thing("a").tags
    assert thing.__match_args__ == ("name", "size", "tags", "note")


@pytest.mark.parametrize("thing", BOTH, ids=["ours", "standard"])
@pytest.mark.parametrize("call", [{}, {"name": "a", "colour": 1}], ids=["missing", "unknown"])
def test_what_a_class_does_not_take_is_refused(thing, call):
    """A missing or unknown argument is a TypeError that names the class."""
    with pytest.raises(TypeError, match=r"Thing.__init__\(\)"):
        thing(**call)


@pytest.mark.parametrize("thing", BOTH, ids=["ours", "standard"])
def test_nothing_of_it_can_be_changed(thing):
    """Neither setting nor deleting goes, of a field or of anything else."""
    it = thing("a")

    with pytest.raises(dataclasses.FrozenInstanceError):
        it.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        it.other = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del it.name


def test_a_class_made_of_another_has_its_fields_too():
    """What is more than a plain frozen class is made by the standard decorator."""

    @dataclass(frozen=True)
    class Base:
        name: str

    @dataclass(frozen=True)
    class More(Base):
        size: int = 0

    assert repr(More("a", 1)).endswith("More(name='a', size=1)")


def test_fields_that_are_not_taken_by_place_are_refused_where_they_are_written():
    """A class with such fields would be made without them."""
    with pytest.raises(TypeError, match="use the standard dataclass"):

        @dataclass(frozen=True)
        class _Odd:
            name: str = field(kw_only=True)
