"""Every parser, with short outputs of the real programs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from provision.documents import DEPTH_LIMIT
from provision.facts import NodeFacts, RawOutput, Unknown, parse, request
from provision.facts.container import Container, ContainerFact, DeletedMount, Process
from provision.facts.container_ssh import ContainerSshFact, ContainerTrust, ContainerTrustFact, fingerprint
from provision.facts.docker import DockerConfigFact, DockerInfoFact, DockerServiceFact, Image, ImageFact
from provision.facts.fabric import Card, Fabric, FabricFact, Interface
from provision.facts.gpu import GpuPciFact, GpusFact
from provision.facts.kernel import ModulesFact, PackagesFact, SysctlsFact, TimeSync, TimeSyncFact
from provision.facts.network import Address, AddressesFact, Listening, ListeningFact, NamesFact, Route, RoutesFact
from provision.facts.nvidia_container import NvidiaContainer, NvidiaContainerFact
from provision.facts.rdma import RdmaFact
from provision.facts.records import ReceiptsFact, SimulatedFact
from provision.facts.rescue import Rescue, RescueFact
from provision.facts.system import (
    Boot,
    BootFact,
    Disk,
    DisksFact,
    Kind,
    KindFact,
    LimitsFact,
    NodeKind,
    System,
    SystemFact,
)
from tests.support.modules import load, provide_utils
from tests.support.node.probe import probe_command, probe_output

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ0RUyzHdO2SJ9bHqmNTeUuTTt8SZFVPNT2Tg8Ux6X3x"


def out(text: str, code: int = 0, err: str = "") -> RawOutput:
    return RawOutput(text, code, err)


def test_the_system_is_read_from_os_release():
    text = 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\nVERSION_ID="12"\nprobe_uname=6.1.0 x86_64\n'

    assert SystemFact().parse(out(text)) == System(
        "debian", "12", "Debian GNU/Linux 12", "6.1.0", "x86_64", release="12"
    )


def test_a_container_in_a_virtual_machine_is_a_container():
    """The mount of /proc/sys decides whether sysctls can be set."""
    assert KindFact().parse(out("container=docker\nvm=kvm\nproc_sys=ro,nosuid\n")) == Kind(
        NodeKind.CONTAINER, "docker", sysctls_writable=False
    )
    assert KindFact().parse(out("container=none\nvm=kvm\nsys_vendor=QEMU\n")) == Kind(
        NodeKind.VM, "kvm, QEMU", sysctls_writable=True
    )
    assert KindFact().parse(out("container=none\nvm=none\nsys_vendor=NVIDIA\nproduct_name=DGX A100\n")) == Kind(
        NodeKind.METAL, "NVIDIA DGX A100", sysctls_writable=True
    )


def test_unlimited_limits_are_none():
    row = "Max locked memory         8388608              {}              bytes\n"
    limits = LimitsFact().parse(out(row.format("unlimited") + "== init\n" + row.format("8388608")))

    assert limits.session == {"Max locked memory": None}
    assert limits.init == {"Max locked memory": 8388608}


def test_free_space_is_read_by_path():
    """A file system that allocates inodes on demand counts none."""
    text = "path=/var/lib/docker\npath=/etc\nreadonly=/etc\ndisk 4096 2048000 1536000 100 7\ndisk 512 4096 0 0 0\n"

    assert DisksFact().parse(out(text)) == (
        Disk("/var/lib/docker", 6000, 8000, 7),
        Disk("/etc", 0, 2, None, writable=False),
    )
    assert DisksFact().parse(out(text.replace("disk 512 4096 0 0 0", ""), 1, "stat: it hangs")) == Unknown(
        "stat -f failed: stat: it hangs"
    )


def test_sysctl_values_are_separated_by_single_spaces():
    assert SysctlsFact().parse(
        out("key net.ipv4.ip_local_port_range\n/proc/sys/net/ipv4/ip_local_port_range:32768\t60999\n")
    ) == {"net.ipv4.ip_local_port_range": "32768 60999"}


def test_modules_are_listed():
    assert ModulesFact().parse(out("rdma_rxe 131072 0 - Live 0x0\nib_uverbs 1 1 rdma_rxe, Live 0x0\n")) == {
        "rdma_rxe",
        "ib_uverbs",
    }


def test_only_installed_packages_count():
    text = "ii |docker.io|20.10.24\nrc |perftest|4.5\niU |rdma-core|44.0\nhi |libnccl2|2.18\n"

    assert PackagesFact().parse(out(text)) == {"docker.io": "20.10.24", "libnccl2": "2.18"}


def test_a_missing_package_manager_is_reported():
    assert PackagesFact().parse(out("", 1, "neither dpkg-query nor rpm is there")) == Unknown(
        "the packages cannot be listed: neither dpkg-query nor rpm is there"
    )


def test_time_services_are_listed():
    text = (
        "Id=docker.service\nLoadState=not-found\nActiveState=inactive\n\nId=chrony.service\nActiveState=active\n\n"
        "Id=ntp.service\nActiveState=inactive\nNTPSynchronized=yes\n"
    )

    assert TimeSyncFact().parse(out(text)) == TimeSync(synchronized=True, services=("chrony",))


def test_addresses_of_all_kinds_are_read():
    text = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n"
        "2: eth0@if7    inet 10.77.0.1/24 brd 10.77.0.255 scope global eth0\n"
        "2: eth0    inet6 fe80::1/64 scope link\n"
        "5: tun0    inet 10.8.0.2 peer 10.8.0.1/32 scope global tun0\n"
    )

    assert AddressesFact().parse(out(text)) == (
        Address("lo", "127.0.0.1", 8, "host"),
        Address("eth0", "10.77.0.1", 24, "global"),
        Address("eth0", "fe80::1", 64, "link"),
        Address("tun0", "10.8.0.2", 32, "global"),
    )


def test_routes_have_interface_and_source():
    text = "default via 10.0.2.2 dev ens3\n10.77.0.0/24 dev ens4 proto kernel src 10.77.0.1\nblackhole 10.9.0.0/16\n"

    assert RoutesFact().parse(out(text)) == (
        Route("default", "ens3", ""),
        Route("10.77.0.0/24", "ens4", "10.77.0.1"),
        Route("blackhole", "", ""),
    )


def test_names_that_do_not_resolve_have_no_address():
    text = "name=gpu1\n10.0.0.1   STREAM gpu1\n10.0.0.1   DGRAM\n10.0.0.1   RAW\nname=gpu2\n"

    assert NamesFact().parse(out(text)) == {"gpu1": ("10.0.0.1",), "gpu2": ()}


def test_addresses_are_assigned_to_names_if_all_resolve(tmp_path):
    """All names are resolved in one call; several addresses of a name stay together."""
    answer = "10.0.0.1  STREAM gpu1.example\n10.0.0.1  DGRAM\nfd00::2  STREAM gpu2\n10.0.0.2  STREAM\n10.0.0.2  RAW\n"
    (tmp_path / "getent").write_text(f'#!/bin/sh\n[ "$*" = "ahosts gpu1 gpu2" ] && printf "{answer}"\n')
    (tmp_path / "getent").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PROBE_NAMES": "gpu1 gpu2"}
    done = subprocess.run(["sh", "-c", NamesFact.command], env=environment, capture_output=True, text=True, check=True)

    assert NamesFact().parse(out(done.stdout)) == {"gpu1": ("10.0.0.1",), "gpu2": ("fd00::2", "10.0.0.2")}
    assert isinstance(NamesFact().parse(out(done.stdout.replace("STREAM gpu2", "STREAM"))), Unknown)


def test_listening_sockets_are_read_from_ss():
    text = (
        "LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\nLISTEN 0 128 [::]:22 [::]:*\nLISTEN 0 128 *:2222 *:*\n"
        "LISTEN 0 5 127.0.0.53%lo:53 0.0.0.0:*\nLISTEN 0 5 [fd00::1]:80 [::]:*\nsomething else\n"
    )

    assert ListeningFact().parse(out(text)) == (
        Listening("", 22),
        Listening("", 22),
        Listening("", 2222),
        Listening("127.0.0.53", 53),
        Listening("fd00::1", 80),
    )


def test_listening_sockets_of_both_families_are_read():
    text = "0100007F:0016\n00000000:08AE\n00000000000000000000000000000000:08AE\n01004D0A:08AE\n"

    assert ListeningFact().parse(out(text)) == (
        Listening("127.0.0.1", 22),
        Listening("", 2222),
        Listening("", 2222),
        Listening("10.77.0.1", 2222),
    )


def test_an_rdma_device_is_parsed_with_its_gids():
    text = (
        "device\tmlx5_0\tmlx5_core\nnetdev\tens1np0\nport\t1\tEthernet\t4: ACTIVE\t5: LinkUp\t100 Gb/sec (4X EDR)\n"
        "gid\t3\t0000:0000:0000:0000:0000:ffff:0a4d:0001\tRoCE v2\tens1np0\n"
        "gid\t0\tfe80:0000:0000:0000:0000:00ff:fe00:0001\tIB/RoCE v1\tens1np0\n"
        "device\trxe0\t\nnetdev\tens4\nport\t1\tEthernet\t1: DOWN\t3: Disabled\t2.5 Gb/sec\n"
        "uverbs\tuverbs0\tmlx5_0\nuverbs\tuverbs1\trxe0\nnode\tuverbs0\nnode\trdma_cm\npci\t0000:3b:00.0\nofed\tMLNX_OFED-5.8:\n"
    )
    stack = RdmaFact().parse(out(text))
    card, soft = stack.devices

    assert (card.active, card.soft, card.uverbs, card.netdevs) == (True, False, "uverbs0", ("ens1np0",))
    assert [(gid.index, gid.routable_ipv4) for gid in card.ports[0].gids] == [(0, False), (3, True)]
    assert (soft.active, soft.soft, soft.ports[0].state) == (False, True, "DOWN")
    assert (stack.pci_cards, stack.nodes, stack.ofed) == (1, ("uverbs0", "rdma_cm"), "MLNX_OFED-5.8")


def test_a_broken_driver_is_not_a_node_without_gpus():
    """Without nvidia-smi no GPU is usable; if nvidia-smi fails, the GPUs are unknown."""
    failed = GpusFact().parse(out("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9))

    assert GpusFact().parse(out("", 127, "there is no nvidia-smi")) == ()
    assert isinstance(failed, Unknown)
    assert "communicate" in failed.reason


def test_gpus_on_the_bus_are_counted():
    assert GpuPciFact().parse(out("0000:06:00.0\n0000:07:00.0\n")) == ("0000:06:00.0", "0000:07:00.0")


def test_a_missing_docker_unit_differs_from_a_stopped_one():
    missing = DockerServiceFact().parse(
        out("Id=docker.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n")
    )
    stopped = DockerServiceFact().parse(
        out(
            "Id=docker.service\nLoadState=loaded\nActiveState=failed\nUnitFileState=enabled\n\nId=ntp.service\nclient=yes\n"
        )
    )

    assert not missing.loaded
    assert (stopped.loaded, stopped.active, stopped.enabled, stopped.client) == (True, "failed", "enabled", True)
    assert not stopped.snap
    assert DockerServiceFact().parse(out("Id=docker.service\nLoadState=not-found\n\nclient=yes\nsnap=yes\n")).snap


def engine(**sections):
    """Return the probe program's output about the engine."""
    return out(json.dumps({"engine": sections}))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"error": "the engine does not run"}, "docker info failed: the engine does not run"),
        ({"hung": 25}, "hung: docker info (no end within 25 s)"),
        ({"ServerVersion": ""}, "docker info failed: the engine reported no version"),
        (None, "docker info failed: the engine reported no version"),
    ],
)
def test_a_stopped_engine_is_unknown_with_the_reason(said, reason):
    assert DockerInfoFact().parse(engine(info=said)) == Unknown(reason)


