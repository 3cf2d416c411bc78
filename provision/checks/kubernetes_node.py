"""Whether a node is ready for a kubelet: what the profile ``kubernetes`` of ``provision verify`` requires."""

from __future__ import annotations

from provision.checks.requirements import NONE, Need
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts.kubernetes import MODULES, SYSCTLS

PORTS = (10248, 10250, 10256)
"""kubelet's health and API, and kube-proxy's health; all nodes use them."""
_ON = "1"


def _containerd(scene: Scene) -> tuple[str, Verdict]:
    host = known(scene.facts.kubernetes_host)
    if not host.version:
        return NONE, fail("profile.containerd.missing")
    if host.service != "active":
        return host.version, fail("profile.containerd.stopped", state=host.service or "unknown")
    return host.version, passed("profile.version", component="containerd", version=host.version)


def _cri(scene: Scene) -> tuple[str, Verdict]:
    host = known(scene.facts.kubernetes_host)
    if not host.version:
        return NONE, skip("profile.containerd.missing")
    if host.cri_disabled:
        return "disabled", fail("profile.cri.disabled")
    return "enabled", passed("profile.cri.enabled")


def _cgroups(scene: Scene) -> tuple[str, Verdict]:
    """A runtime without SystemdCgroup makes a second cgroup manager beside systemd."""
    host = known(scene.facts.kubernetes_host)
    if not host.version:
        return NONE, skip("profile.containerd.missing")
    names = sorted({host.default_runtime, *host.runtimes} & {host.default_runtime, "runc", "nvidia"})
    wrong = [name for name in names if name not in host.runtimes or not host.runtimes[name].systemd_cgroup]
    if wrong:
        return "cgroupfs", fail("profile.cgroups.not_systemd", runtimes=wrong)
    return "systemd", passed("profile.cgroups.systemd", runtimes=names)


def _nvidia(scene: Scene) -> tuple[str, Verdict]:
    host, gpus = known(scene.facts.kubernetes_host), known(scene.facts.gpus)
    simulated = scene.simulated("nvidia-smi")
    if not gpus:
        return NONE, skip("profile.no_gpu", simulated=simulated)
    if not host.version:
        return NONE, skip("profile.containerd.missing")
    names = [name for name, one in host.runtimes.items() if "nvidia-container-runtime" in one.binary]
    if not names:
        return NONE, fail("profile.nvidia_runtime.missing", simulated=simulated)
    return names[0], passed("profile.nvidia_runtime.ok", runtime=names[0], simulated=simulated)


def _swap(scene: Scene) -> tuple[str, Verdict]:
    swap = known(scene.facts.kubernetes_host).swap
    if swap:
        return "on", fail("profile.swap.on", devices=swap)
    return "off", passed("profile.swap.off")


def _modules(scene: Scene) -> tuple[str, Verdict]:
    loaded = known(scene.facts.kubernetes_host).modules
    missing = [name for name in MODULES if name not in loaded]
    if missing:
        return ", ".join(sorted(loaded)) or NONE, fail("profile.modules.missing", modules=missing)
    return ", ".join(MODULES), passed("profile.modules.loaded", modules=MODULES)


def _sysctls(scene: Scene) -> tuple[str, Verdict]:
    values = known(scene.facts.kubernetes_host).sysctls
    wrong = [key for key in SYSCTLS if values.get(key) != _ON]
    present = ", ".join(f"{key.rpartition('.')[2]}={values.get(key, NONE)}" for key in SYSCTLS)
    if wrong:
        return present, fail("profile.sysctls.off", keys=wrong)
    return present, passed("profile.sysctls.on", keys=SYSCTLS)


def _rdma(scene: Scene) -> tuple[str, Verdict]:
    """A node without RDMA devices can be a Kubernetes node; its jobs use TCP."""
    rdma = known(scene.facts.rdma)
    active = [device.name for device in rdma.devices if device.active]
    if not active:
        return NONE, warn("profile.rdma.inactive" if rdma.devices else "profile.rdma.none")
    stack = f"OFED {rdma.ofed}" if rdma.ofed else "inbox"
    return ", ".join(active), passed("profile.rdma.ok", devices=active, stack=stack)


def _ports(scene: Scene) -> tuple[str, Verdict]:
    if known(scene.facts.kubernetes_host).kubelet == "active":
        return "kubelet", skip("profile.ports.kubelet")
    used = sorted({one.port for one in known(scene.facts.listening)} & set(PORTS))
    if used:
        return ", ".join(map(str, used)), fail("profile.ports.used", ports=used)
    return "free", passed("profile.ports.free", ports=PORTS)


NEEDS = (
    Need("containerd", "running", _containerd),
    Need("CRI plugin", "enabled", _cri),
    Need("cgroup driver", "systemd", _cgroups),
    Need("NVIDIA runtime", "configured", _nvidia),
    Need("swap", "off", _swap),
    Need("kernel modules", ", ".join(MODULES), _modules),
    Need("sysctls", "1", _sysctls),
    Need("RDMA", "an active device", _rdma),
    Need("ports", ", ".join(map(str, PORTS)), _ports),
)
