"""What a job needs to be told so that it uses the hardware: NCCL environments per fabric, presets of command lines."""

from provision.profiles.base import FABRICS, NodeNetwork, data_subnets, merged, overridden
from provision.profiles.lightcc import LIGHT, check_light, lightcc_settings, lossy_ones
from provision.profiles.nccl import common_fabric, finds_gid, nccl_settings
from provision.profiles.presets import PRESETS, Wish, fabric_settings, taco_parameters, taco_variables

__all__ = [
    "FABRICS",
    "LIGHT",
    "PRESETS",
    "NodeNetwork",
    "Wish",
    "check_light",
    "common_fabric",
    "data_subnets",
    "fabric_settings",
    "finds_gid",
    "lightcc_settings",
    "lossy_ones",
    "merged",
    "nccl_settings",
    "overridden",
    "taco_parameters",
    "taco_variables",
]
