"""Node facts: each fact is a command and a pure parser; one request collects all of them from a node."""

from provision.facts.base import Fact, RawOutput, Unknown
from provision.facts.derived import (
    data_address,
    data_interface,
    data_network,
    free_port,
    gpu_count,
    is_container,
    parameters,
    plain,
    refused_addresses,
    running_container,
    simulated,
)
from provision.facts.node import ALL_FACTS, NodeFacts, as_data, parse, parse_system
from provision.facts.outputs import Outputs
from provision.facts.probe_request import Parameters, probe_seconds, request, system_script

__all__ = [
    "ALL_FACTS",
    "Fact",
    "NodeFacts",
    "Outputs",
    "Parameters",
    "RawOutput",
    "Unknown",
    "as_data",
    "data_address",
    "data_interface",
    "data_network",
    "free_port",
    "gpu_count",
    "is_container",
    "parameters",
    "parse",
    "parse_system",
    "plain",
    "probe_seconds",
    "refused_addresses",
    "request",
    "running_container",
    "simulated",
    "system_script",
]
