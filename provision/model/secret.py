"""Secret values that are never printed."""

from __future__ import annotations


class Secret:
    """A secret string that is printed as ``[secret]``.

    It is not a ``str``, so that quoting, joining or formatting cannot reveal the value. Only `reveal` returns it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Call this only to pass the value to the program that needs it."""
        return self._value

    def __repr__(self) -> str:
        return "[secret]"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be pickled")
