"""A SIMULATED node's answers to the probe, written in the formats of the real programs.

What nvidia-smi prints comes from the lab's stand-in, which renders a machine that is described as facts. All else is
written here as a GPU server prints it that an apply has converged: packages, modules, RDMA devices, docker, container.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks import described_hardware as hardware

__all__ = ["DIGEST", "IMAGE", "Description", "answer", "data_address", "name_of", "preflight_answer"]

KERNEL = "6.1.0-28-amd64"
DRIVER = "550.90.07"
IMAGE = "registry.example:5000/train:24.10"
DIGEST = "sha256:" + "2" * 64
_LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max cpu time              unlimited            unlimited            seconds   \n"
    "Max stack size            67108864             67108864             bytes     \n"
    "Max open files            1048576              1048576              files     \n"
    "Max locked memory         unlimited            unlimited            bytes     \n"
)
_OS_RELEASE = (
    'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\n'
    'VERSION="12 (bookworm)"\nVERSION_CODENAME=bookworm\nID=debian\n'
)
_CERTIFICATE = "-----BEGIN CERTIFICATE-----\n" + ("M" * 64 + "\n") * 20 + "-----END CERTIFICATE-----\n"


def name_of(number: int) -> str:
    """The inventory's name of node `number`, counted from 0."""
    return f"gpu{number + 1:04d}"


def data_address(number: int) -> str:
    """Its address on the data network."""
    return f"10.77.{number // 250}.{number % 250 + 1}"


@dataclass(frozen=True)
class Description:
    """What differs between nodes."""

    number: int
    total: int
    """How many nodes the cluster has: each knows the keys of all."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Fact -> what its command prints, for what is not the same on all nodes."""


def answer(node: Description, request: bytes) -> str:
    """Return what the probe prints on the node for a request."""
    asked = json.loads(request)
    token, variables, known = asked["token"], asked["environment"], frozenset(asked["known"])
    parts = [f"provision-probe 1 {token}"]
    for fact, *_ in asked["commands"]:
        out = FACTS[fact](node, variables) if fact in FACTS else node.outputs.get(fact, "")
        word, out = ("same", digest) if known and (digest := _digest(out)) in known else ("out", out)
        parts.append(f"{token} {word} {fact}\n{out}\n{token} err {fact}\n\n{token} end {fact} 0")
    return "\n".join(parts) + "\n"


def preflight_answer(request: bytes) -> str:
    """What the preflight's program prints: the node's repositories have every package, and the registry the image."""
    asked = json.loads(request)
    packages = dict.fromkeys(asked["packages"], "1.0-simulated")
    install = [{"name": name, "version": version} for name, version in packages.items()]
    image = {"code": "ok", "reason": ""} if asked["image"] else None
    return json.dumps({"packages": packages, "sources": [], "install": install, "conflict": "", "image": image}) + "\n"


@functools.lru_cache(maxsize=256)
def _digest(out: str) -> str:
    return hashlib.sha256(out.encode()).hexdigest()


def _names(_node: Description, variables: Mapping[str, str]) -> str:
    return _resolved(variables.get("PROBE_NAMES", ""))


@functools.lru_cache(maxsize=4)
def _resolved(names: str) -> str:
    lines = []
    for name in names.split():
        digits = re.fullmatch(r"gpu(\d+)", name)
        address = data_address(int(digits[1]) - 1) if digits else "192.0.2.1"
        lines += [f"name={name}", f"{address:<15} STREAM {name}", f"{address:<15} DGRAM  ", f"{address:<15} RAW    "]
    return "\n".join(lines)


def _sysctls(_node: Description, variables: Mapping[str, str]) -> str:
    values = {"kernel.numa_balancing": 0, "net.core.somaxconn": 4096, "vm.max_map_count": 262144}
    keys = variables.get("PROBE_SYSCTLS", "").split()
    lines = [f"/proc/sys/{key.replace('.', '/')}:{values.get(key, 16777216)}" for key in keys]
    return "\n".join([*(f"key {key}" for key in keys), *lines])


