"""A thousand nodes are planned while their SSH sessions are still being opened."""

from __future__ import annotations

import time

from provision.components import ROLES
from provision.planning import fingerprint
from provision.workflow.sources import role_sources
from tests.unit.planning.conftest import cluster_of

SECONDS = 2.0
"""Generous: it takes a fifth of it on a slow machine."""


def test_fingerprints_of_a_thousand_nodes_need_little_cpu_time():
    extra = {f"site_{n}": f"{{{{ site_{n + 1} }}}} and some text" for n in range(30)}
    cluster = cluster_of(1000, **extra, docker_engine_log_max_size="{{ site_0 }}")
    sources = role_sources()

    started = time.process_time()
    made = [fingerprint(role, node, cluster, sources, f"{role}salt") for node in cluster.nodes for role in ROLES]
    taken = time.process_time() - started

    assert len(made) == 1000 * len(ROLES)
    assert taken < SECONDS
