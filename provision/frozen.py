"""Frozen dataclasses that cost next to nothing to define: a command defines a hundred, and uses half of them.

The standard decorator compiles six methods for each class. Here `__init__` is compiled when the first instance is
made, and the others are closures; to whoever uses the class it is a frozen dataclass like any other.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass

__all__ = ["dataclass"]


def _frozen(cls: type | None = None, /, **options: bool) -> Any:
    """Stand in for ``dataclasses.dataclass``, which still makes what is more than a plain frozen class."""
    if cls is None:
        return lambda it: _frozen(it, **options)
    special = hasattr(cls, "__post_init__") or any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
    if special or options != {"frozen": True}:
        return dataclasses.dataclass(cls, **options)
    return _with_methods(cls)


if not TYPE_CHECKING:
    dataclass = _frozen


class _Init:
    """Stands where ``__init__`` will be."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Compile it, take the place's own away, and give what was asked for."""
        compiled = self._cls.__init__ = _compiled(self._cls)  # type: ignore[misc]
        return compiled.__get__(instance, owner)


def _with_methods(cls: type) -> type:
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    made.__dataclass_params__.frozen = True
    fields = dataclasses.fields(made)
    if any(field.kw_only or not field.init for field in fields):
        raise TypeError(f"{cls.__qualname__} has fields that are not taken by their place: use the standard dataclass")
    compared = _values(field.name for field in fields if field.compare)
    hashed = _values(field.name for field in fields if (field.compare if field.hash is None else field.hash))
    shown = [field.name for field in fields if field.repr]

    def equal(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_(self: Any) -> int:
        return hash(hashed(self))

    @recursive_repr()
    def repr_(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    made.__init__, made.__setattr__, made.__delattr__ = _Init(made), _refuse_to_set, _refuse_to_delete
    made.__eq__, made.__hash__ = equal, hash_
    if "__repr__" not in vars(cls):
        made.__repr__ = repr_
    return made  # type: ignore[no-any-return]


def _values(names: Any) -> Callable[[Any], Any]:
    found = tuple(names)
    return attrgetter(*found) if found else lambda _: ()


def _refuse_to_set(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _compiled(cls: type) -> Any:
    """Return ``__init__`` of a class; its fields are taken by their place or name, as the standard one takes them."""
    known: dict[str, Any] = {"set_": object.__setattr__, "absent": dataclasses.MISSING}
    parameters, lines = ["self"], []
    for field in dataclasses.fields(cls):
        name = value = field.name
        if field.default is not dataclasses.MISSING:
            known[f"usual_{name}"] = field.default
            parameters.append(f"{name}=usual_{name}")
        elif field.default_factory is not dataclasses.MISSING:
            known[f"usual_{name}"] = field.default_factory
            parameters.append(f"{name}=absent")
            value = f"usual_{name}() if {name} is absent else {name}"
        else:
            parameters.append(name)
        lines.append(f"    set_(self, {name!r}, {value})")
    exec(f"def __init__({', '.join(parameters)}):\n" + ("\n".join(lines) or "    pass"), known)  # noqa: S102 - as dataclasses do
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]
