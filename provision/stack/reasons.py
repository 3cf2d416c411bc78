"""The wording of the reasons of stack locks; `provision/report/reasons.py` describes the templates."""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_APPLY = "Run: provision apply"
_LOCK = "write a new lock: provision stack lock NODE"

REASONS: Mapping[str, Wording] = {
    # A node that differs from the lock
    "stack.differs": Wording("{component} is {current}, and the lock has {locked}[ ({packages})]", _APPLY),
    "stack.package": Wording("{name} {current}, locked {locked}"),
    "stack.image": Wording("the training image is {current}, and the lock has {locked}", _APPLY),
    "stack.kernel": Wording(
        "the kernel is {current}, and the lock has {locked}",
        f"Set kernel_release to {{locked}} for {{node}} and run `provision apply --reboot`, or {_LOCK}",
    ),
    "stack.headers": Wording(
        "the headers of the kernel are {current}, and the lock has {package} {locked}",
        f"Install {{package}} {{locked}} on {{node}}, or {_LOCK}",
    ),
    # A node that cannot be brought to the lock
    "stack.other_system": Wording(
        "{component}: the node has {current}, and the lock is for {locked}",
        "Use an inventory with a lock of its own for nodes of another system.",
    ),
    "stack.rdma_vendor": Wording(
        "rdma: the node has the vendor's RDMA stack {current}, and the lock has the kernel's own (inbox)",
        "Remove the vendor's stack from {node} (its own uninstall program), or install the node again.",
    ),
    "stack.rdma_inbox": Wording(
        "rdma: the node has the kernel's own RDMA stack (inbox), and the lock has the vendor's {locked}",
        "Request the vendor's stack {locked} in the inventory (rdma_stack_source), or install it on {node}.",
    ),
    "stack.rdma_other": Wording(
        "rdma: the node has the vendor's RDMA stack {current}, and the lock has {locked}",
        "Install the vendor's stack {locked} on {node}; no role installs it for a lock.",
    ),
    "stack.other_package": Wording(
        "{component}: the node has the package {current}, and the lock has {locked}",
        f"Set docker_engine_source to the source of {{locked}} and remove {{current}} from {{node}}, or {_LOCK}",
    ),
    "stack.not_managed": Wording(
        "{component}: the node has {current}, the lock has {locked}, and {variable} keeps the roles from changing it"
        "[ ({packages})]",
        "Install {locked} on {node}, or set {variable} in the inventory so that a role installs it.",
    ),
    "stack.only_apt": Wording(
        "{cause}, and only packages of apt are brought to a lock",
        "Install the locked versions on {node} yourself, and hold them (versionlock of dnf or yum).",
    ),
    "stack.no_packages": Wording(
        "{component}: the node has {current}, and the lock has {locked} without packages that could be installed"
        "[ ({packages})]",
        f"Install {{locked}} on {{node}}, or {_LOCK}",
    ),
    "stack.image_archive": Wording(
        "image: the lock has {locked}, and training_image_archive is no registry that could have it[ (now {current})]",
        f"Use an image from a registry, or remove the image from the lock, or {_LOCK}",
    ),
    "stack.contradiction": Wording(
        "{component}: {variable} is {given} in the inventory, and the lock has {locked}",
        f"Remove {{variable}} from the inventory, or {_LOCK}",
    ),
    # Combinations that are known not to work
    "stack.conflict": Wording(
        "{older} {older_version} is known not to work with {newer} {newer_version}: {effect} ({source})",
        "Use a newer {older}, or an older {newer}. If your packages are patched for it, accept this combination: "
        "`provision stack lock NODE --accept {name}`, or `accepted_conflicts: [{name}]` in an existing lock file.",
    ),
    "stack.conflict.fabric_manager": Wording(
        "fabric manager {manager} does not work with driver {driver}: both need the same version ({source})",
        "Install the fabric manager in the version of the driver.",
    ),
    # Lock files
    "stack.lock.invalid": Wording(
        "{file}: not a valid stack lock ({cause})",
        "Write it again with `provision stack lock NODE`, after you have removed it.",
    ),
    "stack.lock.conflict": Wording("{file}: {cause}", "{cause:remedy}"),
    "stack.lock.failed": Wording(
        "the node does not pass `provision verify --level full`: {checks:;}",
        "Correct what fails, and run the same command again: provision verify --level full --limit {node}",
    ),
    "stack.lock.not_measured": Wording(
        "the node has RDMA devices, and their bandwidth was not measured: {cause}",
        "Run it with another idle node of the inventory; `provision verify --level full` measures between nodes.",
    ),
    "stack.lock.no_facts": Wording(
        "the stack of the node is unknown: {cause}", "Log in to {node}, and find out what does not answer."
    ),
    "stack.lock.value": Wording(
        "the node reports a version that no lock can have: {cause}", "Correct the package or program on {node}."
    ),
    "stack.lock.check": Wording("{check} ({cause})"),
    # Predictions
    "stack.check.no_obstacle": Wording("nothing is known that keeps it from being built for kernel {kernel}"),
    "stack.check.inbox": Wording("its modules are those of kernel {kernel}"),
    "stack.check.no_headers": Wording(
        "the package sources have no headers of kernel {kernel}, without which DKMS builds nothing",
        "Add a package source with linux-headers-{kernel} to {node}, or choose another kernel.",
    ),
    "stack.check.headers_unknown": Wording(
        "it is unknown whether the package sources have the headers of kernel {kernel}"
    ),
    "stack.check.excluded": Wording(
        "DKMS does not build {name} {version} for it (kernels {first} to {last}, or its regular expression)",
        "Install a newer version of {name}, or choose another kernel.",
    ),
    "stack.check.nv_peer_mem": Wording(
        "nv_peer_mem does not build for kernels from {first} on",
        "Use driver 470 or newer, which includes nvidia-peermem.",
    ),
    "stack.check.no_dkms": Wording(
        "DKMS has no sources of it, so that its modules for kernel {kernel} have to come from a package"
    ),
    "stack.check.unclear": Wording("the range of kernels of {name} {version} in dkms.conf contains variables"),
}
