"""Launchers: one module for each, with its host file, command line and environment.

A module of this package registers the launchers of its tuple ``LAUNCHERS``; nothing else names them.
"""

from __future__ import annotations

import importlib
import pkgutil

from provision.launchers.base import (
    MASTER_PORT,
    CommandLine,
    HostEntry,
    Launch,
    Launcher,
    Reach,
    argv_of,
    fitted,
    slot_table,
)

MPIRUN = "mpirun"
"""The name under which ``--launcher`` takes the MPI library of the image, whichever it is."""


def discover() -> dict[str, Launcher]:
    """Return the launchers of all modules of this package, by name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    launchers = [launcher for module in modules for launcher in getattr(module, "LAUNCHERS", ())]
    return {launcher.name: launcher for launcher in sorted(launchers, key=lambda launcher: launcher.order)}


LAUNCHERS = discover()
"""Every launcher by its name."""
DEFAULT_MPI = next(name for name, launcher in LAUNCHERS.items() if launcher.label)
"""The launcher of the MPI library that is assumed where none is named."""
DEFAULT_PER_NODE = next(name for name, launcher in LAUNCHERS.items() if launcher.per_node and launcher.rendezvous)
"""The launcher that starts the processes of a node where only their number is given."""


def host_files() -> list[str]:
    """Return the names of launchers that read a host file."""
    return [name for name, launcher in LAUNCHERS.items() if launcher.host_file]


def launcher_names() -> list[str]:
    """Return what ``run --launcher`` and ``submit --launcher`` take."""
    return [MPIRUN, *(name for name, launcher in LAUNCHERS.items() if launcher.rendezvous)]


def launcher_of(name: str) -> Launcher:
    """Return the launcher of a name; the defaults for `MPIRUN` and for no name: one process for each rank."""
    return LAUNCHERS.get(name) or Launcher(name)


def identified(text: str) -> tuple[Launcher, int] | None:
    """Return the launcher that prints a text for ``mpirun --version``, with its major version; None for others."""
    for launcher in LAUNCHERS.values():
        version = launcher.identify(text) if launcher.identify else None
        if version is not None:
            return launcher, version
    return None


def of_version(name: str, version: int) -> Launcher | None:
    """Return the launcher of the same MPI library with another major version; None when it is not supported."""
    label = LAUNCHERS[name].label
    return next((one for one in LAUNCHERS.values() if (one.label, one.version) == (label, version)), None)


def mpi_labels() -> list[str]:
    """Return what people call the MPI libraries."""
    return list(dict.fromkeys(launcher.label for launcher in LAUNCHERS.values() if launcher.label))


def mpi_versions(label: str) -> str:
    """Return the supported major versions of an MPI library, such as ``4 or 5``."""
    return " or ".join(str(one.version) for one in LAUNCHERS.values() if one.label == label)


def typed_commands(*, per_node: bool) -> frozenset[str]:
    """Return the programs by which users start a launcher."""
    return frozenset(
        command for launcher in LAUNCHERS.values() if launcher.per_node is per_node for command in launcher.commands
    )