def test_without_python_the_engine_is_unknown():
    for fact in (DockerInfoFact(), ImageFact(), ContainerFact()):
        assert fact.parse(out("", 127, "there is no python3 on the node")) == Unknown("there is no python3 on the node")


def test_docker_info_is_read():
    info = DockerInfoFact().parse(
        engine(
            info={
                "ServerVersion": "20.10.24", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker",
                "Runtimes": {"runc": {}, "nvidia": {}}, "RegistryConfig": {"Mirrors": ["https://m/"]},
                "DefaultAddressPools": None, "ContainersRunning": 2,
            }
        )
    )  # fmt: skip

    assert (info.version, info.runtimes, info.mirrors) == ("20.10.24", ("nvidia", "runc"), ("https://m",))


def test_daemon_json_and_certificates_are_read():
    text = 'exists=yes\n{\n "live-restore": true\n}\n== certificate r:5000\n-----BEGIN CERTIFICATE-----\nAAA\n'
    config = DockerConfigFact().parse(out(text))

    assert config.options == {"live-restore": True}
    assert "AAA" in config.certificates["r:5000"]


def test_an_invalid_daemon_json_has_a_reason():
    """An empty file is valid, as for docker."""
    assert "malformed" in DockerConfigFact().parse(out('exists=yes\n{"a": }\n')).error
    assert "Expected `object`, got `array`" in DockerConfigFact().parse(out("exists=yes\n[]\n")).error
    assert DockerConfigFact().parse(out("exists=yes\n\n")).options == {}
    assert not DockerConfigFact().parse(out("")).exists


