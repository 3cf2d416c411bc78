"""``provision lab``: virtual bare-metal nodes on this machine."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated, cast

import typer

from provision.cli.common import JsonOption, note, print_json, say, show, table
from provision.cli.completion import complete_lab_nodes, complete_labs, complete_words
from provision.cli.progress import Steps
from provision.lab.base import DriverName
from provision.lab.systems import DEFAULT_SYSTEM, SEPARATOR, system_names
from provision.report import layout

if TYPE_CHECKING:
    from provision.lab.base import LabSpec
    from provision.lab.manager import LabReport
    from provision.report.json_documents.labs import Labs, ListedLab

MIXED = SEPARATOR.join(("debian12", "el9"))

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Create virtual nodes on this machine.

Labs can simulate failures (power, network) and be removed.

\b
Examples:
  provision lab up demo                          two virtual machines
  provision lab up quick --driver container      two containers: seconds
  provision apply --lab demo
  provision lab down demo

Simulated hardware of the nodes is labelled SIMULATED everywhere.
""",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The lab.", autocompletion=complete_labs)]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="The node, e.g. demo-1.", autocompletion=complete_lab_nodes)
]
SwitchArgument = Annotated[
    str, typer.Argument(metavar="on|off", help="The new state.", autocompletion=complete_words("on", "off"))
]


@app.command("up")
def up(
    name: NameArgument,
    driver: Annotated[
        DriverName | None, typer.Option("--driver", help="vm: real kernels; container: seconds to start. [vm]")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="Number of nodes. [2]")] = None,
    distro: Annotated[
        str | None,
        typer.Option(
            "--system",
            "--distro",
            metavar="S",
            help=f"{', '.join(system_names())}; several alternate: {MIXED}. [{DEFAULT_SYSTEM}]",
            autocompletion=complete_words(*system_names()),
        ),
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="M", help="GPU machine that the nodes simulate (SIMULATED).")
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="PACKAGE",
            help="Package that is installed on the disks, as in a site's own image. Repeatable. [none]",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", metavar="URL", help="Mirror of the system's archive. [that of this machine]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create or repair a lab.

    Starts stopped parts and creates missing ones.

    An existing lab keeps its options, so that you can omit them.

    Without a mirror of its archive, Ubuntu is SIMULATED: files of Debian with the identity of Ubuntu. Enterprise Linux
    (el) is SIMULATED too: dnf and rpm over the files of Debian, in containers only.

    \b
    Examples:
      provision lab up demo --driver vm --nodes 2
      provision lab up gpus --machine dgx1v
      provision lab up quick --driver container --nodes 2 --system debian13
      provision lab up mixed --driver container --system debian12,el9
      provision lab up site --with linux-headers-amd64 --with nvidia-kernel-dkms
    """
    from provision.lab import manager

    carried = tuple(packages) if packages else None
    options = manager.LabOptions(
        driver=driver, nodes=nodes, distro=distro, machine=machine, packages=carried, mirror=mirror
    )
    report = manager.up(name, options, Steps())
    _show(report, as_json=as_json)
    if not as_json:
        note(f"Next: provision apply --lab {name}")


@app.command("status")
def status(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a lab's nodes and services.

    \b
    Examples:
      provision lab status demo
      provision lab status demo --json
    """
    from provision.lab import manager

    _show(manager.status(name), as_json=as_json)


@app.command("list")
def list_labs(as_json: JsonOption = False) -> None:
    """List the labs of this user on this machine.

    \b
    Example:
      provision lab list
    """
    from provision.errors import ProvisionError
    from provision.lab import manager

    reports = manager.list_labs()
    if as_json:
        document: Labs = {
            "labs": [
                {"name": str(report.node), "error": report.message}
                if isinstance(report, ProvisionError)
                else cast("ListedLab", report.document())
                for report in reports
            ]
        }
        print_json(document)
        return
    if not reports:
        say("No labs. Create one with: provision lab up demo")
        return
    show(
        table(
            ["LAB", "DRIVER", "DISTRO", "NODES", "STATE"],
            [
                [str(report.node), "", "", "", f"error: {report.message}"]
                if isinstance(report, ProvisionError)
                else _row(report)
                for report in reports
            ],
        )
    )


