"""Remedies for kernels that the role kernel refuses, by reason code.

``roles/kernel/module_utils/kernel_remedies.py`` is a link to this file: plain Ansible and `provision` print the same
remedy. Python 3.6 or newer, without imports.
"""

KERNEL_REMEDIES = {
    "kernel.incomplete": "Check the free space of /boot, remove the kernel's packages, and apply again.",
    "kernel.loader.failed": "Check GRUB on the node (its disk may be full), then apply again.",
    "kernel.loader.no_entry": "Check grub.cfg on the node: it lists the kernels that GRUB can start.",
    "kernel.loader.read_only": (
        "Put /boot on a plain partition with ext4 or xfs, or leave kernel_release empty on this node."
    ),
    "kernel.loader.unknown": "Upgrade the kernel by your own means, and leave kernel_release empty on this node.",
    "kernel.module.not_built": "Choose a kernel that the modules support, or upgrade the modules first.",
    "kernel.rehearsal.impossible": "Set kernel_rehearsal to false to build the modules only after the installation.",
    "kernel.request.invalid": "Correct kernel_release in the inventory.",
}
"""Reason code -> sentences that start with a verb. The keys are all reasons that the module of the role reports."""
