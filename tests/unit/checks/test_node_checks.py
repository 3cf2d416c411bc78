"""One thing broken at a time: the right check says so, with a reason and a remedy."""

from __future__ import annotations

import dataclasses
from ipaddress import ip_network

import pytest

from provision.checks import judge, unreachable
from provision.checks.base import CHECKS
from provision.errors import ConnectionFailed
from provision.facts import Unknown
from provision.facts.container import DeletedMount
from provision.facts.docker import DockerConfig, DockerService, Image
from provision.facts.fabric import Card, Interface
from provision.facts.firewall import Firewall, UfwRule, Zone
from provision.facts.kernel import TimeSync
from provision.facts.network import Listening
from provision.facts.package_proxy import PackageProxy
from provision.facts.rdma import RdmaStack
from provision.facts.records import Receipt
from provision.facts.rescue import Rescue
from provision.facts.selinux import Denial, Selinux, WrongLabel
from provision.facts.system import Disk, Kind, Limits, NodeKind, System
from provision.model import CheckStatus
from provision.report.reasons import remedy
from provision.stack.observed import stack_of
from tests.support.reasons import shown
from tests.unit.checks.conftest import CUT, UNLIMITED, healthy, make_cluster, rdma_device

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP
IN_CONTAINER = Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False)
NO_GPU = {"gpus": (), "gpu_pci": ()}
BASE = healthy()


def changed(name, **values):
    """One fact of the healthy node with some values replaced."""
    return {name: dataclasses.replace(getattr(BASE, name), **values)}


def test_a_healthy_node_passes(judged):
    """Nothing fails or warns, and only what is not asked for is skipped."""
    results = judged()

    assert {r.id: shown(r.reason) for r in results.values() if r.status in (WARN, FAIL)} == {}
    assert [r.id for r in results.values() if r.status is SKIP] == [
        *("rdma_stack.modules", "rdma_stack.soft_roce", "nvidia_driver.firmware", "nvidia_driver.imex"),
        *("nvidia_driver.mig", "nvidia_driver.persistence_mode"),
    ]


CACHE = "http://10.77.0.1:3128"
PUBLIC = Zone("public", "default", interfaces=("ens4",), ports=((2222, 2222),))
TRUSTED = Zone("trusted", "ACCEPT")
PEERS = ip_network("10.77.0.0/24")
EVERYBODY = ip_network("0.0.0.0/0")
DENIAL = Denial(1_799_999_000, "python3", "read", "default_t", "dir", "data")
ENFORCING = Selinux("enforcing", "enforcing", {"/var/lib/docker": "container_var_lib_t"})
WITH_POLICY = {"packages": {**BASE.packages, "container-selinux": "2.229.0"}}
CONFINED = DockerConfig(True, {"selinux-enabled": True}, "", BASE.docker_config.certificates)  # noqa: FBT003


def firewalld(*zones):
    """The fact of a node with these zones besides public and trusted, unless they replace them."""
    names = {zone.name: zone for zone in (PUBLIC, TRUSTED, *zones)}
    return {"firewall": Firewall("firewalld", "public", tuple(names.values()))}


def ufw(*rules, admits=False):
    """The fact of a node with these rules of ufw."""
    return {"firewall": Firewall("ufw", admits_by_default=admits, rules=rules)}


