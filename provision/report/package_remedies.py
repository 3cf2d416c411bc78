"""Remedies for failures of a node's package manager, by reason code.

``roles/platform/module_utils/platform_package_remedies.py`` is a link to this file: plain Ansible and `provision` print
the same remedy. Python 3.6 or newer, without imports.
"""

REMEDIES = {
    "packages.locked": (
        "Wait until the lock holder has finished, or stop it, then apply again. Never delete the lock files. "
        "Set platform_lock_timeout_seconds to wait longer."
    ),
    "packages.disk_full": "Free space on the node (df -h), then apply again.",
    "packages.missing": (
        "Correct platform_extra_repositories, or the repository variables of the role that requires the package "
        "(docker_engine_repository_uri, nvidia_container_repository_uri)."
    ),
    "packages.signature": (
        "Check who signs the repository, then set its key in platform_extra_repositories (docker: "
        "docker_engine_repository_key; NVIDIA: nvidia_container_repository_key). Never disable the check."
    ),
    "packages.unreachable": (
        "Check the node's DNS, firewall and proxy (cluster_http_proxy, and the node of cluster_package_cache), or set "
        "the repository's variable to a mirror. "
        "Disable repositories of the node that do not answer any more."
    ),
    "packages.held": (
        "Release the hold on the node (apt-mark unhold, dnf or yum versionlock delete), or set platform_package_sets "
        "to packages that do not require another version."
    ),
    "packages.conflict": (
        "Remove the packages that conflict, or set platform_package_sets for this node, then apply again."
    ),
    "packages.interrupted": (
        "Complete the interrupted transaction on the node (Debian: dpkg --configure -a; Enterprise Linux: dnf check, "
        "dnf remove --duplicates; with yum: install yum-utils, package-cleanup --cleandupes), then apply again."
    ),
    "packages.scriptlet": "Fix the cause that the script of the package reports, then apply again, which repeats it.",
    "packages.stream": (
        "Reset the module on the node (dnf module reset NAME), or change platform_module_streams, then apply again."
    ),
    "packages.clock": "Check the node's clock (date -u), then apply again.",
    "packages.failed": "Read the output of the package manager, fix the cause on the node, then apply again.",
}
"""Reason code -> a sentence that starts with a verb. The keys are all reasons that `platform_packages` reports."""