def _disks(_node: Description, variables: Mapping[str, str]) -> str:
    paths = variables.get("PROBE_PATHS", "").split()
    rows = ["disk 4096 460800000 409600000 117440512 116391936"] * len(paths)
    return "\n".join([*(f"path={path}" for path in paths), *rows])


def _addresses(node: Description, _variables: Mapping[str, str]) -> str:
    tail = "valid_lft forever preferred_lft forever"
    rows = [f"1: lo    inet 127.0.0.1/8 scope host lo\\       {tail}"]
    own = f"inet {data_address(node.number)}/16 brd 10.77.255.255 scope global bond0"
    rows += [f"2: bond0    {own}\\       {tail}", f"2: bond0    inet6 fe80::1/64 scope link \\       {tail}"]
    subnet = f"{node.number // 250}.{node.number % 250 + 1}/16"
    rows += [f"{3 + i}: ib{i}    inet 10.{100 + i}.{subnet} scope global ib{i}\\  {tail}" for i in range(8)]
    return "\n".join(rows)


def _listening(node: Description, _variables: Mapping[str, str]) -> str:
    parts = [int(part) for part in data_address(node.number).split(".")]
    return "00000000:0016\n" + "".join(f"{part:02X}" for part in reversed(parts)) + ":08AE\n0100007F:18EB"


@functools.cache
def _key(node: int, kind: str) -> str:
    blob = hashlib.sha256(f"SIMULATED {kind} {node}".encode()).digest()
    raw = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + blob
    return "ssh-ed25519 " + base64.b64encode(raw).decode()


def _container_ssh(node: Description, _variables: Mapping[str, str]) -> str:
    lines = [f"mode 644 {name}" for name in ("authorized_keys", "known_hosts", "ssh_config", "sshd_config")]
    lines += ["mode 600 ssh_host_ed25519_key", "mode 600 id_ed25519"]
    lines.append(f"\n:ssh_host_ed25519_key.pub:{_key(node.number, 'host')}")
    lines.append(f"\n:id_ed25519.pub:{_key(node.number, 'client')}")
    return "\n".join(lines)


def _container_trust(node: Description, _variables: Mapping[str, str]) -> str:
    return _keys_of_all(node.total)


@functools.lru_cache(maxsize=4)
def _keys_of_all(total: int) -> str:
    where = [f"[{name_of(i)}]:2222,[{data_address(i)}]:2222" for i in range(total)]
    known = [f"known_hosts:{where[i]} {_key(i, 'host')} {name_of(i)}" for i in range(total)]
    return "\n".join([*known, *(f"authorized_keys:{_key(i, 'client')} {name_of(i)}" for i in range(total))])


def _modules() -> str:
    ours = ["nvidia_peermem", "nvidia_uvm", "nvidia", "mlx5_ib", "mlx5_core", "ib_uverbs", "ib_core", "rdma_cm"]
    names = [*ours, *(f"module_{i}" for i in range(120))]
    return "\n".join(f"{name} {16384 * (i + 1)} 1 - Live 0x0000000000000000" for i, name in enumerate(names))


def _packages() -> str:
    ours = {
        "docker.io": "20.10.24+dfsg1-1+deb12u1", "containerd": "1.6.20~ds1-1+deb12u1", "rdma-core": "44.0-2",
        "nvidia-container-toolkit": "1.17.8-1", "libnvidia-container1": "1.17.8-1", "perftest": "4.5+0.20-1",
    }  # fmt: skip
    others = {f"lib-simulated-package-{i}": f"{i}.4.2+dfsg-{i % 7}+deb12u1" for i in range(650)}
    return "\n".join(f"ii |{name}|{version}" for name, version in {**ours, **others}.items())