BROKEN = [
    (
        "fabric_host.mtu",
        FAIL,
        "fabric_host.mtu.differs: ens4 1500 9000",
        changed("fabric", interfaces={"ens3": Interface(1500), "ens4": Interface(1500)}),
    ),
    ("fabric_host.mtu", FAIL, "fabric_host.mtu.no_interface", changed("fabric", interfaces={"ens3": Interface(1500)})),
    (
        "fabric_host.arp",
        FAIL,
        "fabric_host.arp.differs: ens4",
        changed("fabric", interfaces={"ens4": Interface(9000, "", 2, 1, 0)}),
    ),
    ("fabric_host.arp", FAIL, "fabric_host.arp.no_interface", changed("fabric", interfaces={})),
    ("fabric_host.interface_names", FAIL, "fabric_host.interface_names.differs: ens4", changed("fabric", names={})),
    (
        "fabric_host.interface_names",
        FAIL,
        "fabric_host.interface_names.differs: ens4",
        changed("fabric", names={"ens4": "0000:86:00.0"}),
    ),
    (
        "fabric_host.interface_names",
        WARN,
        "fabric_host.interface_names.missing: ens4",
        changed("fabric", interfaces={"ens4": Interface(9000)}),
    ),
    (
        "fabric_host.interface_names",
        WARN,
        "fabric_host.interface_names.missing: ens4",
        changed("fabric", interfaces={name: Interface(9000, "0000:3b:00.0") for name in ("ens4", "ens4d1")}),
    ),
    (
        "fabric_host.interface_names",
        WARN,
        "fabric_host.interface_names.reboot: eth2",
        changed("fabric", interfaces={"eth2": Interface(9000, "0000:3b:00.0")}),
    ),
    (
        "fabric_host.hugepages",
        FAIL,
        "fabric_host.hugepages.differs: 2048 0 512",
        changed("fabric", hugepages={2048: 0}),
    ),
    (
        "fabric_host.hugepages",
        FAIL,
        "fabric_host.hugepages.differs: 2048 600 512",
        changed("fabric", hugepages={2048: 600}),
    ),
    (
        "fabric_host.hugepages",
        WARN,
        "fabric_host.hugepages.fewer: 2048 400 512",
        changed("fabric", hugepages={2048: 400}),
    ),
    ("fabric_host.hugepages", WARN, "fabric_host.hugepages.unsupported: 2048", changed("fabric", hugepages={})),
    (
        "fabric_host.governor",
        FAIL,
        "fabric_host.governor.differs: performance powersave performance",
        changed("fabric", governors=frozenset({"powersave", "performance"})),
    ),
    (
        "fabric_host.pcie_read_request",
        FAIL,
        "fabric_host.pcie_read_request.differs: 0000:3b:00.0 512 4096",
        changed(
            "fabric", cards={"0000:3b:00.0": Card(max_read_request=512), "0000:01:00.0": Card(max_read_request=1024)}
        ),
    ),
    (
        "fabric_host.pcie_acs",
        FAIL,
        "fabric_host.pcie_acs.differs: 0000:05:00.0",
        changed("pci_routing", redirecting=("0000:00:02.0", "0000:05:00.0")),
    ),
    (
        "fabric_host.roce",
        FAIL,
        "fabric_host.roce.differs: mlx5_0",
        changed("fabric", roce={("mlx5_0", 1): ("v1", 106)}),
    ),
    ("fabric_host.roce", FAIL, "fabric_host.roce.differs: mlx5_0", changed("fabric", roce={("mlx5_0", 1): ("v2", 0)})),
    ("fabric_host.roce", FAIL, "fabric_host.roce.differs: mlx5_0", changed("fabric", roce={})),
    ("fabric_host.roce_qos", FAIL, "fabric_host.roce_qos.differs: ens4", changed("fabric", qos={})),
    *(
        (
            "fabric_host.irq_affinity",
            FAIL,
            "fabric_host.irq_affinity.differs: 0000:3b:00.0",
            changed("fabric", interrupts=one),
        )
        for one in ({}, {"0000:3b:00.0": 3})
    ),
    (
        "fabric_host.roce_qos",
        FAIL,
        "fabric_host.roce_qos.differs: ens4",
        changed("fabric", qos={"ens4": {"trust": "pcp"}}),
    ),
    (
        "fabric_host.roce_qos",
        WARN,
        "fabric_host.roce_qos.unknown: ens4",
        changed("fabric", qos={"ens4": {"trust": "dscp"}}),
    ),
    (
        "fabric_host.kernel_arguments",
        FAIL,
        "fabric_host.kernel_arguments.differs: iommu=pt",
        changed("fabric", boot_arguments=frozenset({"ro", "amd_iommu=pt"})),
    ),
    (
        "fabric_host.kernel_arguments",
        WARN,
        "fabric_host.kernel_arguments.reboot: iommu=pt",
        changed("fabric", kernel_arguments=frozenset({"ro"})),
    ),
    (
        "fabric_host.kernel_arguments",
        WARN,
        "fabric_host.kernel_arguments.reboot: iommu=pt",
        changed("fabric", kernel_arguments=frozenset({"ro"}), boot_arguments=None),
    ),
    *(
        (
            "platform.rescue",
            WARN,
            f"platform.rescue.{code}: rules of ufw 45 /etc/ufw/user.rules",
            {"rescue": Rescue("reverted", "rules of ufw", cause, 45, ("/etc/ufw/user.rules",))},
        )
        for cause, code in (
            ("limit", "limit"),
            ("next", "limit"),
            ("boot", "boot"),
            ("late", "late"),
            ("failed", "failed"),
            ("of a later version", "reverted"),
        )
    ),
    *(
        ("package_cache.reachable", status, text, {"package_proxy": PackageProxy(*values)})
        for status, text, *values in (
            (FAIL, f"package_cache.reachable.no_answer: gpu1 {CACHE} refused", CACHE, "unreachable", "refused"),
            (FAIL, f"package_cache.reachable.refused: gpu1 {CACHE}", CACHE, "refused"),
            (WARN, "package_cache.reachable.other: http://10.77.0.9:3128", "http://10.77.0.9:3128", "ok"),
            (WARN, "package_cache.reachable.bypassed: b.org", CACHE, "ok", "", ("b.org",)),
        )
    ),
    (
        "platform.rescue",
        WARN,
        "platform.rescue.not_restored: rules of ufw /etc/ufw/user.rules",
        {"rescue": Rescue("reverted", "rules of ufw", "boot", 45, ("/etc/ufw/user.rules",), is_complete=False)},
    ),
    (
        "base_system.firewall",
        FAIL,
        "base_system.firewall.blocked: firewalld public gpu2 10.77.0.2",
        firewalld(),
    ),
    (
        "base_system.firewall",
        FAIL,
        "base_system.firewall.blocked: firewalld public gpu2 2222 10.77.0.2",
        firewalld(dataclasses.replace(PUBLIC, ports=((2223, 2300),))),
    ),
    (
        "base_system.firewall",
        FAIL,
        "base_system.firewall.decided: firewalld work gpu2 2222 the zone work has its address",
        firewalld(Zone("work", "default", sources=(PEERS,))),
    ),
    ("base_system.firewall", FAIL, "base_system.firewall.blocked: ufw gpu2 2222 10.77.0.2", ufw()),
    (
        "base_system.firewall",
        FAIL,
        "base_system.firewall.blocked: ufw gpu2 10.77.0.2",
        ufw(UfwRule("allow", EVERYBODY, ((22, 22), (2222, 2222)), ""), UfwRule("allow", PEERS, (), "ens9")),
    ),
    (
        "base_system.firewall",
        FAIL,
        "base_system.firewall.decided: ufw gpu2 2222 the rule deny from 10.77.0.0/24",
        ufw(UfwRule("deny", PEERS, (), ""), UfwRule("allow", PEERS, (), "")),
    ),
    ("base_system.firewall", FAIL, "unavailable: hung", {"firewall": Unknown("hung: firewall-cmd")}),
    (
        "base_system.kernel",
        WARN,
        "base_system.kernel.changed: 5.10.0 6.1.0",
        {"receipts": {"base_system": Receipt("base_system", {"inputs": {"kernel": "5.10.0"}})}},
    ),
    (
        "node.selinux",
        WARN,
        "node.selinux.denied: 1 node.selinux.denial python3 read dir data default_t",
        {"selinux": ENFORCING, "selinux_denials": (DENIAL, dataclasses.replace(DENIAL, seconds=1_799_000_000))},
    ),
    (
        "node.selinux",
        WARN,
        "node.selinux.label /etc/hosts etc_t net_conf_t 1 /etc/hosts",
        {"selinux": dataclasses.replace(ENFORCING, wrong=(WrongLabel("/etc/hosts", "etc_t", "net_conf_t"),))},
    ),
    ("docker_engine.selinux", FAIL, "docker_engine.selinux.no_policy", {"selinux": ENFORCING}),
    (
        "docker_engine.selinux",
        FAIL,
        "/data default_t container_var_lib_t semanage fcontext -a -e /var/lib/docker /data && restorecon -RF /data",
        {
            "selinux": dataclasses.replace(ENFORCING, types={"/data": "default_t"}),
            **WITH_POLICY,
            **changed("docker_info", data_root="/data"),
        },
    ),
    (
        "docker_engine.selinux",
        WARN,
        "data_root: /data/docker default_t container_var_lib_t restorecon -RF /data/docker",
        {
            "selinux": Selinux("permissive", "", {"/data/docker": "default_t"}, {"/data": "/var/lib/docker"}),
            **WITH_POLICY,
            **changed("docker_info", data_root="/data/docker"),
        },
    ),
    (
        "docker_engine.selinux",
        WARN,
        "docker_engine.selinux.mount /var/lib/provision var_lib_t",
        {
            "selinux": Selinux("enforcing", "", {"/var/lib/provision": "var_lib_t"}),
            **WITH_POLICY,
            "docker_config": CONFINED,
        },
    ),
    ("docker_engine.cgroup", WARN, "docker_engine.cgroup.v1", changed("docker_info", cgroup_version="1")),
    ("node.os", FAIL, "Ubuntu 22.04", {"system": System("ubuntu", "22.04", "Ubuntu 22.04", "5", "x")}),
    ("node.os", FAIL, "hung", {"system": Unknown("hung: cat /etc/os-release")}),
    ("base_system.limits", FAIL, "locked memory 8388608", {"limits": Limits(CUT, UNLIMITED)}),
    (
        "base_system.hosts",
        FAIL,
        "base_system.hosts.wrong: base_system.hosts.address gpu2 127.0.1.1 10.77.0.2",
        {"names": {"gpu1": ("10.77.0.1",), "gpu2": ("127.0.1.1",)}},
    ),
    (
        "base_system.hosts",
        FAIL,
        "base_system.hosts.wrong: base_system.hosts.address gpu2 unknown 10.77.0.2",
        {"names": {"gpu1": ("10.77.0.1",), "gpu2": ()}},
    ),
    ("base_system.hosts", FAIL, "loopback", {"names": {"gpu1": ("10.77.0.1", "127.0.1.1"), "gpu2": ("10.77.0.2",)}}),
    (
        "base_system.time_sync",
        WARN,
        "base_system.time_sync.no_service",
        {"time_sync": TimeSync(synchronized=False, services=())},
    ),
    (
        "base_system.time_sync",
        WARN,
        "base_system.time_sync.not_yet: chrony",
        {"time_sync": TimeSync(synchronized=False, services=("chrony",))},
    ),
    (
        "base_system.sysctls",
        FAIL,
        "base_system.sysctls.differ: base_system.sysctls.value vm.max_map_count 65530 262144",
        {"sysctls": {"vm.max_map_count": "65530"}},
    ),
    ("base_system.sysctls", WARN, "base_system.sysctls.missing: vm.max_map_count", {"sysctls": {}}),
    ("rdma_stack.packages", FAIL, "not_installed", {"packages": {"bash": "5"}}),
    (
        "rdma_stack.packages",
        FAIL,
        "perftest",
        {"receipts": {"rdma_stack": Receipt("rdma_stack", {"packages": {"perftest": "4"}})}},
    ),
    ("rdma_stack.devices", FAIL, "rdma_stack.devices.no_device: 2", {"rdma": RdmaStack((), 2, (), "")}),
    (
        "rdma_stack.devices",
        FAIL,
        "rdma_stack.devices.all_down: mlx5_0 (DOWN 100 Gb/sec)",
        {"rdma": RdmaStack((rdma_device(state="DOWN"),), 1, (), "")},
    ),
    (
        "rdma_stack.devices",
        WARN,
        "mlx5_1",
        {"rdma": RdmaStack((rdma_device(), rdma_device("mlx5_1", state="DOWN")), 2, ("uverbs0",), "")},
    ),
    ("rdma_stack.gids", FAIL, "mlx5_0", {"rdma": RdmaStack((rdma_device(gid=False),), 1, (), "")}),
    ("docker_engine.service", FAIL, "failed", {"docker_service": DockerService(True, "failed", "enabled", True)}),  # noqa: FBT003
    (
        "docker_engine.service",
        FAIL,
        "docker_engine.service.not_enabled: disabled",
        {"docker_service": DockerService(True, "active", "disabled", True)},  # noqa: FBT003
    ),
    ("docker_engine.service", FAIL, "hung: docker info", {"docker_info": Unknown("hung: docker info")}),
    (
        "docker_engine.daemon_json",
        FAIL,
        "not JSON",
        {"docker_config": DockerConfig(True, None, "it is not JSON")},  # noqa: FBT003
    ),
    (
        "docker_engine.registry_ca",
        FAIL,
        "docker_engine.registry_ca.differs: docker_engine.registry_ca.missing r:5000",
        changed("docker_config", certificates={}),
    ),
    (
        "docker_engine.registry_ca",
        FAIL,
        "docker_engine.registry_ca.differs: docker_engine.registry_ca.other r:5000",
        changed("docker_config", certificates={"r:5000": "BB"}),
    ),
    ("docker_engine.storage", FAIL, "full", {"disks": (Disk("/var/lib/docker", 10, 100000),)}),
    (
        "docker_engine.storage",
        WARN,
        "docker_engine.storage.low: 1000 /var/lib/docker",
        {"disks": (Disk("/var/lib/docker", 1000, 100000),)},
    ),
    ("docker_engine.storage", WARN, "vfs", changed("docker_info", storage_driver="vfs")),
    (
        "docker_engine.storage",
        FAIL,
        "docker_engine.storage.full: 10 /var/lib/containerd",
        {
            **changed("docker_info", containerd_store=True),
            "disks": (Disk("/var/lib/docker", 90000, 100000), Disk("/var/lib/containerd", 10, 100000)),
        },
    ),
    ("gpu.driver", FAIL, "hung: nvidia-smi", {"gpus": Unknown("hung: nvidia-smi")}),
    ("gpu.driver", FAIL, "gpu.driver.missing: 1", {"gpus": ()}),
    ("gpu.count", FAIL, "gpu.count.missing: 1 2", {"gpu_pci": ("a", "b")}),
    ("nvidia_container.toolkit", FAIL, "not_installed", {"packages": {"rdma-core": "44"}}),
    (
        "nvidia_container.toolkit",
        FAIL,
        "nvidia_container.toolkit.versions_differ",
        {"packages": {"rdma-core": "1", "nvidia-container-toolkit": "1.17.8-1", "libnvidia-container1": "1.16.0-1"}},
    ),
    ("nvidia_container.toolkit", FAIL, "nvidia_container.toolkit.no_hook", changed("nvidia_container", hook="")),
    ("nvidia_container.runtime", FAIL, "nvidia_container.runtime.missing", changed("docker_info", runtimes=("runc",))),
    ("node.clock", WARN, "node.clock.ahead: 7380.0", {"clock": 1_800_000_000 + 7384}),
    ("node.clock", WARN, "node.clock.behind: 1800000004.0", {"clock": 0}),
    ("node.clock", WARN, "node.clock.behind: 300.0", {"clock": 1_800_000_000, "read_at": 1_800_000_300.0}),
    ("node.clock", WARN, "node.clock.behind: 100001800000004.0", {"clock": -(10**14)}),
    ("node.clock", FAIL, "hung: date", {"clock": Unknown("hung: date (no end within 20 s)")}),
    ("training_image.present", FAIL, "r:5000/t:1", {"image": None}),
    ("training_image.digest", FAIL, "sha256:33", {"image": Image("sha256:11", ("r:5000/t@sha256:33",), ())}),
    ("training_container.running", FAIL, "training_container.running.missing: provision-training", {"container": None}),
    ("training_container.running", FAIL, "exited", changed("container", status="exited", exit_code=137)),
    ("training_container.image", FAIL, "training_container.image.differs", changed("container", image_id="sha256:99")),
    ("training_container.devices", FAIL, "uverbs0", changed("container", devices=("nvidia0",))),
    ("training_container.devices", FAIL, "nvidia0", changed("container", devices=("infiniband/uverbs0",))),
    (
        "training_container.mounts",
        FAIL,
        "training_container.mounts.deleted: training_container.mounts.mount /srv/a /a",
        changed("container", deleted=(DeletedMount("/srv/a", "/a"),)),
    ),
    ("training_container.limits", FAIL, "locked memory", changed("container", limits=CUT)),
    (
        "container_ssh.sshd",
        FAIL,
        "container_ssh.sshd.not_running: provision-training",
        changed("container", processes=()),
    ),
    ("container_ssh.sshd", FAIL, "container_ssh.sshd.no_port: 2222 provision-training", {"listening": ()}),
    (
        "container_ssh.sshd",
        FAIL,
        "container_ssh.sshd.other_address: 2222 10.77.0.1",
        {"listening": (Listening("10.0.2.15", 2222),)},
    ),
    ("container_ssh.host_key", FAIL, "container_ssh.host_key.missing", {"container_ssh": None}),
    ("container_ssh.host_key", FAIL, "(644)", changed("container_ssh", files={"id_ed25519": "644"})),
    (
        "container_ssh.known_hosts",
        FAIL,
        "gpu2",
        changed("container_trust", known_hosts={"[gpu1]:2222": ("ssh-ed25519 KEY1",)}),
    ),
    (
        "container_ssh.known_hosts",
        FAIL,
        "container_ssh.known_hosts.differ: gpu2 gpu2",
        changed(
            "container_trust",
            known_hosts={"[gpu1]:2222": ("ssh-ed25519 KEY1",), "[gpu2]:2222": ("ssh-ed25519 OLD",)},
        ),
    ),
    (
        "container_ssh.trusted_nodes",
        FAIL,
        "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.admits gpu9",
        changed(
            "container_trust", authorized_nodes={**BASE.container_trust.authorized_nodes, "gpu9": ("ssh-ed25519 X",)}
        ),
    ),
    (
        "container_ssh.trusted_nodes",
        FAIL,
        "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.knows gpu9",
        changed("container_trust", known_nodes=("gpu1", "gpu2", "gpu9")),
    ),
    (
        "container_ssh.trusted_nodes",
        FAIL,
        "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.not_admitted gpu2",
        changed("container_trust", authorized_nodes={"gpu1": ("ssh-ed25519 CLIENT1",)}),
    ),
    (
        "container_ssh.trusted_nodes",
        FAIL,
        "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.not_known gpu1",
        changed("container_trust", known_nodes=("gpu2",)),
    ),
    (
        "container_ssh.trusted_nodes",
        FAIL,
        "container_ssh.trusted_nodes.differ: container_ssh.trusted_nodes.other_key gpu2",
        changed(
            "container_trust",
            authorized_nodes={"gpu1": ("ssh-ed25519 CLIENT1",), "gpu2": ("ssh-ed25519 CLIENT2", "ssh-ed25519 OLD")},
        ),
    ),
]