def test_a_missing_image_differs_from_a_silent_engine():
    parsed = {"Id": "sha256:1", "RepoDigests": ["r/t@sha256:2"], "RepoTags": ["r/t:1"]}

    assert ImageFact().parse(engine(image=None)) is None
    assert ImageFact().parse(engine(image=parsed)) == Image("sha256:1", ("r/t@sha256:2",), ("r/t:1",))
    assert isinstance(ImageFact().parse(engine(image={"error": "connection refused"})), Unknown)


def test_a_container_with_a_job_is_busy():
    container = ContainerFact().parse(
        engine(
            container={
                "pid": 10, "status": "running", "exit_code": 0, "image_id": "sha256:1", "image": "r/t:1",
                "labels": {"provision.profile": "default"}, "privileged": False, "network": "host",
                "binds": ["/a:/b"], "shm_size": 1024, "restarts": 1,
                "limits": "Max locked memory         unlimited            unlimited            bytes\n",
                "devices": ["infiniband/uverbs0", "nvidia0"], "deleted": ["/b", "/docker"],
                "processes": [[10, "docker-init"], [11, "container-entry"], [12, "sshd"], [13, "python3"]],
            }
        )
    )  # fmt: skip

    assert isinstance(container, Container)
    assert container.running
    assert container.busy == (Process(13, "python3"),)
    assert container.limits == {"Max locked memory": None}
    assert container.devices == ("infiniband/uverbs0", "nvidia0")
    assert container.deleted == (DeletedMount("/a", "/b"),)


