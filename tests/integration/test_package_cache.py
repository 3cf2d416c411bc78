"""One node caches packages for all: each is fetched once from outside, and a cache that does not answer is reported."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import node_shell
from tests.support.command import Provision

LAB = f"cache{os.getpid()}"
CACHE, *OTHERS = NODES = tuple(f"{LAB}-{number}" for number in (1, 2, 3))
PACKAGES = ("cowsay", "sl")
FILE = "/etc/apt/apt.conf.d/90-provision-package-cache"
LOG = "/var/log/squid/access.log"
COUNTERS = ("client_http.kbytes_out", "server.all.kbytes_in")
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends"
ASK = """python3 -c 'import http.client, sys
for method, url in zip(sys.argv[3::2], sys.argv[4::2]):
    connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=20)
    connection.request(method, url)
    print(connection.getresponse().status)
'"""
OFF = ("docker_engine", "nvidia_container", "peer_memory", "training_image", "training_container", "container_ssh")
Shell = Callable[[str, str], str]


@pytest.fixture(scope="module")
def shell(provision: Provision) -> Iterator[Shell]:
    """Run a command on a node of a lab of three nodes, the first of which is the cache."""
    words = ("--driver", "container", "--system", "debian13", "--nodes", "3", "--machine", "pair")

    def call(node: str, command: str) -> str:
        return node_shell.on_node(provision, LAB, node, command)

    try:
        provision.ok("lab", "up", LAB, *words, timeout=3600)
        hosts = re.findall(r"http://([^/\s]+)", call(CACHE, "cat /etc/apt/sources.list.d/debian.sources"))
        if not hosts:
            pytest.skip("the mirror of this machine has no repository with http://")
        configure(provision, cluster_package_cache=CACHE, cluster_package_cache_hosts=sorted(set(hosts)))
        yield call
    finally:
        down = provision("lab", "down", LAB)
    assert down.code == 0, str(down)


def configure(provision: Provision, **variables: object) -> None:
    """Set variables of the nodes."""
    file = Path(provision.environment["XDG_STATE_HOME"]) / "provision/labs" / LAB / "inventory/group_vars/gpu_nodes.yml"
    file.parent.mkdir(exist_ok=True)
    before = yaml.safe_load(file.read_text()) if file.exists() else {f"{role}_enabled": False for role in OFF}
    file.write_text(yaml.safe_dump({**before, **variables}))


def host_of(shell: Shell) -> str:
    """Return the first host of a repository."""
    match = re.search(r"Proxy::(\S+) ", shell(CACHE, f"cat {FILE}"))
    assert match
    return match[1]


def address_of(shell: Shell) -> str:
    """Return the address at which the cache listens."""
    match = re.search(r"http_port (\S+):3128", shell(CACHE, "cat /etc/squid/squid.conf"))
    assert match
    return match[1]


def counters(shell: Shell) -> dict[str, int]:
    """Return the bytes that squid sent and fetched, in KB."""
    program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
    text = shell(CACHE, f"python3 -c '{program}' http://{address_of(shell)}:3128/squid-internal-mgr/counters")
    values = dict(re.findall(r"^(\S+) = (\d+)", text, re.MULTILINE))
    return {name: int(values[name]) for name in COUNTERS}


