"""Checks of logins between containers and of data addresses. `skew.py` compares the nodes."""

from __future__ import annotations

from collections import defaultdict

from provision.checks.base import cluster_check
from provision.checks.pairs import NO_CONNECTION
from provision.components.check import ClusterScene, Verdict, fail, passed, skip, warn
from provision.facts import refused_addresses
from provision.facts.container_ssh import ContainerSsh, fingerprint
from provision.model.reason import Reason, reason


@cluster_check("container_ssh.pairs")
def _pairs(scene: ClusterScene) -> Verdict:
    if scene.pairs is None:
        return skip("container_ssh.pairs.not_tried")
    bad = [pair for pair in scene.pairs if not pair.ok]
    if bad:
        by_reason: dict[Reason | None, list[str]] = defaultdict(list)
        for pair in bad:
            by_reason[pair.reason].append(f"{pair.source} -> {pair.target}")
        return fail(
            "container_ssh.pairs.failed",
            failed=len(bad),
            count=len(scene.pairs),
            problems=[reason("container_ssh.pairs.problem", pairs=p, cause=why) for why, p in by_reason.items()],
            nodes=sorted({name for pair in bad for name in (pair.source, pair.target)}),
        )
    sources = {pair.source for pair in scene.pairs}
    left_out = [node.name for node in scene.nodes if node.name not in sources and node.takes_jobs]
    if left_out:
        return warn("container_ssh.pairs.some_nodes", count=len(scene.pairs), nodes=left_out)
    return passed("container_ssh.pairs.ok", count=len(scene.pairs))


@cluster_check("container_ssh.host_keys_distinct")
def _distinct(scene: ClusterScene) -> Verdict:
    owners: dict[str, list[str]] = defaultdict(list)
    for name, facts in scene.facts.items():
        if isinstance(facts.container_ssh, ContainerSsh) and facts.container_ssh.host_key:
            owners[facts.container_ssh.host_key].append(name)
    if not owners:
        return skip("container_ssh.host_keys_distinct.no_keys")
    shared = {key: names for key, names in owners.items() if len(names) > 1}
    if shared:
        return fail(
            "container_ssh.host_keys_distinct.shared",
            keys=[
                reason("container_ssh.host_keys_distinct.key", nodes=names, key=fingerprint(key))
                for key, names in shared.items()
            ],
            others=[name for names in shared.values() for name in names[1:]],
        )
    return passed("container_ssh.host_keys_distinct.ok", count=len(owners))


@cluster_check("cluster.data_addresses")
def _data_addresses(scene: ClusterScene) -> Verdict:
    refused = refused_addresses(scene.cluster.nodes, scene.facts)
    if refused:
        return fail(
            "cluster.data_addresses.refused", nodes=[f"{name}: {cause}" for name, cause in sorted(refused.items())]
        )
    return passed("cluster.data_addresses.ok", nodes=len(scene.facts))


@cluster_check("cluster.data_network")
def _data_network(scene: ClusterScene) -> Verdict:
    if scene.pairs is None:
        return skip("cluster.data_network.not_tried")
    silent = [pair for pair in scene.pairs if pair.reason is not None and pair.reason.code in NO_CONNECTION]
    if silent:
        shown = [f"{pair.source} -> {pair.target}" for pair in silent]
        return fail("cluster.data_network.unreachable", pairs=shown)
    sources = {pair.source for pair in scene.pairs}
    return passed("cluster.data_network.ok", nodes=len(sources))
