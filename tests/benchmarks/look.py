"""What ``verify`` does without logins between containers: load, probe, parse, judge, and print what was found.

``python -m tests.benchmarks.look INVENTORY`` is a program of its own, as a verb is.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Print one JSON document: how many nodes were reached and what failed; times of the steps on stderr."""
    from provision import checks, workflow
    from provision.errors import ProvisionError
    from provision.inventory import load

    begun = time.monotonic()

    def step(name: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:8.2f} s {name}\n")

    cluster = workflow.with_defaults(load(Path(sys.argv[1])))
    step("inventory")
    results = workflow.probe(cluster.nodes)
    step("probe")
    lost = {name: str(value) for name, value in results.items() if isinstance(value, ProvisionError)}
    reached = {name: value for name, value in results.items() if not isinstance(value, ProvisionError)}
    supported = workflow.supported_systems()
    judged = [
        result
        for node in cluster.nodes
        if node.name in reached
        for result in checks.judge(node, reached[node.name], cluster, all_facts=reached, supported=supported)
    ]
    judged += checks.judge_cluster(cluster, cluster.nodes, reached)
    step("judge")
    failed = sorted({f"{result.id}: {result.reason}" for result in judged if result.status == "fail"})
    document = {"reached": len(reached), "lost": lost, "checks": len(judged), "failed": failed[:20]}
    sys.stdout.write(json.dumps(document) + "\n")
    raise SystemExit(bool(lost))


if __name__ == "__main__":
    main()
