"""What only all nodes together show."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from provision.checks import PairOutcome, judge_cluster, pairs_script, parse_pairs
from provision.model import CheckStatus
from provision.model.reason import reason
from provision.report.reasons import remedy
from tests.support.reasons import shown
from tests.unit.checks.conftest import healthy, make_cluster

GOOD = [PairOutcome(a, b, ok=True) for a in ("gpu1", "gpu2") for b in ("gpu1", "gpu2")]


def judged(pairs=GOOD, first=None, second=None):
    """Judge two nodes; returns the results by id."""
    cluster = make_cluster()
    facts = {"gpu1": first or healthy(), "gpu2": second or healthy(2)}
    return {result.id: result for result in judge_cluster(cluster, cluster.nodes, facts, pairs)}


def test_two_equal_connected_nodes_pass():
    """Every check of the cluster passes."""
    assert {result.status for result in judged().values()} == {CheckStatus.PASS}


def test_failed_pairs_are_reported_with_the_reason():
    """Direction and ssh's own words are there, and the remedy names the nodes."""
    bad = [
        *GOOD[:-3],
        PairOutcome(
            "gpu1", "gpu2", ok=False, reason=reason("container_ssh.pairs.ssh", cause="Host key verification failed.")
        ),
        *GOOD[2:],
    ]
    result = judged(bad)["container_ssh.pairs"]

    assert result.status is CheckStatus.FAIL
    assert "gpu1 -> gpu2 container_ssh.pairs.ssh Host key verification failed." in shown(result.reason)
    assert remedy(result.reason, "gpu1") == "Run: provision apply --limit gpu1,gpu2"
    assert judged(bad)["cluster.data_network"].status is CheckStatus.PASS


def test_a_broken_data_network_differs_from_a_refused_login():
    """No way to an address is the network's fault, not that of keys."""
    cut = [
        *GOOD[:3],
        PairOutcome("gpu2", "gpu1", ok=False, reason=reason("container_ssh.pairs.no_connection", cause="timed out")),
    ]
    result = judged(cut)["cluster.data_network"]

    assert result.status is CheckStatus.FAIL
    assert "gpu2 -> gpu1" in shown(result.reason)


def test_a_node_without_a_result_is_reported():
    """Logins that work among the others do not make the cluster whole."""
    result = judged(GOOD[:1])["container_ssh.pairs"]

    assert result.status is CheckStatus.WARN
    assert "container_ssh.pairs.some_nodes: 1 gpu2" in shown(result.reason)
    assert judged(None)["container_ssh.pairs"].status is CheckStatus.SKIP


def test_a_shared_host_key_fails():
    """Containers made from an image with a baked-in key are found."""
    twin = healthy(2)
    twin = dataclasses.replace(twin, container_ssh=dataclasses.replace(twin.container_ssh, host_key="ssh-ed25519 KEY1"))
    result = judged(second=twin)["container_ssh.host_keys_distinct"]

    assert result.status is CheckStatus.FAIL
    assert "container_ssh.host_keys_distinct.shared" in shown(result.reason)


@pytest.mark.parametrize(
    ("name", "fact", "change", "status"),
    [
        ("cluster.skew_os", "system", {"version": "13"}, CheckStatus.WARN),
        ("cluster.skew_kernel", "system", {"kernel": "6.12"}, CheckStatus.WARN),
        ("cluster.skew_docker", "docker_info", {"version": "26.1.5"}, CheckStatus.WARN),
        ("cluster.skew_image", "image", {"id": "sha256:99"}, CheckStatus.FAIL),
    ],
)
def test_the_deviating_node_is_reported(name, fact, change, status):
    """A node that differs from the others is named with what it has."""
    odd = healthy(2)
    result = judged(second=dataclasses.replace(odd, **{fact: dataclasses.replace(getattr(odd, fact), **change)}))[name]

    assert result.status is status
    assert f"{name}.differ: " in shown(result.reason)
    assert "gpu2" in shown(result.reason)
    assert remedy(result.reason, "gpu1")


def run_pairs(folder, ssh, peers):
    """Run the script of the pairs with stand-ins for docker and ssh on the PATH; returns its outcomes."""
    (folder / "docker").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (folder / "ssh").write_text(f"#!/bin/sh\n{ssh}\n")
    for name in ("docker", "ssh"):
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", pairs_script("box", peers)],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return {pair.target: pair for pair in parse_pairs("gpu1", peers, done.stdout, done.stderr)}


def test_logins_are_tested_and_classified(tmp_path):
    """A login that works, one that is refused, one that prints something: each is what it is."""
    ssh = """case $3 in
gpu2) exit 0;;
gpu3) echo 'No ED25519 host key is known for [gpu3]:2222' >&2; echo 'Host key verification failed.' >&2; exit 255;;
gpu4) echo Welcome;;
esac"""
    outcomes = run_pairs(tmp_path, ssh, ["gpu2", "gpu3", "gpu4"])

    assert outcomes["gpu2"] == PairOutcome("gpu1", "gpu2", ok=True)
    assert "No ED25519 host key is known" in shown(outcomes["gpu3"].reason)
    assert "Host key verification failed." in shown(outcomes["gpu3"].reason)
    assert shown(outcomes["gpu4"].reason) == "container_ssh.pairs.prints: 8"


def test_logins_to_many_peers_are_all_tested(tmp_path):
    """More peers than are tried at once still all get their turn."""
    peers = [f"node{number}" for number in range(40)]
    outcomes = run_pairs(tmp_path, "exit 0", peers)

    assert sum(pair.ok for pair in outcomes.values()) == 40


def test_a_missing_container_fails_all_its_pairs():
    """What docker said is the reason of every pair from there."""
    outcomes = parse_pairs("gpu1", ["gpu1", "gpu2"], "", "Error: No such container: box\n")

    assert [pair.ok for pair in outcomes] == [False, False]
    assert {shown(pair.reason) for pair in outcomes} == {"container_ssh.pairs.ssh: Error: No such container: box"}