def test_a_missing_container_differs_from_a_silent_engine():
    assert ContainerFact().parse(engine(container=None)) is None
    assert isinstance(ContainerFact().parse(engine(container={"hung": 25})), Unknown)


def test_the_public_half_of_container_ssh_is_read():
    text = (
        "mode 600 id_ed25519\nmode 644 known_hosts\n"
        f"\n:ssh_host_ed25519_key.pub:ssh-ed25519 {KEY} root@x\n\n:id_ed25519.pub:ssh-ed25519 {KEY}\n"
    )
    outputs = (
        f"known_hosts:# a comment\nknown_hosts:[gpu1]:2222,[10.0.0.1]:2222 ssh-ed25519 {KEY} gpu1\n"
        f'authorized_keys:no-pty,command="x y" ssh-ed25519 {KEY} gpu1\n'
    )
    ssh, trust = ContainerSshFact().parse(out(text)), ContainerTrustFact().parse(out(outputs))

    assert ssh.files == {"id_ed25519": "600", "known_hosts": "644"}
    assert ssh.host_key == ssh.client_key == f"ssh-ed25519 {KEY}"
    assert trust.known_hosts["[gpu1]:2222"] == trust.known_hosts["[10.0.0.1]:2222"] == (f"ssh-ed25519 {KEY}",)
    assert trust.authorized == (f"ssh-ed25519 {KEY}",)
    assert trust.authorized_nodes == {"gpu1": (f"ssh-ed25519 {KEY}",)}
    assert trust.known_nodes == ("gpu1",)
    assert ContainerSshFact().parse(out("")) is None
    assert ContainerTrustFact().parse(out("")) == ContainerTrust({}, ())


