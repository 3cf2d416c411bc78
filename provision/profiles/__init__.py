"""Settings of a job that match its hardware: NCCL environments per fabric, and presets of command lines."""

from provision.profiles.base import FABRICS, NodeNetwork, data_subnets, merged, overridden
from provision.profiles.lightcc import LIGHT, check_light, lightcc_settings, lossy_ones
from provision.profiles.nccl import common_fabric, finds_gid, nccl_settings
from provision.profiles.presets import PRESETS, ProfileOptions, fabric_settings, taco_parameters, taco_variables
