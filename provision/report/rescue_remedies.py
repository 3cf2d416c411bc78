"""Remedies for changes that a node reverts by itself, by reason code.

``roles/platform/module_utils/platform_rescue_remedies.py`` is a link to this file: plain Ansible and `provision` print
the same remedy. Python 3.6 or newer, without imports.
"""

RESCUE_REMEDIES = {
    "rescue.reverted": (
        "Correct the setting in the inventory, or the switch or firewall that does not let SSH pass with it, then "
        "apply again. Set platform_rescue_seconds if the controller needs more time for a new connection."
    ),
    "rescue.absent": "Run `provision verify` to see the state of the node, then apply again.",
    "rescue.not_restored": (
        "Free space on the node's disk (df -h), then apply again: the node restores the files before the next change, "
        "or at the next boot."
    ),
    "rescue.pending": (
        "Wait until the node has confirmed or reverted that change (platform_rescue_seconds), then apply again."
    ),
    "rescue.not_saved": (
        "Nothing was changed. Replace the file by a regular file of this path, or move its content elsewhere, then "
        "apply again. Set platform_rescue_seconds to 0 to change it without a revert."
    ),
    "rescue.not_armed": (
        "Nothing was changed. Fix systemd on the node (systemctl is-system-running, systemctl --failed), then apply "
        "again."
    ),
}
"""Reason code -> sentences that start with a verb. The keys are all reasons that changes with a limit report."""
