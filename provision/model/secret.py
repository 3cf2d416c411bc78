"""A value that must not be shown."""

from __future__ import annotations

__all__ = ["Secret"]


class Secret:
    """Holds a secret string; every way of printing it shows ``[secret]``.

    It is not a ``str`` on purpose: quoting, joining or formatting it cannot leak the value,
    because the value comes out through `reveal` only.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value itself; call this only where it is handed to the program that needs it."""
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