GOOD = [
    ("base_system.firewall", firewalld(dataclasses.replace(TRUSTED, sources=(PEERS,)))),
    ("base_system.firewall", firewalld(dataclasses.replace(PUBLIC, target="ACCEPT"))),
    ("base_system.firewall", firewalld(dataclasses.replace(PUBLIC, ports=((1024, 65535),)))),
    ("base_system.firewall", firewalld(dataclasses.replace(PUBLIC, admitted=(PEERS,)))),
    ("base_system.firewall", firewalld(dataclasses.replace(PUBLIC, interfaces=()), Zone("lan", "ACCEPT", ("ens4",)))),
    ("base_system.firewall", ufw(admits=True)),
    ("base_system.firewall", ufw(UfwRule("allow", PEERS, (), ""), UfwRule("deny", EVERYBODY, (), ""))),
    ("base_system.firewall", ufw(UfwRule("allow", EVERYBODY, (), "ens4"))),
    ("node.selinux", {"selinux": ENFORCING, "selinux_denials": (dataclasses.replace(DENIAL, seconds=1_799_000_000),)}),
    ("docker_engine.selinux", {"selinux": ENFORCING, **WITH_POLICY}),
    (
        "docker_engine.selinux",
        {"selinux": Selinux("enforcing", "", {"/var/lib/provision": "var_lib_t"}), **WITH_POLICY},
    ),
    ("base_system.kernel", {"receipts": {"base_system": Receipt("base_system", {"inputs": {"kernel": "6.1.0"}})}}),
    ("base_system.kernel", {"receipts": {"base_system": Receipt("base_system", {})}}),
]


