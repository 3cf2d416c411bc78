"""The receipts of SIMULATED nodes on which everything was applied and nothing has changed since."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from provision import workflow
from provision.components import ROLES
from provision.inventory import load
from provision.planning import fingerprint
from provision.workflow.sources import role_sources

__all__ = ["answers"]

_FILE = {"type": "file", "mode": "0644", "owner": "root:root", "sum": hashlib.sha256(b"SIMULATED").hexdigest()}


def answers(inventory: Path) -> dict[str, dict[str, str]]:
    """Return for each node what the facts ``receipts`` and ``managed`` print: as many files as roles really manage."""
    cluster, sources = workflow.with_defaults(load(inventory)), role_sources()
    outputs = {}
    for node in cluster.nodes:
        salt = hashlib.sha256(node.name.encode()).hexdigest()[:32]
        observed = {role: _state(role) for role in ROLES}
        receipts = {
            role: {
                "role": role, "inputs": {}, "reductions": [],
                "fingerprint": fingerprint(role, node, cluster, sources, salt), **observed[role],
            }
            for role in ROLES
        }  # fmt: skip
        outputs[node.name] = {
            "receipts": "\n".join(
                f"{role}.json:{line}"
                for role, receipt in sorted(receipts.items())
                for line in json.dumps(receipt, indent=2, sort_keys=True).splitlines()
            ),
            "managed": json.dumps({"sealed": dict.fromkeys(ROLES, True), "observed": observed, "jobs": [], "hung": []}),
        }
    return outputs


def _state(role: str) -> dict[str, Any]:
    return {
        "files": {f"/etc/provision/{role}/{number}.conf": _FILE for number in range(6)},
        "packages": {"docker.io": "20.10.24+dfsg1-1+deb12u1"} if role == "docker_engine" else {},
        "units": {"docker.service": {"load": "loaded", "active": "active", "enabled": "enabled"}}
        if role == "docker_engine"
        else {},
        "modules": {"ib_uverbs": True} if role == "rdma_stack" else {},
        "images": {},
        "containers": {},
    }