def test_a_key_without_a_node_name_is_read():
    text = f"known_hosts:[gpu9]:2222,x ssh-ed25519 {KEY}\nauthorized_keys:ssh-ed25519 {KEY}\n"
    trust = ContainerTrustFact().parse(out(text))

    assert trust.known_nodes == ("[gpu9]:2222",)
    assert list(trust.authorized_nodes) == [fingerprint(f"ssh-ed25519 {KEY}")]


def test_unsafe_key_files_are_ignored(tmp_path):
    """Links are not followed, pipes do not block, and only the first line is read."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (tmp_path / "secret").write_text(f"ssh-ed25519 {KEY} of another file\n")
    (tmp_path / "authorized_keys").write_text(f"ssh-ed25519 {KEY} gpu1\n")
    (keys / "id_ed25519.pub").symlink_to(tmp_path / "secret")
    (keys / "ssh_host_ed25519_key.pub").write_text(f"ssh-ed25519 {KEY} x\x0cauthorized_keys:y\nmode 600 z\n")
    (keys / "mode 777 planted").touch()

    def probe(fact):
        command = probe_command(tmp_path / "program", f"s,/var/lib/provision/container_ssh,{tmp_path},")
        return getattr(parse(probe_output(command, request([fact], read_only=True)), [fact]), fact.name)

    parsed, trust = probe(ContainerSshFact()), probe(ContainerTrustFact())
    (keys / "ssh_host_ed25519_key.pub").unlink()
    os.mkfifo(keys / "ssh_host_ed25519_key.pub")
    piped = probe(ContainerSshFact())

    assert parsed.client_key == ""
    assert parsed.host_key == f"ssh-ed25519 {KEY}"
    assert trust.authorized == (f"ssh-ed25519 {KEY}",)
    assert list(parsed.files) == ["authorized_keys"]
    assert piped.host_key == ""


def test_fingerprints_match_ssh_keygen():
    assert fingerprint(f"ssh-ed25519 {KEY}").startswith("SHA256:")
    assert len(fingerprint(f"ssh-ed25519 {KEY}")) == 50
    assert fingerprint("") == ""


def test_toolkit_programs_are_read():
    assert NvidiaContainerFact().parse(out("hook=/usr/bin/h\nruntime=\nctk=\ncdi /etc/cdi/nvidia.yaml\n")) == (
        NvidiaContainer("/usr/bin/h", "", "", ("/etc/cdi/nvidia.yaml",))
    )


def test_valid_and_invalid_receipts_are_read():
    parsed = ReceiptsFact().parse(
        out('a.json:{\na.json: "packages": {"x": "1"},\na.json: "units": ["u"]\na.json:}\nb.json:{"half\nc.json:[]\n')
    )

    assert parsed["a"].names("packages") == ("x",)
    assert parsed["a"].names("units") == ("u",)
    assert "malformed" not in parsed["a"].error
    assert "not a valid receipt" in parsed["b"].error
    assert "Expected `object`, got `array`" in parsed["c"].error


def test_receipts_are_separated_by_file_name():
    """File names with pattern characters, a file in two parts, foreign lines, and a missing last line end."""
    parsed = ReceiptsFact().parse(out('a+b.json:{"x":\naab.json:{}\nnothing\na+b.json: "a+b.json:"}\nc.json:{"y":1}'))

    assert {role: receipt.content for role, receipt in parsed.items()} == {
        "a+b": {"x": "a+b.json:"},
        "aab": {},
        "c": {"y": 1},
    }


@pytest.mark.parametrize(("opened", "closed"), [('{"x":', "}"), ("[", "]")])
def test_a_receipt_nested_too_deeply_is_invalid(opened, closed):
    inside, beyond = (
        ReceiptsFact().parse(out(f'a.json:{{"x":{opened * n}0{closed * n}}}\n'))["a"]
        for n in (DEPTH_LIMIT - 1, DEPTH_LIMIT)
    )

    assert inside.content
    assert not inside.error
    assert "levels of nesting" in beyond.error


def test_a_malformed_receipt_is_invalid():
    for depth in (70, 600, 100_000):
        parsed = ReceiptsFact().parse(out('a.json:{"x": ' + "[" * depth + "]" * depth + "}\n"))
        assert parsed["a"].error
        assert not parsed["a"].content


def test_simulated_components_are_listed():
    assert SimulatedFact().parse(out("nvidia-smi=NVIDIA driver and GPUs\n")) == {"nvidia-smi": "NVIDIA driver and GPUs"}


def test_equal_trust_files_are_parsed_once():
    facts = (ContainerSshFact(), ContainerTrustFact())
    trust = "\n".join(f"known_hosts:[gpu{n}]:2222 ssh-ed25519 {KEY} gpu{n}" for n in range(20))

    def node(number: int, trust: str) -> NodeFacts:
        token = f"{number:032x}"
        own = f"mode 600 id_ed25519\n\n:id_ed25519.pub:ssh-ed25519 {KEY}{number}"
        outputs = {"container_ssh": own, "container_trust": trust}
        parts = [f"{token} out {n}\n{out}\n{token} err {n}\n\n{token} end {n} 0" for n, out in outputs.items()]
        return parse("\n".join([f"provision-probe 1 {token}", *parts, ""]), facts)

    first, second, other = node(1, trust), node(2, trust), node(3, trust.replace("gpu7", "gpu8"))

    assert first.container_trust is second.container_trust
    assert first.container_ssh.client_key != second.container_ssh.client_key
    assert "gpu7" in first.container_trust.known_nodes
    assert "gpu7" not in other.container_trust.known_nodes


def test_interfaces_have_the_address_of_their_card():
    """The last address in the path is that of the card; a virtual interface has none."""
    text = (
        "net\tens4\t9000\t/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0\t2\t1\t2\n"
        "net\tens5\t1500\t/sys/devices/pci0000:00/0000:00:03.0/virtio0\t0\t0\t0\n"
        "net\tbond0\t1500\t\t0\t\t0\n"
        "memory\t16777216\nhugepages\t2048kB\t512\ngovernor\tpowersave\ngovernor\tperformance\n"
    )

    assert FabricFact().parse(out(text)) == Fabric(
        {
            "ens4": Interface(9000, "0000:3b:00.0", 2, 1, 2),
            "ens5": Interface(1500, "0000:00:03.0", 0, 0, 0),
            "bond0": Interface(1500, "", 0, None, 0),
        },
        {2048: 512},
        frozenset({"powersave", "performance"}),
        16777216,
    )


@pytest.mark.parametrize(
    "line",
    [
        "memory\t16 GiB",
        "memory",
        "net\tens4;reboot\t9000\t\t0\t0\t0",
        "net\tens4\t9000x\t\t0\t0\t0",
        "net\tens4\t99999999999\t\t0\t0\t0",
        "net\tens4\t9000",
        "hugepages\t2048kB\t-1",
        "hugepages\t\u0662kB\t1",
        "governor\tper formance",
        "governor",
        "boot\tlilo",
        "boot",
        "options",
        "card\t/sys/devices/virtual\t0x15b3\t0x020000\t5810",
        "card\t/sys/devices/pci0000:00/0000:00:04.0",
        "lower\tbond0\t../x",
        "lower",
        "name\t0000:3b:00.0",
        "name\t0000:3b:00.0\trail 0",
        "name\t3b:00.0\trail0",
    ],
)
def test_a_line_of_another_form_is_no_setting(line):
    assert FabricFact().parse(out(line)) == Fabric()


@pytest.mark.parametrize("uptime", ["-5", "-1e300", "1e300", "inf", "nan", "x"])
def test_an_uptime_that_no_node_has_is_unknown(uptime):
    """The end of a kernel's trial is computed from it: an apply would wait for it without an end."""
    assert isinstance(BootFact().parse(out(f"uptime={uptime}\nboot_id=1\n")), Unknown)
    assert BootFact().parse(out("uptime=5.9\nboot_id=1\n")) == Boot(5, "1")


