#!/usr/bin/python
"""Ansible module: one package transaction that waits for locks, repairs interrupted transactions and reports causes."""

DOCUMENTATION = r"""
module: platform_packages
short_description: Install the packages of all roles of a play in one transaction
description:
  - The same for apt, dnf and yum. Requires no Python bindings of any, so that it works (also in check mode) on a bare node.
  - Waits for other package programs, and names the lock holder after a timeout.
  - Completes an earlier, interrupted transaction. Never releases a hold or a lock of a version.
  - Fails with C(reason), a code such as C(packages.locked), and C(remedy).
options:
  packages: {description: Packages that must be installed., type: list, elements: str, required: true}
  optional:
    description: Packages that are installed in the same transaction if the repositories have them.
    type: list
    elements: str
    default: []
  outdated: {description: 'Packages of the list whose installed version is too old, and which are upgraded to the newest.', type: list, elements: str, default: []}
  versions:
    description: 'Package -> exact version, older or newer than the installed one. Packages that are not in the lists are not affected.'
    type: dict
    default: {}
  streams: {description: 'Module streams (NAME:STREAM) that are enabled before. Only dnf has them.', type: list, elements: str, default: []}
  lock_timeout: {description: Seconds to wait for another package program., type: int, default: 600}
  cache_valid_time: {description: Age in seconds up to which package lists are not fetched again., type: int, default: 3600}
  held_services: {description: Services that the packages must not start., type: list, elements: str, default: []}
  data_folders:
    description: Folders that programs of the packages fill. The module records whether they existed before, for a reset.
    type: list
    elements: path
    default: []
  http_proxy: {description: 'Proxy for http://. It may contain a password, so it is never on a command line.', type: str, default: ""}
  https_proxy: {description: 'Proxy for https://.', type: str, default: ""}
  no_proxy: {description: Hosts that are reached without proxy., type: str, default: ""}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin_packages import begin_packages, end_packages
from ansible.module_utils.platform_package_base import PackageFailure
from ansible.module_utils.platform_package_manager import package_manager


def install(manager, parameters, names):
    """Install packages, and record the state before and after."""
    with manager.hold_services(parameters["held_services"]):
        transaction = begin_packages(manager, names, parameters["data_folders"])
        try:
            manager.install(names, parameters["streams"], parameters["versions"])
        finally:
            end_packages(manager, transaction)


def apply(module):
    """Install what is missing or outdated; return the result of the module."""
    parameters = module.params
    manager = package_manager(
        module,
        lock_seconds=parameters["lock_timeout"],
        valid_seconds=parameters["cache_valid_time"],
        proxies={name: parameters[name] for name in ("http_proxy", "https_proxy", "no_proxy")},
    )
    names = manager.missing(parameters["packages"])
    names += [name for name in parameters["packages"] if name in parameters["outdated"] and name not in names]
    optional = manager.missing(parameters["optional"])
    if (names or optional) and not module.check_mode:
        manager.refresh()
    names += manager.offered(optional)
    if names and not module.check_mode:
        install(manager, parameters, names)
    diff = {"before": "", "after": "".join(f"{name}\n" for name in names)}
    return {"changed": bool(names), "installed": names, "waited_for": manager.waited_for, "diff": diff}


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "optional": {"type": "list", "elements": "str", "default": []},
            "outdated": {"type": "list", "elements": "str", "default": []},
            "versions": {"type": "dict", "default": {}},
            "streams": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 600},
            "cache_valid_time": {"type": "int", "default": 3600},
            "held_services": {"type": "list", "elements": "str", "default": []},
            "data_folders": {"type": "list", "elements": "path", "default": []},
            "http_proxy": {"type": "str", "default": "", "no_log": True},
            "https_proxy": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**apply(module))
    except PackageFailure as failure:
        module.fail_json(**failure.result())


if __name__ == "__main__":
    main()