@pytest.mark.parametrize(("check", "facts"), GOOD)
def test_firewalls_and_selinux_that_let_jobs_work_pass(check, facts, judged):
    """Without a rule of ours if the node needs none."""
    assert judged(**facts)[check].status is PASS


def test_a_firewall_that_the_role_does_not_manage_has_the_commands_as_remedy(judged):
    """The operator can run them as they are."""
    variables = {"cluster_firewall": "check", "cluster_data_networks": ["10.77.0.0/24"]}

    result = judged(variables, **firewalld())
    assert result["base_system.firewall"].reason.code == "base_system.firewall.unmanaged"
    assert remedy(result["base_system.firewall"].reason) == (
        "Run on the node: firewall-cmd --permanent --zone=trusted --add-source=10.77.0.0/24; "
        "firewall-cmd --zone=trusted --add-source=10.77.0.0/24"
    )


@pytest.mark.row(44, 49)
@pytest.mark.parametrize(("name", "status", "reason", "facts"), BROKEN, ids=lambda v: v if isinstance(v, str) else "")
def test_a_problem_is_reported_with_a_remedy(judged, name, status, reason, facts):
    """The check that is about the broken thing names it and says what to do."""
    result = judged(**facts)[name]

    assert result.status is status
    assert reason in shown(result.reason)
    assert remedy(result.reason, "gpu1")