def test_cards_are_read_with_their_bridges():
    """A bond has the cards below it; a card without PCI Express, or without setpci, has no read request."""
    root = "/sys/devices/pci0000:00"
    text = (
        "net\tens4\t9000\t/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0\t0\t0\t0\n"
        "net\tbond0\t9000\t\t0\t0\t0\nlower\tbond0\tens4\nlower\tbond0\tens9\nnet\tbond0.5\t9000\t\t0\t0\t0\n"
        "lower\tbond0.5\tbond0\n"
        f"card\t{root}/0000:00:01.0/0000:01:00.0\t0x15b3\t0x020000\t5810\n"
        f"card\t{root}/0000:00:02.0/0000:02:00.0\t0x10de\t0x030200\t\n"
        f"card\t{root}/0000:00:03.0\t0x1af4\t0x020000\tffff\n"
        f"card\t{root}/0000:00:04.0\t0x14e4\t0x020000\t2810\nrdma\t{root}/0000:00:04.0\nvfio\t0000:02:00.0\nvfio\tx\n"
    )

    facts = FabricFact().parse(out(text))

    assert facts.cards == {
        "0000:01:00.0": Card(("0000:00:01.0",), peer=True, max_read_request=4096),
        "0000:02:00.0": Card(("0000:00:02.0",), peer=True),
        "0000:00:03.0": Card(),
        "0000:00:04.0": Card(peer=True, max_read_request=512),
    }
    assert facts.cards_of(["bond0.5"]).keys() == facts.cards_of(["ens4", "ens9"]).keys() == {"0000:01:00.0"}
    assert facts.assigned == ("0000:02:00.0",)


