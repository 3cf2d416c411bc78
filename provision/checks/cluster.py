"""What only all nodes together show of each other: logins among containers; skew.py has how they differ."""

from __future__ import annotations

from collections import defaultdict

from provision.checks.base import cluster_check
from provision.checks.wording import few_names
from provision.components.check import ClusterScene, Verdict, fail, passed, skip, warn
from provision.facts import refused_addresses
from provision.facts.container_ssh import ContainerSsh, fingerprint

__all__: list[str] = []


@cluster_check("container_ssh.pairs")
def _pairs(scene: ClusterScene) -> Verdict:
    if scene.pairs is None:
        return skip("no pairs were tried: no node has a running training container")
    bad = [pair for pair in scene.pairs if not pair.ok]
    if bad:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for pair in bad:
            by_reason[pair.reason].append(f"{pair.source} -> {pair.target}")
        shown = "; ".join(f"{few_names(pairs)}: {reason}" for reason, pairs in by_reason.items())
        names = ",".join(sorted({name for pair in bad for name in (pair.source, pair.target)}))
        return fail(
            f"{len(bad)} of {len(scene.pairs)} logins between containers failed: {shown}",
            f"Run: provision apply --limit {names}",
        )
    count = f"{len(scene.pairs)} of {len(scene.pairs)} logins between containers work and print nothing"
    sources = {pair.source for pair in scene.pairs}
    left_out = [node.name for node in scene.nodes if node.name not in sources and node.takes_jobs]
    if left_out:
        return warn(
            f"{count}, but some nodes could not take part: {few_names(left_out)}", "See what failed on those nodes."
        )
    return passed(count)


@cluster_check("container_ssh.host_keys_distinct")
def _distinct(scene: ClusterScene) -> Verdict:
    owners: dict[str, list[str]] = defaultdict(list)
    for name, facts in scene.facts.items():
        if isinstance(facts.container_ssh, ContainerSsh) and facts.container_ssh.host_key:
            owners[facts.container_ssh.host_key].append(name)
    if not owners:
        return skip("no container has a host key yet")
    shared = {key: names for key, names in owners.items() if len(names) > 1}
    if shared:
        text = "; ".join(f"{', '.join(names)} share {fingerprint(key)}" for key, names in shared.items())
        names = ",".join(name for group in shared.values() for name in group[1:])
        return fail(
            f"containers share a host key: {text}",
            f"Remove /var/lib/provision/container_ssh/keys/ssh_host_ed25519_key on {names} and run: provision apply",
        )
    return passed(f"{len(owners)} containers, each with a host key of its own")


@cluster_check("cluster.data_addresses")
def _data_addresses(scene: ClusterScene) -> Verdict:
    refused = refused_addresses(scene.cluster.nodes, scene.facts)
    if refused:
        return fail(
            "; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items())),
            "Set cluster_data_address for these nodes, or check what answers in their names.",
        )
    return passed(f"no two of {len(scene.facts)} nodes claim the same data address")


@cluster_check("cluster.data_network")
def _data_network(scene: ClusterScene) -> Verdict:
    if scene.pairs is None:
        return skip("no logins between containers were tried")
    silent = [p for p in scene.pairs if not p.ok and any(word in p.reason.lower() for word in _NO_WAY)]
    if silent:
        shown = few_names([f"{pair.source} -> {pair.target}" for pair in silent])
        return fail(
            f"data addresses cannot be reached: {shown}",
            "Look at addresses, routes and firewalls of the data network on these nodes.",
        )
    sources = {pair.source for pair in scene.pairs}
    return passed(f"{len(sources)} nodes reach each other's data addresses (their sshd listens nowhere else)")


_NO_WAY = ("no answer within", "timed out", "no route to host", "network is unreachable", "connection refused")