def test_settings_of_data_networks_are_judged_only_if_they_are_set(judged):
    """An interface can be named by its card; a container node has the kernel of its host."""
    unset = {"fabric_host_mtu": 0, "fabric_host_arp_enabled": False, "fabric_host_hugepages_2mib": -1,
             "fabric_host_cpu_governor": "", "fabric_host_kernel_arguments": [],
             "fabric_host_pcie_max_read_request": 0, "fabric_host_pcie_acs": "",
             "fabric_host_roce_mode": "", "fabric_host_roce_tos": -1, "fabric_host_interface_names": {},
             "fabric_host_roce_trust": "", "fabric_host_roce_pfc": "", "fabric_host_irq_affinity": ""}  # fmt: skip
    names = ("mtu", "arp", "hugepages", "governor", "kernel_arguments", "pcie_read_request", "pcie_acs", "roce",
             "interface_names", "roce_qos", "irq_affinity")  # fmt: skip
    ids = [f"fabric_host.{name}" for name in names]

    assert [shown(judged(unset)[name].reason) for name in ids] == [f"{name}.unset" for name in ids]
    inside = judged(kind=IN_CONTAINER)
    assert [shown(inside[name].reason) for name in ids[1:]] == [f"{name}.container" for name in ids[1:]]
    by_card = judged({"fabric_host_interfaces": ["0000:3b:00.0"]}, addresses=())
    assert shown(by_card["fabric_host.mtu"].reason) == "fabric_host.mtu.ok: 9000 ens4"
    assert (
        shown(judged(**changed("fabric", governors=frozenset()))[ids[3]].reason) == "fabric_host.governor.unsupported"
    )
    assert shown(judged(**changed("rdma", devices=()))[ids[7]].reason) == "fabric_host.roce.no_device"
    unknown = judged(**changed("fabric", interrupts={"0000:3b:00.0": None}))["fabric_host.irq_affinity"]
    assert shown(unknown.reason) == "fabric_host.irq_affinity.unknown"
    virtual = judged(**changed("fabric", cards={}))["fabric_host.irq_affinity"]
    assert shown(virtual.reason) == "fabric_host.irq_affinity.no_card"
    assert shown(judged(rescue=Rescue())["platform.rescue"].reason) == "platform.rescue.none"


