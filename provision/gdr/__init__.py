"""GPUDirect RDMA: which way GPU memory takes to the network, why, and what the other ways lack. Pure."""

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
