"""Filters of the role peer_memory: decisions of the controller from the facts of a node."""

import base64
import hashlib
import re
from pathlib import Path

FACTS = (
    "system",
    "kind",
    "modules",
    "rdma",
    "gpus",
    "gpu_pci",
    "kernels",
    "nvidia_modules",
    "peer_memory",
    "dma_buf",
    "signing",
    "pci_routing",
    "nccl",
)
"""Facts of the probe that the verdict requires."""


def peer_memory_probe(_provider):
    """Return the script of the probe, empty if the package provision is not installed."""
    try:
        from provision import gdr  # noqa: F401
        from provision.facts import ALL_FACTS, script
    except ImportError:
        return ""
    return script([fact for fact in ALL_FACTS if fact.name in FACTS])


def peer_memory_provider(node_facts, setting):
    """Return the provider and the reasons: the setting of the inventory, or for `auto` the verdict.

    Args:
        node_facts: facts from the module peer_memory, with the output of the probe.
        setting: peer_memory_provider.

    Returns:
        ``{"provider": str, "reasons": [str], "unknown": str}``; ``unknown`` is the reason why
        no provider can be chosen: a required fact is unknown, and the node has no provider to preserve.
    """
    if setting != "auto":
        return _choice(setting, "set in the inventory")
    before = node_facts["status"].get("provider") or node_facts.get("config", {}).get("provider") or "none"
    others = [
        kernel["kernel"]
        for kernel in node_facts["kernels"]
        if kernel["driver"] and kernel["kernel"] != node_facts["kernel"]
    ]
    if before != "none" and others and not node_facts["driver_version"]:
        # Otherwise the node would lose the provider that it had before it booted this kernel.
        return _choice(
            before,
            f"{before} as before: the driver is installed for kernel {others[0]}, but not yet for the running one",
        )
    choice, unknown = _by_verdict(node_facts) if node_facts.get("probe") else _without_package(node_facts)
    if choice["provider"] != "none" or not unknown:
        return choice
    if before != "none":
        return _choice(before, f"{before} as before: the current choice is unknown ({unknown})")
    return {**choice, "unknown": unknown}


def _by_verdict(node_facts):
    """Return the verdict of `provision gdr` from the output of the probe, and the unknown fact (empty if none)."""
    from provision.facts import ALL_FACTS, parse
    from provision.gdr.observed import verdict_of
    from provision.report.reasons import messages

    facts = parse(node_facts["probe"], [fact for fact in ALL_FACTS if fact.name in FACTS])
    verdict = verdict_of(facts)
    return _choice(verdict.path.value, *messages(verdict.reasons)), _unknown_fact(facts, node_facts)


def _unknown_fact(facts, node_facts):
    """Return the unknown fact that can be the cause of a verdict of `none`, empty if all facts are known."""
    from provision.facts import Unknown
    from provision.gdr import Cards
    from provision.gdr.observed import has_gpus, missing_fact, situation
    from provision.report.reasons import message

    if not has_gpus(facts):
        return facts.gpu_pci.reason if isinstance(facts.gpu_pci, Unknown) else ""
    missing, state = missing_fact(facts), situation(facts)
    if missing or state.cards is not Cards.HARD:
        return message(missing) if missing else ""
    if state.evidence.peer_api is False and isinstance(facts.modules, Unknown):
        return facts.modules.reason
    # Simulated nodes of a lab can have GPUs without a kernel module.
    unknown = state.driver and state.flavor is None and not node_facts.get("simulated")
    return "it is unknown whether the modules of the driver are open or proprietary" if unknown else ""


def _choice(provider, *reasons):
    return {"provider": provider, "reasons": list(reasons), "unknown": ""}


