"""Node facts: each fact is a command and a pure parser; one request collects all of them from a node."""

from provision.facts.base import Fact, RawOutput, Unknown
from provision.facts.derived import (
    data_address,
    data_interface,
    data_network,
    free_port,
    gpu_count,
    is_container,
    mounts,
    parameters,
    plain,
    proxies,
    refused_addresses,
    running_container,
    simulated,
)
from provision.facts.node import ALL_FACTS, NodeFacts, as_data, parse, parse_system
from provision.facts.outputs import Outputs
from provision.facts.probe_request import Parameters, probe_seconds, request, system_script