def test_the_defaults_of_roce_ports_are_read():
    """As configfs shows them; a line of another form is none."""
    text = "roce\tmlx5_0\t1\tIB/RoCE v1\t106\nroce\trxe0\t1\tRoCE v2\t\nroce\trxe1\t1\tx\t0\nroce\trxe2\n"

    assert FabricFact().parse(out(text)).roce == {("mlx5_0", 1): ("v1", 106), ("rxe0", 1): ("v2", None)}


def test_names_of_interfaces_are_read_from_the_files_of_the_role(tmp_path):
    """As the role writes them; files of others are none."""
    provide_utils()
    text = load("fabric_host", "fabric_host_names").TEXT
    (tmp_path / "05-provision-rail0.link").write_text(text.format("0000:3b:00.0", "rail0"))
    (tmp_path / "05-provision-rail1.link").write_text("Name=rail1\n")
    (tmp_path / "10-other.link").write_text(text.format("0000:86:00.0", "rail2"))
    command = FabricFact.command.replace("/etc/systemd/network", str(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=60)

    facts = FabricFact().parse(out(done.stdout + "net\tens4\t1500\t/sys/0000:3b:00.0/net\t0\t0\t0\n"))
    assert facts.names == {"rail0": "0000:3b:00.0"}
    assert (facts.at("0000:3b:00.0"), facts.at("0000:86:00.0")) == ("ens4", "")


DEBIAN_MENU = (
    "menuentry 'Debian' {\n\tlinux\t/boot/vmlinuz-6.1.0-49-amd64 root=UUID=0 ro  iommu=pt quiet\n"
    "\tlinux\t/boot/vmlinuz-6.1.0-48-amd64 root=UUID=0 ro iommu=pt\n"
    "\tlinux\t/boot/vmlinuz-6.1.0-48-amd64 root=UUID=0 ro single\n\tlinux /boot/memtest86+x64.bin x"
)


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (DEBIAN_MENU, {"root=UUID=0", "ro", "iommu=pt"}),
        ("linux /vmlinuz-5.14\noptions root=UUID=0 ro pci=x\noptions root=UUID=0 pci=x", {"root=UUID=0", "pci=x"}),
        ("kernelopts=root=UUID=0 iommu=pt \noptions $kernelopts $x", {"root=UUID=0", "iommu=pt", "$x"}),
        ("\tlinux16 /vmlinuz-3.10.0-1160.el7.x86_64 root=UUID=0 ro", {"root=UUID=0", "ro"}),
        ("", None),
    ],
)
def test_the_arguments_of_all_entries_of_the_boot_menu_are_read(lines, arguments):
    """From GRUB's own menu, or from files of entries; recovery entries and other programs do not count."""
    facts = FabricFact().parse(out(f"arguments\tBOOT_IMAGE=/boot/vmlinuz-6.1 iommu=pt\nboot\tgrubby\n{lines}\n"))

    assert facts.boot_arguments == arguments
    assert facts.kernel_arguments == {"BOOT_IMAGE=/boot/vmlinuz-6.1", "iommu=pt"}
    assert facts.boot_tool == "grubby"