def peer_memory_ref(ref, node_facts, *, by_headers=True):
    """Return the tag of nv_peer_mem to build: 1.0-9 is replaced if the RDMA stack or the kernel requires a later tag.

    Newer stacks have the structure peer_memory_client_ex, which 1.3 requires. Kernels since 5.4 have columns in
    Module.symvers that 1.1 writes, but not 1.0-9.
    """
    if ref != "1.0-9" or not by_headers:
        return ref
    kinds = [kernel["peer_interface"] for kernel in node_facts["kernels"]]
    kind = kinds[0] or next((kind for kind in kinds if kind), "")
    if kind == "extended":
        return "1.3-0"
    return "1.1-0" if _version(node_facts["kernel"]) >= (5, 4) else ref


def peer_memory_version(ref):
    """Return a ref as a version for DKMS."""
    return re.sub(r"[^A-Za-z0-9.+~-]", "-", str(ref))


def peer_memory_digest(path):
    """Return the SHA-256 of a file on the controller, empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()
    except OSError:
        return ""


def peer_memory_prebuilt(folder, kernels, module):
    """Return kernel -> name, sha256 and content (base64) of the built modules in a folder of the controller."""
    prebuilt = {}
    for kernel in kernels if folder else ():
        for ending in ("ko", "ko.xz", "ko.zst", "ko.gz"):
            path = Path(folder).expanduser() / kernel / f"{module}.{ending}"
            if path.is_file():
                data = path.read_bytes()
                prebuilt[kernel] = {
                    "name": path.name,
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "content": base64.b64encode(data).decode(),
                }
                break
    return prebuilt


def _without_package(node_facts):
    """Choose without the GPU's name and NCCL's version; return the choice and the unknown fact."""
    version, flavour = _version(node_facts["driver_version"]), node_facts["driver_flavour"]
    kernel = node_facts["kernels"][0]
    if not node_facts["driver_version"]:
        unreadable = f"the driver's module for kernel {kernel['kernel']} cannot be read"
        return _choice("none", "no NVIDIA driver is installed for the running kernel"), (
            unreadable if kernel["driver"] else ""
        )
    if flavour == "open" and version >= (515,) and _version(node_facts["kernel"]) >= (5, 12):
        return _choice("dma_buf", "the open modules of the driver and this kernel support it"), ""
    if not (kernel["peer_interface"] or node_facts["peer_interface_running"]):
        none = _choice("none", "the RDMA stack has no peer memory interface")
        unknown = "" if flavour else "it is unknown whether the modules of the driver are open"
        return none, unknown
    # Also if the module is missing, a stub or unsigned: building the modules of the driver again fixes that.
    provider = "nvidia_peermem" if version >= (470,) else "nv_peer_mem"
    return _choice(provider, f"driver {node_facts['driver_version']} and a vendor's RDMA stack"), ""


def _version(text):
    return tuple(int(word) for word in re.findall(r"\d+", text)[:2])


def peer_memory_stale(kernels, digests, prebuilt, source_needed):
    """Return the kernels without the module, or with another one than that of the prebuilt modules or sources."""
    return [
        kernel["kernel"]
        for kernel in kernels
        if not kernel["ok"]
        or source_needed
        or (prebuilt.get(kernel["kernel"]) and prebuilt[kernel["kernel"]]["sha256"] != digests[kernel["kernel"]])
    ]


def peer_memory_header_packages(kernels, package):
    """Return the packages with the headers of these kernels; ``{kernel}`` in the name stands for the kernel."""
    return [package.replace("{kernel}", kernel) for kernel in kernels]


def peer_memory_hooks(paths, name, content, state):
    """Return the hooks that build the module for a new kernel. The paths contain ``{name}``."""
    return [{"path": path.format(name=name), "mode": "0755", "content": content, "state": state} for path in paths]


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "peer_memory_header_packages": peer_memory_header_packages,
            "peer_memory_hooks": peer_memory_hooks,
            "peer_memory_stale": peer_memory_stale,
            "peer_memory_digest": peer_memory_digest,
            "peer_memory_prebuilt_modules": peer_memory_prebuilt,
            "peer_memory_probe": peer_memory_probe,
            "peer_memory_choice": peer_memory_provider,
            "peer_memory_ref": peer_memory_ref,
            "peer_memory_version": peer_memory_version,
        }