def test_one_cause_has_one_failure(judged):
    """When docker is down, what needs docker waits for it instead of failing too."""
    results = judged(docker_service=DockerService(loaded=False, active="inactive", enabled="", client=False))
    failed = {r.id: shown(r.reason) for r in results.values() if r.status is FAIL}

    assert failed == {"docker_engine.service": "docker_engine.service.not_installed"}
    assert shown(results["container_ssh.sshd"].reason) == "check.waits: docker_engine.service"
    assert results["training_container.limits"].status is SKIP


def test_a_container_node_is_checked_within_its_limits(judged):
    """Limits cut to the node's own warn; modules and sysctls are skipped with the reason."""
    results = judged(
        {"rdma_stack_soft_roce_enabled": True},
        kind=IN_CONTAINER,
        limits=Limits(CUT, CUT),
        sysctls={},
        time_sync=TimeSync(synchronized=False, services=()),
        **changed("container", limits=CUT),
    )

    assert results["base_system.limits"].status is WARN
    assert results["training_container.limits"].status is WARN
    assert "cut" in shown(results["training_container.limits"].reason)
    for name in ("base_system.sysctls", "base_system.time_sync", "rdma_stack.soft_roce"):
        assert results[name].status is SKIP
        assert "container" in shown(results[name].reason)


