"""Command lines that a guide gives, as values: which variables and parameters, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.errors import LaunchError
from provision.model import Setting
from provision.profiles.base import NodeNetwork
from provision.profiles.lightcc import lightcc_settings
from provision.profiles.nccl import nccl_settings

__all__ = ["PRESETS", "Wish", "fabric_settings", "taco_parameters", "taco_variables"]

PRESETS = ("taco", "horovod-lightcc")
"""``taco``: the lines of TACO Train's guide. ``horovod-lightcc``: LightCC without what makes it inexact."""

_SOURCE = "preset taco"
_GDR_OFF, _GDR_ON = "0", "2"
"""As the guide writes the level for its NCCL 2.9: LOC and PXB."""


@dataclass(frozen=True)
class Wish:
    """What the user asks for beyond the program: everything else follows from the nodes."""

    preset: str = ""
    """One of ``PRESETS``, or empty."""
    fabric: str = ""
    """One of ``FABRICS``, or empty: the one that the nodes have."""
    lightcc: bool = False
    gdr: bool = False


def fabric_settings(networks: Sequence[NodeNetwork], fabric: str, preset: str) -> tuple[Setting, ...]:
    """Return the variables of a job with GPUs on these nodes, those of the preset horovod-lightcc included."""
    if not networks:
        return ()
    settings = nccl_settings(networks, fabric)
    if preset == "horovod-lightcc":
        settings += lightcc_settings(min(network.gpus for network in networks), f"preset {preset}", lossy=False)
    return settings


def taco_variables(networks: Sequence[NodeNetwork], ranks: int, wish: Wish) -> tuple[Setting, ...]:
    """Return the variables of the guide's line for so many ranks on these nodes, in its order.

    One rank talks to nobody: it gets the management interface and nothing about RDMA. LaunchError names what a
    node's facts or inventory do not tell.
    """
    if ranks == 1:
        interface = networks[0].management or networks[0].interface
        _refuse_unknown(networks[:1], {"cluster_management_interface": not interface})
        found = [_variable("NCCL_DEBUG", "INFO", "NCCL tells what it uses"), _socket(interface, networks[0].source)]
        return (*found, *_passed_on())
    same = {(network.interface, network.gid_index) for network in networks}
    interface, gid = networks[0].interface, networks[0].gid_index
    no_interface, no_gid = [n for n in networks if not n.interface], [n for n in networks if not n.gids]
    _refuse_unknown(no_interface or no_gid, {"cluster_data_interface": no_interface, "cluster_gid_index": no_gid})
    if len(same) > 1:
        raise _differ(networks)
    level, what = (_GDR_ON, "used where a PCIe switch joins both") if wish.gdr else (_GDR_OFF, "not used")
    found = [
        _variable("NCCL_DEBUG", "INFO", "NCCL tells what it uses"),
        _variable("NCCL_IB_DISABLE", "0", "over RDMA"),
        _socket(interface, networks[0].source),
        Setting("-x", "NCCL_IB_GID_INDEX", str(gid), networks[0].source, "the cards' RoCE v2 GID"),
        _variable("NCCL_NET_GDR_LEVEL", level, f"GPUDirect RDMA is {what} (--gdr)"),
    ]
    if wish.lightcc:
        found += lightcc_settings(networks[0].gpus, f"{_SOURCE} --lightcc", lossy=True)
    return (*found, *_passed_on())


def taco_parameters(networks: Sequence[NodeNetwork], ranks: int) -> dict[str, str]:
    """Return the guide's MCA parameters, in version 4's names and in its order."""
    if ranks == 1:
        return {"btl_tcp_if_include": networks[0].management or networks[0].interface}
    return {"pml": "ob1", "btl_tcp_if_include": networks[0].interface, "btl": "^openib"}


def _variable(name: str, value: str, reason: str) -> Setting:
    return Setting("-x", name, value, _SOURCE, reason)


def _socket(interface: str, source: str) -> Setting:
    return Setting("-x", "NCCL_SOCKET_IFNAME", interface, source, "the ranks' first contact; data too, without RDMA")


def _passed_on() -> tuple[Setting, ...]:
    why = "as it is in the head node's container"
    return tuple(Setting("-x", name, None, _SOURCE, why) for name in ("LD_LIBRARY_PATH", "PATH"))


def _refuse_unknown(networks: Sequence[NodeNetwork], lacking: Mapping[str, object]) -> None:
    missing = [name for name, lacks in lacking.items() if lacks]
    if not missing:
        return
    names = ", ".join(network.node for network in networks)
    if networks[0].source == "inventory":
        remedy = "Set it there, or leave --offline out: then the nodes are asked."
        raise LaunchError(f"the inventory does not state {' and '.join(missing)} of {names}", remedy=remedy)
    raise LaunchError(
        f"the preset taco needs a RoCE card on the data network; {names}: {networks[0].why or 'there is none'}",
        remedy="Leave --preset out: then the job uses what the nodes have.",
    )


def _differ(networks: Sequence[NodeNetwork]) -> LaunchError:
    lines = "\n".join(f"{n.node}: {n.interface}, GID index {n.gid_index}" for n in networks)
    return LaunchError(
        "the preset taco has one interface and one GID index for all nodes, and these differ",
        remedy="Leave --preset out: then each node gets its own.",
        output=lines,
    )