def _kernels() -> str:
    below = f"/lib/modules/{KERNEL}/modules.dep"
    core = "kernel/drivers/infiniband/core/ib_core.ko"
    return "\n".join(
        [
            f"kernel\t{KERNEL}\trunning\tyes",
            f"{below}:{core}:",
            f"{below}:updates/dkms/nvidia.ko:",
            f"{below}:updates/dkms/nvidia-peermem.ko: {core} updates/dkms/nvidia.ko",
        ]
    )


def _nvidia_modules() -> str:
    lines = [f"loaded=NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build"]
    for module in ("nvidia", "nvidia_peermem"):
        file = module.replace("_", "-")
        lines.append(f"{module}.filename=       /lib/modules/{KERNEL}/updates/dkms/{file}.ko")
        lines += [f"{module}.version=        {DRIVER}", f"{module}.license=        Dual MIT/GPL"]
        lines.append(f"{module}.srcversion=     0123456789ABCDEF0123456")
    return "\n".join([*lines, "dkms=yes"])


def _managed(node: Description, _variables: Mapping[str, str]) -> str:
    """What the probe's own program prints: what stands in `told`, and what the docker engine says."""
    nothing = {"sealed": {}, "observed": {}, "jobs": [], "hung": []}
    seen = json.loads(node.outputs["managed"]) if "managed" in node.outputs else nothing
    repository = IMAGE.rpartition(":")[0]
    image = {"Id": "sha256:" + "1" * 64, "RepoDigests": [f"{repository}@{DIGEST}"], "RepoTags": [IMAGE]}
    engine = {"info": _docker_info(), "image": image, "container": _container(4700 + node.number)}
    return json.dumps({**seen, "engine": engine})


def _docker_info() -> dict[str, Any]:
    return {
        "ServerVersion": "20.10.24", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker",
        "CgroupDriver": "systemd", "CgroupVersion": "2", "LiveRestoreEnabled": True,
        "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
        "DefaultRuntime": "runc", "RegistryConfig": {"Mirrors": None},
        "DefaultAddressPools": [{"Base": "172.30.0.0/16", "Size": 24}], "ContainersRunning": 1,
    }  # fmt: skip


def _docker_config() -> str:
    options = {
        "live-restore": True, "log-opts": {"max-size": "100m", "max-file": "3"}, "log-driver": "json-file",
        "default-address-pools": [{"base": "172.30.0.0/16", "size": 24}],
    }  # fmt: skip
    return f"exists=yes\n{json.dumps(options, indent=2)}\n== certificate registry.example:5000\n{_CERTIFICATE}"


def _container(pid: int) -> dict[str, Any]:
    devices = [*(f"infiniband/uverbs{i}" for i in range(8)), "infiniband/rdma_cm", *(f"nvidia{i}" for i in range(8))]
    return {
        "pid": pid, "status": "running", "exit_code": 0, "image_id": "sha256:" + "1" * 64, "image": IMAGE,
        "labels": {"provision.profile": "default"}, "privileged": False, "network": "host",
        "binds": ["/var/lib/provision/container_ssh:/etc/provision/ssh:ro"], "shm_size": 34359738368, "restarts": 0,
        "limits": _LIMITS, "devices": devices, "deleted": [],
        "processes": [[pid, "docker-init"], [pid + 1, "container-entry"], [pid + 2, "sshd"]],
    }  # fmt: skip


def _constant(text: Callable[[], str] | str) -> Callable[[Description, Mapping[str, str]], str]:
    made = functools.cache(text if callable(text) else lambda: text)
    return lambda _node, _variables: made()


