"""`verify --profile kubernetes`: is a node ready for a kubelet?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from provision.checks.kubernetes_node import PORTS
from provision.checks.minimums import hold
from provision.facts import Unknown
from provision.facts.kubernetes import ContainerdRuntime, KubernetesHost
from provision.facts.network import Listening
from provision.facts.rdma import RdmaStack
from provision.model import Cluster
from provision.report.reasons import message, remedy
from tests.unit.checks.conftest import healthy, make_node

READY = KubernetesHost(
    version="1.7.27",
    service="active",
    has_config=True,
    runtimes={
        "runc": ContainerdRuntime(systemd_cgroup=True),
        "nvidia": ContainerdRuntime("/usr/bin/nvidia-container-runtime", systemd_cgroup=True),
    },
    modules=frozenset({"overlay", "br_netfilter"}),
    sysctls={"net.ipv4.ip_forward": "1", "net.bridge.bridge-nf-call-iptables": "1"},
)


def verdicts(host=READY, **facts):
    """Return component -> (status, code) of a node that is ready but for these facts."""
    node = make_node("gpu1", "10.77.0.1")
    cluster = Cluster("c", Path("hosts.yml"), (node,))
    held = hold("kubernetes", node, dataclasses.replace(healthy(), kubernetes_host=host, **facts), cluster)
    for item in held:
        assert message(item.verdict.reason)
        assert item.verdict.status.value != "fail" or remedy(item.verdict.reason)
    return {item.component: (item.verdict.status.value, item.verdict.reason.code) for item in held}


def test_a_ready_node_passes():
    assert {status for status, _ in verdicts().values()} == {"pass"}


def test_a_node_without_containerd_fails_with_a_remedy():
    """What is in its configuration does not matter then."""
    result = verdicts(dataclasses.replace(READY, version="", runtimes={}))

    assert result["containerd"] == ("fail", "profile.containerd.missing")
    assert {result[name][0] for name in ("CRI plugin", "cgroup driver", "NVIDIA runtime")} == {"skip"}


@pytest.mark.parametrize(
    ("component", "change", "code"),
    [
        ("containerd", {"service": "inactive"}, "profile.containerd.stopped"),
        ("CRI plugin", {"cri_disabled": True}, "profile.cri.disabled"),
        ("cgroup driver", {"runtimes": {"runc": ContainerdRuntime()}}, "profile.cgroups.not_systemd"),
        ("cgroup driver", {"runtimes": {}}, "profile.cgroups.not_systemd"),
        ("NVIDIA runtime", {"runtimes": {"runc": READY.runtimes["runc"]}}, "profile.nvidia_runtime.missing"),
        ("swap", {"swap": ("/dev/sda2",)}, "profile.swap.on"),
        ("kernel modules", {"modules": frozenset({"overlay"})}, "profile.modules.missing"),
        ("sysctls", {"sysctls": {"net.ipv4.ip_forward": "0"}}, "profile.sysctls.off"),
    ],
)
def test_each_prerequisite_is_verified(component, change, code):
    assert verdicts(dataclasses.replace(READY, **change))[component] == ("fail", code)


def test_ports_must_be_free_unless_kubelet_uses_them():
    used = (Listening("", PORTS[1]),)

    assert verdicts(listening=used)["ports"] == ("fail", "profile.ports.used")
    assert verdicts(dataclasses.replace(READY, kubelet="active"), listening=used)["ports"][0] == "skip"


def test_missing_rdma_devices_are_a_warning_and_nodes_without_gpus_need_no_runtime():
    result = verdicts(rdma=RdmaStack((), 0, (), ""), gpus=())

    assert result["RDMA"] == ("warn", "profile.rdma.none")
    assert result["NVIDIA runtime"] == ("skip", "profile.no_gpu")


def test_unknown_facts_fail():
    assert verdicts(Unknown("it hangs"))["swap"] == ("fail", "profile.fact_unavailable")
