"""``docker`` command lines; nothing is executed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["exec_argv"]


def exec_argv(
    container: str,
    argv: Sequence[str],
    *,
    stdin: bool = False,
    environment: Mapping[str, str] | None = None,
    environment_names: Sequence[str] = (),
) -> list[str]:
    """Run `argv` in a running container.

    `environment` is visible to everybody on the node. The values of `environment_names` are not: docker takes
    them from its own environment.
    """
    words = ["docker", "exec"]
    if stdin:
        words.append("-i")
    for name, value in (environment or {}).items():
        words += ["-e", f"{name}={value}"]
    for name in environment_names:
        words += ["-e", name]
    return [*words, container, *argv]