@app.command("down")
def down(name: NameArgument) -> None:
    """Remove a lab and all that it created.

    Removes nodes, services, networks, firewall rules and files.
    A missing lab is reported and is not an error, so that the command can be repeated.

    \b
    Example:
      provision lab down demo
    """
    from provision.lab import manager

    existed = manager.down(name, Steps())
    if existed:
        note(f"Lab {name} was removed.")
    else:
        say(f"There is no lab {name}; nothing was removed.")


@app.command("ssh", context_settings={"allow_interspersed_args": False})
def ssh(
    name: NameArgument,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="The node. [the first]", autocompletion=complete_lab_nodes),
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Command to run there.")
    ] = None,
) -> None:
    """Log in to a lab node, or run a command there.

    The exit code is that of the command.

    \b
    Examples:
      provision lab ssh demo
      provision lab ssh demo demo-2
      provision lab ssh demo demo-2 -- uname -r
    """
    from provision.lab import manager

    words = [word for i, word in enumerate(command or []) if i or word != "--"]
    if node == "--":
        node = None
    argv = manager.ssh_command(name, node, words)
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - ssh takes over the terminal


@app.command("reboot")
def reboot(name: NameArgument, node: NodeArgument) -> None:
    """Reboot a lab node and wait for it.

    \b
    Example:
      provision lab reboot demo demo-1
    """
    from provision.lab import manager

    manager.reboot(name, node)
    note(f"{node} has rebooted.")


@app.command("inventory")
def inventory(name: NameArgument) -> None:
    """Print the path of the lab's Ansible inventory.

    \b
    Examples:
      provision lab inventory demo
      ansible-playbook -i "$(provision lab inventory demo)" playbooks/site.yml
    """
    from provision.lab import manager

    show(str(manager.inventory_path(name)))


@app.command("power")
def power(name: NameArgument, node: NodeArgument, switch: SwitchArgument) -> None:
    """Cut or restore the power of a lab node.

    \b
    Examples:
      provision lab power demo demo-2 off
      provision lab power demo demo-2 on
    """
    from provision.lab import manager

    on = _is_on(switch)
    manager.power(name, node, on=on)
    note(f"{node} is running." if on else f"{node} is off.")


@app.command("link")
def link(name: NameArgument, node: NodeArgument, switch: SwitchArgument) -> None:
    """Disconnect or reconnect a node's networks.

    \b
    Examples:
      provision lab link demo demo-2 off
      provision lab link demo demo-2 on
    """
    from provision.lab import manager

    on = _is_on(switch)
    manager.link(name, node, up=on)
    note(f"{node} is connected." if on else f"{node} is cut off.")


def _is_on(switch: str) -> bool:
    from provision.errors import UsageError

    if switch not in {"on", "off"}:
        raise UsageError(f"{switch}: not a state", remedy="Use on or off.")
    return switch == "on"


def _systems(spec: LabSpec) -> str:
    from provision.errors import LabError

    try:
        return ", ".join(dict.fromkeys(system.label for system in spec.systems))
    except LabError:  # of another version, which knows more systems
        return spec.distro


def _row(report: LabReport) -> list[str]:
    spec = report.spec
    running = sum(node.state.value == "running" for node in report.nodes)
    machine = f", SIMULATED {spec.machine}" if spec.machine else ""
    state = "up" if report.healthy else f"needs repair (provision lab up {spec.name})"
    return [spec.name, spec.driver.value, _systems(spec), f"{running}/{spec.nodes}", state + machine]


def _show(report: LabReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.document())
        return
    rows = [[node.name, f"{node.address}:{node.port}", node.state.value] for node in report.nodes]
    show(table(["NODE", "SSH", "STATE"], rows))
    for name, running in report.services:
        show(f"service {name}: {'running' if running else 'stopped'}")
    for item in report.simulated:
        show(textwrap.fill(f"SIMULATED: {item}", layout.width(), subsequent_indent="  "))
    show(f"inventory: {report.inventory}")
    if report.site:
        show("to create an inventory for these nodes, as for a site:")
        show(" \\\n".join(f"  {line}" for line in _command_lines(report.init_words())))


def _command_lines(words: list[str]) -> list[str]:
    """Return a command as lines for a shell: the verb, each host, each option with its value."""
    first = next(number for number, word in enumerate(words) if word.startswith("-"))
    pairs = zip(words[first::2], words[first + 1 :: 2], strict=True)
    return [
        shlex.join(words[:2]),
        *(f"  {shlex.join(line)}" for line in [*([host] for host in words[2:first]), *pairs]),
    ]