def test_a_container_node_below_its_own_limits_fails(judged):
    """A limit that could be higher is not excused by the kind of the node."""
    results = judged(kind=IN_CONTAINER, limits=Limits({**CUT, "Max open files": 1024}, CUT))

    assert results["base_system.limits"].status is FAIL
    assert "1024" in shown(results["base_system.limits"].reason)


def test_configured_soft_roce_must_be_present(judged):
    """The module and an active device on the data interface are both needed."""
    wanted = {"rdma_stack_soft_roce_enabled": True}
    soft = RdmaStack((rdma_device("rxe0", driver=""),), 0, ("uverbs0",), "")

    assert judged(wanted, rdma=soft)["rdma_stack.soft_roce"].status is PASS
    assert judged(wanted, rdma=soft, modules=frozenset())["rdma_stack.soft_roce"].status is FAIL
    assert judged(wanted)["rdma_stack.soft_roce"].status is FAIL
    elsewhere = {**wanted, "rdma_stack_soft_roce_interface": "ens9"}
    assert "ens9" in shown(judged(elsewhere, rdma=soft)["rdma_stack.soft_roce"].reason)


def test_a_simulated_system_is_marked(judged):
    """Supported or not."""
    title = "Ubuntu 24.04 LTS (SIMULATED: files of Debian 13)"
    for name, status in (("debian", PASS), ("ubuntu", FAIL)):  # debian 12 is the only supported system here
        result = judged(system=System(name, "12", title, "6.1", "x86_64"), simulated={"system": "Ubuntu"})["node.os"]

        assert (result.status, result.simulated) == (status, True)
        assert title in result.reason.params["system"]


def test_simulated_components_are_marked(judged):
    """What rests on a stand-in of the lab says so, and what is real does not."""
    results = judged(
        gpu_pci=(),
        simulated={"nvidia-smi": "GPUs", "nvidia-container-toolkit": "toolkit"},
        **changed("container", devices=("infiniband/uverbs0",)),
    )
    marked = {r.id for r in results.values() if r.simulated}

    assert marked == {
        "gpu.driver",
        "gpu.count",
        "gpu.state",
        "gpu.xid",
        "gpu.ecc",
        "gpu.row_remap",
        "gpu.nvlink",
        "gpu.fabric",
        "gpu.pcie_width",
        "gpu.topology",
        "gpu.throttle",
        "peer_memory.path",
        "nvidia_container.toolkit",
        "nvidia_container.runtime",
        "training_container.devices",
    }
    assert all(r.status is PASS for r in results.values() if r.simulated)


def test_a_node_without_gpus_requires_no_gpu_software(judged):
    """GPU checks are skipped there, and the container needs no GPU."""
    results = judged(packages={"rdma-core": "1"}, **NO_GPU)

    assert {r.status for r in results.values() if r.id.startswith(("gpu.", "nvidia_container."))} == {SKIP}
    assert results["training_container.devices"].status is PASS


