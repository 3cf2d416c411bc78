"""Filters of the role peer_memory: what the controller decides from a node's findings."""

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
"""Facts of the probe that the verdict is made from."""


def peer_memory_probe(_provider):
    """Return the probe's script, empty where the provision package has no verdict (or is not there)."""
    try:
        from provision import gdr  # noqa: F401
        from provision.facts import ALL_FACTS, script
    except ImportError:
        return ""
    return script([fact for fact in ALL_FACTS if fact.name in FACTS])


def peer_memory_provider(look, wanted):
    """Return the provider, and why: what the inventory says, or for `auto` the verdict.

    Args:
        look: findings of the module peer_memory, with the probe's output.
        wanted: peer_memory_provider.

    Returns:
        ``{"provider": str, "reasons": [str], "remedies": [str], "untold": str}``; ``untold`` is why nobody can choose:
        a fact that the choice stands on could not be told, and there is no provider from before to be kept.
    """
    if wanted != "auto":
        return _chosen(wanted, "the inventory asks for it")
    before = look["status"].get("provider") or look.get("config", {}).get("provider") or "none"
    others = [kernel["kernel"] for kernel in look["kernels"] if kernel["driver"] and kernel["kernel"] != look["kernel"]]
    if before != "none" and others and not look["driver_version"]:
        # Judged as it is now, the node would lose what it had before somebody booted this kernel.
        return _chosen(
            before, f"{before} as before: the driver is there for kernel {others[0]}, and not yet for the running one"
        )
    chosen, untold = _by_verdict(look) if look.get("probe") else _without_package(look)
    if chosen["provider"] != "none" or not untold:
        return chosen
    if before != "none":
        return _chosen(before, f"{before} as before: what would fit the node now cannot be told ({untold})")
    return {**chosen, "untold": untold}


def _by_verdict(look):
    """Return the verdict of `provision gdr` on the probe's output, and which fact it lacks (empty for none)."""
    from provision.facts import ALL_FACTS, parse
    from provision.gdr.observed import verdict_of

    facts = parse(look["probe"], [fact for fact in ALL_FACTS if fact.name in FACTS])
    verdict = verdict_of(facts)
    remedies = [f"{item.path.value}: {item.precondition}. {item.remedy}" for item in verdict.unmet]
    return {**_chosen(verdict.path.value, *verdict.reasons), "remedies": remedies}, _untold(facts, look)


def _untold(facts, look):
    """Return which fact a verdict of `none` may rest on that could not be told; empty when all is known."""
    from provision.facts import Unknown
    from provision.gdr import Cards
    from provision.gdr.observed import has_gpus, missing_fact_reason, situation

    if not has_gpus(facts):
        return facts.gpu_pci.reason if isinstance(facts.gpu_pci, Unknown) else ""
    reason, now = missing_fact_reason(facts), situation(facts)
    if reason or now.cards is not Cards.HARD:
        return reason
    if now.evidence.peer_api is False and isinstance(facts.modules, Unknown):
        return facts.modules.reason
    # Stand-ins of a lab may have GPUs without any kernel module.
    unknown = now.driver and now.flavor is None and not look.get("simulated")
    return "whether the driver's modules are the open or the proprietary ones is not known" if unknown else ""


def _chosen(provider, *reasons):
    return {"provider": provider, "reasons": list(reasons), "remedies": [], "untold": ""}


def peer_memory_ref(wanted, look, *, by_headers=True):
    """Return the tag of nv_peer_mem to build: the reference's 1.0-9 gives way to what stack and kernel can build.

    Newer stacks have the structure peer_memory_client_ex, which 1.3 needs; kernels since 5.4 have columns in
    Module.symvers that 1.0-9 does not write, and 1.1 does.
    """
    if wanted != "1.0-9" or not by_headers:
        return wanted
    kinds = [kernel["peer_interface"] for kernel in look["kernels"]]
    kind = kinds[0] or next((kind for kind in kinds if kind), "")
    if kind == "extended":
        return "1.3-0"
    return "1.1-0" if _version(look["kernel"]) >= (5, 4) else wanted


def peer_memory_version(ref):
    """Return a ref as DKMS can have it in a version."""
    return re.sub(r"[^A-Za-z0-9.+~-]", "-", str(ref))


def peer_memory_digest(path):
    """Return the SHA-256 of a file on the controller, empty for one that cannot be read."""
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


def _without_package(look):
    """Decide by the rules that need neither the GPU's name nor NCCL's version; return the choice and what it lacks."""
    version, flavour = _version(look["driver_version"]), look["driver_flavour"]
    kernel = look["kernels"][0]
    if not look["driver_version"]:
        unreadable = f"the driver's module for kernel {kernel['kernel']} cannot be read"
        return _chosen("none", "no NVIDIA driver is installed for the running kernel"), (
            unreadable if kernel["driver"] else ""
        )
    if flavour == "open" and version >= (515,) and _version(look["kernel"]) >= (5, 12):
        return _chosen("dma_buf", "the driver's open modules and this kernel can"), ""
    if not (kernel["peer_interface"] or look["peer_interface_running"]):
        none = _chosen("none", "the RDMA stack has no peer memory interface")
        untold = "" if flavour else "whether the driver's modules are the open ones is not known"
        return {**none, "remedies": ["Install DOCA-OFED, then the driver again."]}, untold
    # Also where its module lacks, is a stub or is not signed: that is mended by building the driver's modules again.
    provider = "nvidia_peermem" if version >= (470,) else "nv_peer_mem"
    return _chosen(provider, f"driver {look['driver_version']} and a vendor's RDMA stack"), ""


def _version(text):
    return tuple(int(word) for word in re.findall(r"\d+", text)[:2])


def peer_memory_stale(kernels, digests, prebuilt, source_needed):
    """Return the kernels that lack the module, or have another one than the prebuilt module or source."""
    return [
        kernel["kernel"]
        for kernel in kernels
        if not kernel["ok"]
        or source_needed
        or (prebuilt.get(kernel["kernel"]) and prebuilt[kernel["kernel"]]["sha256"] != digests[kernel["kernel"]])
    ]


def peer_memory_header_packages(kernels, package):
    """Return the packages with the headers of these kernels; ``{kernel}`` in the name is the kernel."""
    return [package.replace("{kernel}", kernel) for kernel in kernels]


def peer_memory_hooks(folders, name, content, state):
    """Return the hooks that build the module for a new kernel."""
    return [{"path": f"{folder}/{name}", "mode": "0755", "content": content, "state": state} for folder in folders]


class FilterModule:
    """What Ansible loads."""

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
