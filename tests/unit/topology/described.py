"""Every machine that the lab and the tests describe, as the placement sees it."""

from __future__ import annotations

import json

from provision.lab.machines import load, names, to_json
from provision.model import Topology, TopologyGpu, TopologyNic
from provision.topology.candidates import Machine, Port
from provision.topology.products import DEFAULT_LANE, DEFAULT_PCIE, lanes, nic_rate, pcie_rate
from tests.unit.topology.boxes import BOXES, SMALL


def lab_machine(name: str) -> Machine:
    """Return a machine of the lab by its description."""
    described = json.loads(to_json(load(name)))
    product, nics = described["product"], described["nics"]
    known = lanes(product["model"], product["compute_capability"])
    topology = Topology(
        tuple(TopologyGpu(index, gpu["numa"]) for index, gpu in enumerate(described["gpus"])),
        tuple(TopologyNic(nic["name"]) for nic in nics),
        tuple(map(tuple, described["matrix"])),
    )
    return Machine(
        topology,
        lane=known.rate if known else DEFAULT_LANE,
        lanes=known.count if known else None,
        pcie=pcie_rate(product["pcie_generation"], product["pcie_width"]) or DEFAULT_PCIE,
        ports=tuple(Port(nic_rate(nic["rate_gbps"]), nic["link"]) for nic in nics),
    )


MACHINES = {name: lab_machine(name) for name in names()} | {
    name: box.machine() for name, box in (BOXES | SMALL).items()
}