@pytest.mark.slow
def test_each_package_is_fetched_once_from_outside(provision: Provision, shell: Shell) -> None:
    """Nodes whose only way to the repositories is the cache are set up, and install what one download brought."""
    provision.ok("apply", "--lab", LAB, "--limit", CACHE, "--yes")
    host = host_of(shell)
    for node in OTHERS:
        shell(node, f"ip route add blackhole $(getent ahostsv4 {host} | awk '{{print $1; exit}}')")
    plan = provision.ok("plan", "--lab", LAB, "--json").document
    assert {node["name"]: len(node["steps"]) for node in plan["nodes"]}[CACHE] == 0
    provision.ok("apply", "--lab", LAB, "--yes")
    again = provision.ok("apply", "--lab", LAB, "--yes", "--json").document
    assert (again["ok"], again["remote_tasks"]) == (True, 0)

    before, lines = counters(shell), int(shell(CACHE, f"wc -l < {LOG}"))
    for node in NODES:
        shell(node, f"{INSTALL} {' '.join(PACKAGES)}")
    after = counters(shell)
    entries = [line.split() for line in shell(CACHE, f"tail -n +{lines + 1} {LOG}").splitlines()]
    packages = [
        (words[6].rpartition("/")[2], "HIT" in words[3], int(words[4]))
        for words in entries
        if words[6].endswith(".deb")
    ]
    fetched = Counter(name for name, is_hit, _ in packages if not is_hit)
    served = Counter(name.partition("_")[0] for name, _, _ in packages)
    once = sum({name: size for name, _, size in packages}.values()) // 1024
    sent, received = (after[name] - before[name] for name in COUNTERS)
    print(json.dumps({"packages": len(fetched), "once KB": once, "sent KB": sent, "fetched KB": received}))  # noqa: T201

    assert {name: served[name] for name in PACKAGES} == dict.fromkeys(PACKAGES, len(NODES))
    assert set(fetched.values()) == {1}
    assert min(served.values()) >= len(OTHERS)  # squid brought some of them to its own node before
    assert once * 0.95 - 50 < received < once * 1.05 + 50
    assert sent > 1.9 * received


@pytest.mark.slow
def test_the_cache_serves_only_the_repositories_and_only_the_nodes(shell: Shell) -> None:
    """It is no open proxy: not for other hosts, not for other methods, and not on other networks."""
    address, host = address_of(shell), host_of(shell)
    asked = f"CONNECT {host}:443 POST http://{host}/ GET http://{host}:8080/ GET http://example.com/"
    answers = shell(OTHERS[0], f"{ASK} {address} 3128 {asked} GET http://{address}:3128/squid-internal-mgr/counters")
    listening = shell(CACHE, "ss -Hltn sport = :3128 | awk '{print $4}'")

    assert answers.split() == ["403"] * 5
    assert listening.split() == [f"{address}:3128"]


@pytest.mark.slow
def test_a_dead_cache_is_reported_and_never_bypassed(provision: Provision, shell: Shell) -> None:
    """Every node reports it with the cause; an apply to the node of the cache starts it again."""
    shell(CACHE, "systemctl stop squid")
    document = provision("verify", "--lab", LAB, "--json").document
    codes = {
        node["name"]: check["code"]
        for node in document["nodes"]
        for check in node["checks"]
        if check["id"] == "package_cache.reachable"
    }
    assert codes == dict.fromkeys(NODES, "package_cache.reachable.no_answer")
    assert "3128" in shell(OTHERS[0], f"! {INSTALL} --reinstall -o Acquire::Retries=0 -d hello 2>&1")

    provision.ok("apply", "--lab", LAB, "--limit", CACHE, "--yes")
    shell(OTHERS[0], f"{INSTALL} hello")


@pytest.mark.slow
def test_a_cache_that_is_not_wanted_any_more_is_removed(provision: Provision, shell: Shell) -> None:
    """Without the variable no node uses it, and it does not listen; a reset removes all its files."""
    for node in OTHERS:
        shell(node, "ip route del $(ip route show type blackhole | awk '{print $2}')")
    configure(provision, cluster_package_cache="")
    provision.ok("apply", "--lab", LAB, "--yes")
    command = f"ls {FILE} 2>/dev/null; ss -Hltn sport = :3128; systemctl is-enabled squid || true"
    assert [shell(node, command).split() for node in NODES] == [["disabled"], ["not-found"], ["not-found"]]

    configure(provision, cluster_package_cache=CACHE)
    provision.ok("apply", "--lab", LAB, "--yes")
    provision.ok("reset", "--lab", LAB, "--yes")
    left = f"ls -d {FILE} /etc/squid /var/spool/squid /var/log/squid 2>/dev/null; dpkg-query -W squid 2>/dev/null; true"
    assert [shell(node, left) for node in NODES] == [""] * len(NODES)
