"""Command lines of vendors' guides as data: variables and parameters, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.errors import LaunchError
from provision.model import Setting
from provision.profiles.base import NodeNetwork
from provision.profiles.lightcc import lightcc_settings
from provision.profiles.nccl import nccl_settings

PRESETS = ("taco", "horovod-lightcc")
"""``taco``: the command lines of TACO Train's guide. ``horovod-lightcc``: LightCC without lossy settings."""

_SOURCE = "preset taco"
_GDR_OFF, _GDR_ON = "0", "2"
"""The guide's values of the level for its NCCL 2.9: LOC and PXB."""


@dataclass(frozen=True)
class ProfileOptions:
    """The user's profile options of a launch; everything else follows from the nodes."""

    preset: str = ""
    """One of ``PRESETS``, or empty."""
    fabric: str = ""
    """One of ``FABRICS``, or empty for that of the nodes."""
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


def taco_variables(networks: Sequence[NodeNetwork], ranks: int, options: ProfileOptions) -> tuple[Setting, ...]:
    """Return the variables of the guide's command line for these nodes, in its order.

    A single rank does not communicate: it gets the management interface and no RDMA settings. LaunchError names values
    that are missing in a node's facts or inventory.
    """
    if ranks == 1:
        interface = networks[0].management or networks[0].interface
        _refuse_unknown(networks[:1], {"cluster_management_interface": not interface})
        variables = [
            _variable("NCCL_DEBUG", "INFO", "NCCL logs its choices"),
            _socket(interface, networks[0].source),
        ]
        return (*variables, *_inherited())
    distinct = {(network.interface, network.gid_index) for network in networks}
    interface, gid = networks[0].interface, networks[0].gid_index
    no_interface, no_gid = [n for n in networks if not n.interface], [n for n in networks if not n.gids]
    _refuse_unknown(no_interface or no_gid, {"cluster_data_interface": no_interface, "cluster_gid_index": no_gid})
    if len(distinct) > 1:
        raise _differ(networks)
    level, what = (_GDR_ON, "used where a PCIe switch joins both") if options.gdr else (_GDR_OFF, "not used")
    variables = [
        _variable("NCCL_DEBUG", "INFO", "NCCL logs its choices"),
        _variable("NCCL_IB_DISABLE", "0", "over RDMA"),
        _socket(interface, networks[0].source),
        Setting("-x", "NCCL_IB_GID_INDEX", str(gid), networks[0].source, "the cards' RoCE v2 GID"),
        _variable("NCCL_NET_GDR_LEVEL", level, f"GPUDirect RDMA is {what} (--gdr)"),
    ]
    if options.lightcc:
        variables += lightcc_settings(networks[0].gpus, f"{_SOURCE} --lightcc", lossy=True)
    return (*variables, *_inherited())


def taco_parameters(networks: Sequence[NodeNetwork], ranks: int) -> dict[str, str]:
    """Return the guide's MCA parameters, with the names of Open MPI 4 and in its order."""
    if ranks == 1:
        return {"btl_tcp_if_include": networks[0].management or networks[0].interface}
    return {"pml": "ob1", "btl_tcp_if_include": networks[0].interface, "btl": "^openib"}


def _variable(name: str, value: str, reason: str) -> Setting:
    return Setting("-x", name, value, _SOURCE, reason)


def _socket(interface: str, source: str) -> Setting:
    return Setting("-x", "NCCL_SOCKET_IFNAME", interface, source, "the ranks' first contact; data too, without RDMA")


def _inherited() -> tuple[Setting, ...]:
    why = "as in the container of the head node"
    return tuple(Setting("-x", name, None, _SOURCE, why) for name in ("LD_LIBRARY_PATH", "PATH"))


def _refuse_unknown(networks: Sequence[NodeNetwork], lacking: Mapping[str, object]) -> None:
    missing = [name for name, lacks in lacking.items() if lacks]
    if not missing:
        return
    names = ", ".join(network.node for network in networks)
    if networks[0].source == "inventory":
        remedy = "Set it there, or remove --offline to probe the nodes."
        raise LaunchError(f"{names}: {' and '.join(missing)} not set in the inventory", remedy=remedy)
    raise LaunchError(
        f"{names}: the preset taco needs a RoCE card on the data network ({networks[0].why or 'there is none'})",
        remedy="Remove --preset: then the job uses the hardware of the nodes.",
    )


def _differ(networks: Sequence[NodeNetwork]) -> LaunchError:
    lines = "\n".join(f"{n.node}: {n.interface}, GID index {n.gid_index}" for n in networks)
    return LaunchError(
        "the preset taco needs the same interface and GID index on all nodes, but these differ",
        remedy="Remove --preset: then each node gets its own.",
        output=lines,
    )
