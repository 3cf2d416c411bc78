"""The package manager of a node: `package_manager(module)` has the methods of `PackageManager`."""

import os

from ansible.module_utils.platform_managed import uses_dpkg

MANAGERS = {"apt": "/usr/bin/apt-get", "dnf": "/usr/bin/dnf", "yum": "/usr/bin/yum"}
"""Name in the vars files (`__platform_package_manager`) -> its program."""


def name_of_manager(module, paths=None):
    """Return the name of the node's package manager, empty if none is supported.

    Debian offers dnf too, others apt. dnf comes before yum, which is another name of dnf on newer systems.
    """
    for name, path in (paths or MANAGERS).items():
        if name == "apt" and not uses_dpkg():
            continue
        if os.path.exists(path) or module.get_bin_path(os.path.basename(path)):
            return name
    return ""


def package_manager(module, name="", **options):
    """Return the package manager of the node, or the one with this name.

    Only the module of the manager in question is compiled on the node.
    """
    name = name or name_of_manager(module)
    if name == "dnf":
        from ansible.module_utils.platform_package_dnf import Dnf

        return Dnf(module, **options)
    if name == "yum":
        from ansible.module_utils.platform_package_yum import Yum

        return Yum(module, **options)
    from ansible.module_utils.platform_package_apt import Apt

    return Apt(module, **options)
