"""Node facts: each fact is a shell command and a pure parser; one script collects all of them from a node."""

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
from provision.facts.node import ALL_FACTS, NodeFacts, as_data, parse
from provision.facts.outputs import Outputs
from provision.facts.script import Parameters, script

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
    "plain",
    "refused_addresses",
    "running_container",
    "script",
    "simulated",
]