FACTS: dict[str, Callable[[Description, Mapping[str, str]], str]] = {
    "system": _constant(f"{_OS_RELEASE * 2}probe_uname={KERNEL} x86_64\nprobe_python3=/usr/bin/python3"),
    "kind": _constant("container=none\nvm=none\nsys_vendor=SIMULATED\nproduct_name=HGX H100"),
    "boot": _constant("uptime=864000.12\nboot_id=5f0c6e7a-0000-4000-8000-000000000000"),
    "clock": lambda _node, _variables: f"{time.time():.0f}",
    "hardware": _constant("cpus=192\nmemory=2113600000"),
    "limits": _constant(f"{_LIMITS}== init\n{_LIMITS}"),
    "disks": _disks,
    "sysctls": _sysctls,
    "modules": _constant(_modules),
    "packages": _constant(_packages),
    "time_sync": _constant(
        "Id=docker.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\n"
        "Id=chrony.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nclient=yes\nNTPSynchronized=yes"
    ),
    "addresses": _addresses,
    "routes": _constant("default via 10.77.255.254 dev bond0 \n10.77.0.0/16 dev bond0 proto kernel scope link"),
    "names": _names,
    "listening": _listening,
    "fabric": _constant(
        "net\tbond0\t9000\t\t0\t0\t0\nhugepages\t2048kB\t0\nhugepages\t1048576kB\t0\ngovernor\tperformance"
    ),
    "kubernetes_host": _constant(
        "version=1.7.27\nservice=active\nkubelet=inactive\nmodule=overlay\nconfig=/etc/containerd/config.toml\n"
        'disabled_plugins = ["cri"]'
    ),
    "rdma": _constant(hardware.rdma),
    "rdma_counters": _constant(hardware.counters),
    "gpus": _constant(hardware.gpus),
    "gpu_pci": _constant(hardware.gpu_pci),
    "nvlinks": _constant(hardware.nvlinks),
    "fabric_manager": _constant("switches=4\nunit=active"),
    "xids": _constant("uptime=864000.12\nfirst [    0.000000] Linux version 6.1.0"),
    "pci_links": _constant(hardware.pci_links),
    "topology": lambda _node, variables: hardware.topology() if variables.get("PROBE_TOPOLOGY") else "not asked for",
    "kernels": _constant(_kernels),
    "nvidia_modules": _constant(_nvidia_modules),
    "nvidia_driver": _constant(
        "\n".join(f"device=0000:{bus:02x}:00.0 0x2330 0x030200" for bus in range(0x10, 0x18))
        + f"\ntree=nvidia {DRIVER} yes\nblocked=yes\nActiveState=active\nUnitFileState=enabled"
    ),
    "peer_memory": _constant(
        f"nvidia_peermem 16384 0 - Live 0x0\nib_uverbs 1 2 nvidia_peermem,mlx5_ib, Live 0x0\n"
        f"ib_core 1 9 nvidia_peermem,ib_uverbs, Live 0x0\nversion.nvidia_peermem={DRIVER}\n"
        "nvidia_peermem.srcversion=0123456789ABCDEF0123456\nprovider=ib_core"
    ),
    "dma_buf": _constant(
        f"uverbs=yes\nsymbols=1\nconfig=/boot/config-{KERNEL}\nCONFIG_DMA_SHARED_BUFFER=y\nCONFIG_PCI_P2PDMA=y\nlibrary=yes"
    ),
    "signing": _constant("variable=   0\nenforce=N\nlockdown=[none] integrity confidentiality"),
    "pci_routing": _constant(hardware.pci_routing),
    "docker_config": _constant(_docker_config),
    "nvidia_container": _constant(
        "hook=/usr/bin/nvidia-container-runtime-hook\nruntime=/usr/bin/nvidia-container-runtime\nctk=/usr/bin/nvidia-ctk"
    ),
    "nccl": _constant("running\ncontainer=libnccl.so.2.27.5"),
    "managed": _managed,
    "container_ssh": _container_ssh,
    "container_trust": _container_trust,
    "simulated": _constant("everything=a node of a benchmark (SIMULATED)"),
}
"""Fact -> what its command prints; facts with the same command share an entry."""
NO_OUTPUT = frozenset(
    {
        *("receipts", "kernel_upgrade", "peer_status", "slurm", "firewall", "package_proxy", "rescue", "selinux"),
        "selinux_denials",
    }
)
"""Facts whose commands print nothing on a node to which nothing was applied, without SELinux and firewall."""