def test_this_machine_has_interfaces():
    """The command itself, without the loopback interface."""
    done = subprocess.run(["sh", "-c", FabricFact.command], capture_output=True, text=True, check=True, timeout=60)

    assert (done.stderr, "lo" in FabricFact().parse(out(done.stdout)).interfaces) == ("", False)
    assert FabricFact().parse(out(done.stdout)).memory_kib == int(Path("/proc/meminfo").read_text().split()[1])
    assert FabricFact().parse(out(done.stdout)).kernel_arguments == {*Path("/proc/cmdline").read_text().split()}
    names = {path.name for path in Path("/sys/class/net").iterdir()}
    assert FabricFact().parse(out(done.stdout)).interfaces.keys() == {
        name for name in names if name != "lo" and not name.startswith("veth")
    }


def test_the_record_of_the_last_change_is_read():
    """It is a file of the node, which anybody with root may have edited."""
    text = (
        '{"state": "reverted", "what": "rules of ufw", "cause": "limit", "seconds": 45, "files": ["/etc/x"], "at": 1}'
    )

    assert RescueFact().parse(out(text)) == Rescue("reverted", "rules of ufw", "limit", 45, ("/etc/x",))
    partial = text.replace('"at": 1', '"is_complete": false')
    assert not RescueFact().parse(out(partial)).is_complete
    assert RescueFact().parse(out("")) == Rescue()
    assert isinstance(RescueFact().parse(out('{"state": "other", "what": "x"}')), Unknown)
    assert isinstance(RescueFact().parse(out("{")), Unknown)