def test_an_image_of_an_archive_is_identified_by_its_configuration_in_both_stores(judged):
    """In the image store of containerd, the ID and the digests are those of the manifest."""
    pinned, manifest = f"sha256:{'c' * 64}", f"sha256:{'d' * 64}"
    inside = Image(manifest, (f"r:5000/t@{manifest}",), (), config_digest=pinned)

    for image in (Image(pinned, (), ()), inside):
        assert judged({"training_image_digest": pinned}, image=image)["training_image.digest"].status is PASS
    assert judged({"training_image_digest": manifest}, image=inside)["training_image.digest"].status is PASS
    assert judged({"training_image_digest": f"sha256:{'e' * 64}"}, image=inside)["training_image.digest"].status is FAIL


def test_a_disabled_role_is_not_checked(judged):
    """The user's own docker, for instance, is none of our business."""
    results = judged({"docker_engine_enabled": False}, docker_config=DockerConfig(True, None, "broken"))  # noqa: FBT003

    assert results["docker_engine.daemon_json"].status is SKIP
    assert "check.role_disabled: docker_engine" in shown(results["docker_engine.daemon_json"].reason)


def test_unresolved_templates_are_skipped(judged):
    """A variable with Jinja makes a skip with the reason, never a failure."""
    results = judged({"training_image_reference": "{{ registry }}/t:1"}, image=None)

    assert results["training_image.present"].status is SKIP
    assert "training_image.present.template" in shown(results["training_image.present"].reason)


def test_daemon_json_may_contain_other_settings(judged):
    """The user's own options stay; each missing wish is named."""
    wanted = {
        "docker_engine_registry_mirrors": ["https://m"],
        "docker_engine_daemon_options": {"log-opts": {"max-size": "10m"}},
    }
    good = {"registry-mirrors": ["https://m"], "log-opts": {"max-size": "10m", "x": "y"}, "debug": True}

    assert judged(wanted, **changed("docker_config", options=good))["docker_engine.daemon_json"].status is PASS
    lacking = judged(wanted, **changed("docker_config", options={"debug": True}))["docker_engine.daemon_json"]
    assert lacking.status is FAIL
    assert "registry-mirrors" in shown(lacking.reason)
    assert "log-opts" in shown(lacking.reason)


def test_an_unreachable_node_has_one_failing_check():
    """The reason of the connection and its remedy stand for all else."""
    results = unreachable(
        ConnectionFailed("10.0.0.9 port 22: no route to host", node="gpu9", remedy="Check the cable.")
    )

    assert [(r.id, r.status, remedy(r.reason)) for r in results] == [("node.reachable", FAIL, "Check the cable.")]
    assert "no route" in shown(results[0].reason)


@pytest.mark.parametrize(
    "rate", ["1.2.3 Gb/sec", ". Gb/sec", f"400 Gb/sec ({'9' * 5000}X NDR)", "9" * 5000 + " Gb/sec"]
)
def test_an_unexpected_value_of_a_node_does_not_stop_its_checks(judged, rate):
    """Whatever a driver says of its port, the node is judged by all checks."""
    device = BASE.rdma.devices[0]
    devices = (dataclasses.replace(device, ports=(dataclasses.replace(device.ports[0], rate=rate),)),)
    results = judged(**changed("rdma", devices=devices))

    assert "container_ssh.trusted_nodes" in results


def test_a_check_that_raises_fails_alone(judged, monkeypatch):
    """It says so, and the others go on."""
    check = CHECKS["node.kind"]
    monkeypatch.setitem(CHECKS, "node.kind", dataclasses.replace(check, judge=lambda _: int("9" * 5000)))
    results = judged()

    assert results["node.kind"].status is FAIL
    assert "check.failed" in shown(results["node.kind"].reason)
    assert results["node.disks"].status is PASS


def locked(packages, **variables):
    """Judge a node with these packages by a lock of the healthy node."""
    system = dataclasses.replace(BASE.system, package_manager="apt-get")
    stack = stack_of(dataclasses.replace(BASE, system=system, image=None))
    facts = dataclasses.replace(BASE, system=system, packages={**BASE.packages, **packages})
    cluster = dataclasses.replace(make_cluster(**variables), stack_lock=stack)
    return {result.id: result for result in judge(cluster.nodes[0], facts, cluster)}["node.stack_lock"]


def test_a_component_in_another_version_than_the_lock_fails():
    """The reason names component, package and both versions, and the remedy what to do."""
    result = locked({"rdma-core": "43"})

    assert result.status is FAIL
    assert "stack.package rdma-core 43 44" in shown(result.reason)
    assert remedy(result.reason, "gpu1") == "Run: provision apply"


def test_a_node_at_the_lock_passes(judged):
    """Also one without a lock; a node that takes no jobs is not judged."""
    assert locked({}).status is PASS
    assert shown(judged()["node.stack_lock"].reason) == "node.stack_lock.none"
    assert locked({"rdma-core": "43"}, cluster_takes_jobs=False).status is SKIP
