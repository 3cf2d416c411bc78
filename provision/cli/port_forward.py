"""``provision port-forward``: forward a local port to a batch job."""

from __future__ import annotations

import re
import subprocess
from typing import Annotated

import typer

from provision.cli.common import InventoryOption, LabOption
from provision.cli.job_options import JobArgument, engine_of, require
from provision.cli.levels import info
from provision.errors import UsageError

_TENSORBOARD = 6006
_HIGHEST = 65535


def port_forward(
    name: JobArgument,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[LOCAL:]PORT|tensorboard",
            help="A port of the first node; LOCAL is the local one, by default the same.",
        ),
    ] = "tensorboard",
    inventory: InventoryOption = None,
    lab: LabOption = None,
) -> None:
    """Forward a local port to a job or TensorBoard.

    The port is forwarded from 127.0.0.1 over SSH, until Ctrl-C.

    Other machines cannot connect to it.

    \b
    Examples:
      provision port-forward mnist 9090:tensorboard
      provision port-forward mnist 18888:8888
    """
    local, port = _ports(target)
    engine = engine_of(inventory, lab)
    require(engine, "PORT_FORWARD", "provision port-forward")
    argv = engine.forward_argv(name, local, port)
    where = f"http://127.0.0.1:{local}" if port == "tensorboard" else f"127.0.0.1:{local}"
    info(f"{where} forwards to {port} of {name} until Ctrl-C")
    raise typer.Exit(subprocess.run(argv, check=False).returncode & 0xFF)


def _ports(target: str) -> tuple[int, str]:
    """Return the local port and its target."""
    match = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5}|tensorboard)", target)
    if match is None:
        raise UsageError(
            f"{target}: not a port to forward",
            remedy="Use PORT, LOCAL:PORT or LOCAL:tensorboard, for example 8080:80.",
        )
    port = match[2]
    local = int(match[1] or (_TENSORBOARD if port == "tensorboard" else port))
    if not 0 < local <= _HIGHEST or (port.isdecimal() and not 0 < int(port) <= _HIGHEST):
        raise UsageError(f"{target}: ports are from 1 to {_HIGHEST}")
    return local, port
