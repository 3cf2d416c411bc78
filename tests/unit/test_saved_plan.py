"""A saved plan holds as long as nothing changed, whichever process reads it."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import dataclasses
from provision.model import NodePlan, Plan
from provision.workflow.plan_result import PlanResult
from tests.unit.planning.conftest import cluster_of, facts_of

cluster = cluster_of()
facts = facts_of(cluster)
packages = frozenset(f"package-{number}" for number in range(20))
facts = dataclasses.replace(facts, managed=dataclasses.replace(facts.managed, brought=packages))
name = cluster.nodes[0].name
print(PlanResult(cluster, Plan((NodePlan(name, ()),)), {name: facts}, {}).digests())
"""


def _digests(seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_digest_of_a_plan_is_the_same_in_every_process() -> None:
    assert _digests(1) == _digests(2)
