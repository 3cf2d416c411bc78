"""GPUDirect RDMA: the path from GPU memory to the network, the reasons, and what the other paths need. Pure."""

from provision.gdr.assume import assumed
from provision.gdr.base import Cards, Evidence, Flavor, GdrPath, GdrVerdict, NodeGdr, Situation, Stack, Unmet
from provision.gdr.verdict import verdict

__all__ = [
    "Cards",
    "Evidence",
    "Flavor",
    "GdrPath",
    "GdrVerdict",
    "NodeGdr",
    "Situation",
    "Stack",
    "Unmet",
    "assumed",
    "verdict",
]
