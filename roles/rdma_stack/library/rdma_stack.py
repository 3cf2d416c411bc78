#!/usr/bin/python
"""Ansible module: probe a node for its RDMA stack, build the modules of a vendor's stack by DKMS, and load them."""

DOCUMENTATION = r"""
module: rdma_stack
short_description: Probe a node for its RDMA stack, build the modules of a vendor's stack, or load them
description:
  - action=probe reads files, and asks C(ofed_info). It changes nothing.
  - action=record records the kernels that have a folder, for a reset.
  - action=build builds the modules by DKMS for each kernel that has none. The result has the cause if one cannot be built.
  - action=start enables openibd, and loads the stack that is installed. It reloads modules of another stack only if that disrupts
    nothing - no job, and no connection over the cards. Otherwise the result requests a reboot.
options:
  action: {description: Action to perform., type: str, choices: [probe, record, build, start], required: true}
  certificate: {description: 'action=probe: certificate whose enrolment for Secure Boot is checked.', type: str, default: ""}
  kernels: {description: 'action=build: releases of the kernels.', type: list, elements: str, default: []}
  dkms: {description: 'action=build: name of the sources in DKMS.', type: str, default: ""}
  disruptive: {description: 'action=start: whether loaded modules may be replaced.', type: bool, default: false}
author: [provision]
"""

import glob
import json
import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_dkms import (
    DKMS,
    autoinstall,
    data,
    is_enrolled,
    kernel_folders,
    requires_signature,
    result,
    text,
)
from ansible.module_utils.platform_origin import record, record_file

RECEIPT = "/var/lib/provision/receipts/rdma_stack.json"
SOURCES = ("doca", "mlnx_ofed")
UNIT = "openibd.service"
CARD_DRIVERS = ("mlx4_core", "mlx5_core")
MODULES = ("ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "mlx4_core")
INTERFACES = "/sys/class/net"
LOADED = "/sys/module"
ENABLED = ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias")
START_SECONDS = "300"
INFO_SECONDS = "30"


def is_built(name, kernel):
    """Return whether DKMS has built modules of these sources for a kernel."""
    return bool(glob.glob(os.path.join(DKMS, name, "[0-9]*", kernel, "*", "module", "*.ko*")))


def is_managed():
    """Return whether the role has installed a vendor's stack, by its receipt."""
    try:
        return json.loads(text(RECEIPT))["inputs"]["source"] in SOURCES
    except (ValueError, KeyError, TypeError):
        return False


def probe(module):
    """Return the facts by which the role decides."""
    out = ""
    if module.get_bin_path("ofed_info"):
        out = module.run_command(["timeout", INFO_SECONDS, "ofed_info", "-s"])[1]
    certificate = module.params["certificate"]
    return {
        "installed": out.strip().rstrip(":"),
        "managed": is_managed(),
        "loaded": os.path.isdir(os.path.join(LOADED, "ib_core")),
        "secure_boot": requires_signature(),
        "certificate": bool(certificate and data(certificate)),
        "enrolled": bool(certificate) and is_enrolled(certificate),
    }


def build(module):
    """Build the modules of each kernel that has none; return whether there was one, and the outcome."""
    name = module.params["dkms"]
    missing = [kernel for kernel in module.params["kernels"] if not is_built(name, kernel)]
    outcome = result(ok=True)
    for kernel in [] if module.check_mode else missing:
        outcome = autoinstall(
            module,
            kernel,
            "the RDMA stack",
            os.path.join(DKMS, name, "*"),
            lambda kernel=kernel: is_built(name, kernel),
        )
        if not outcome["ok"]:
            break
    return bool(missing), outcome


def links(unit):
    """Return the links that enable a unit, by the text of its file."""
    rows = re.findall(r"^(WantedBy|RequiredBy)=(.*)$", unit, re.MULTILINE)
    kinds = {"WantedBy": "wants", "RequiredBy": "requires"}
    return [f"/etc/systemd/system/{target}.{kinds[key]}/{UNIT}" for key, words in rows for target in words.split()]


def card_interfaces():
    """Return the interfaces of RDMA cards, and those that are made of them, such as bonds and VLANs."""
    names = os.listdir(INTERFACES) if os.path.isdir(INTERFACES) else []
    drivers = {name: os.path.basename(os.path.realpath(f"{INTERFACES}/{name}/device/driver")) for name in names}
    cards = {name for name in names if drivers[name] in CARD_DRIVERS}
    for _ in names:  # a VLAN may be on a bond
        cards |= {
            name
            for name in names
            for lower in glob.glob(f"{INTERFACES}/{name}/lower_*")
            if lower.split("lower_")[-1] in cards
        }
    return cards


class Start:
    """Loads the installed stack.

    Args:
        module: runs programs.
    """

    def __init__(self, module):
        """Change nothing."""
        self.module, self.changed = module, False

    def outcome(self):
        """Bring openibd and the modules to their desired state; return the outcome."""
        names = ("LoadState", "ActiveState", "UnitFileState", "FragmentPath")
        code, out, _ = self._run(["systemctl", "show", *[f"--property={name}" for name in names], UNIT])
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        if code != 0 or state.get("LoadState") != "loaded":
            return result("no_unit", f"the packages have no {UNIT}", "Choose a profile with it (rdma_stack_profile).")
        if state.get("UnitFileState") not in ENABLED:
            # The unit itself is not recorded: a reset that stops it would cut connections over the cards.
            for link in links(text(state.get("FragmentPath", ""))):
                record_file(link)
            code, _, err = self._run(["systemctl", "--no-reload", "enable", UNIT])
            if code != 0:
                return result(
                    "openibd", f"{UNIT} cannot be enabled", f"Read `systemctl status {UNIT}` on the node.", err
                )
            self.changed = True
        stale = self._stale()
        if stale:
            return self._replace(stale)
        if state.get("ActiveState") == "active":
            return result(ok=True)
        self.changed = True
        return self._start("start")

    def _replace(self, stale):
        """Reload modules of another stack, unless that disrupts something."""
        reboot = "Reboot the node, then apply again."
        explanation = f"modules of another RDMA stack are loaded ({', '.join(stale)})"
        if not self.module.params["disruptive"]:
            return result("reboot", f"{explanation}, and jobs run", "Wait until they end, then reboot the node.")
        using = self._connections()
        if using:
            explanation += f", and the connections over {', '.join(using)} would end with them"
            return result("reboot", explanation, reboot)
        self.changed = True
        failure = self._start("restart")
        left = self._stale()
        if left or not failure["ok"]:
            return result("reboot", f"{explanation}, and cannot be replaced", reboot, failure["evidence"])
        return failure

    def _start(self, verb):
        code, out, err = self._run(["timeout", START_SECONDS, "systemctl", verb, UNIT])
        if code == 0:
            return result(ok=True)
        lines = self._run(["journalctl", "-b", "-u", UNIT, "-n", "20", "-o", "cat"])[1].splitlines()
        words = [line.strip() for line in lines if re.search("error|fail|cannot", line, re.IGNORECASE)]
        remedy = f"Read `journalctl -b -u {UNIT}` on the node."
        return result("openibd", f"{UNIT} does not start", remedy, (words or [(err or out).strip()])[-1])

    def _stale(self):
        """Return the loaded modules that differ from those on the disk."""
        stale = []
        for name in MODULES:
            loaded = text(f"{LOADED}/{name}/srcversion").strip()
            installed = self._run(["modinfo", "-F", "srcversion", name])[1].strip() if loaded else ""
            if loaded and installed and loaded != installed:
                stale.append(name)
        return stale

    def _connections(self):
        """Return the interfaces of cards with a default route or an open TCP connection."""
        cards, using = card_interfaces(), set()
        for option in ("-4", "-6"):
            lines = self._run(["ip", option, "route", "show", "default"])[1].splitlines()
            using |= {name for line in lines for name in re.findall(r" dev (\S+)", line)}
        rows = [line.split() for line in self._run(["ip", "-o", "addr", "show"])[1].splitlines()]
        owners = {row[3].partition("/")[0]: row[1] for row in rows if len(row) > 3}
        rows = [line.split() for line in self._run(["ss", "-Htn", "state", "established"])[1].splitlines()]
        addresses = [row[2].rpartition(":")[0].strip("[]") for row in rows if len(row) > 3]
        using |= {owners.get(address.partition("%")[0].replace("::ffff:", ""), "") for address in addresses}
        return sorted(cards & using)

    def _run(self, argv):
        return self.module.run_command(argv)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["probe", "record", "build", "start"], "required": True},
            "certificate": {"type": "str", "default": ""},
            "kernels": {"type": "list", "elements": "str", "default": []},
            "dkms": {"type": "str", "default": ""},
            "disruptive": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    action = module.params["action"]
    if action == "probe":
        module.exit_json(changed=False, facts=probe(module))
    if action == "record":
        if not module.check_mode:
            record("kernel_folders", "all", {"existing": kernel_folders()})
        module.exit_json(changed=False)
    if action == "build":
        changed, outcome = build(module)
        module.exit_json(changed=changed, outcome=outcome)
    if module.check_mode:
        module.exit_json(changed=False, outcome=result(ok=True))
    start = Start(module)
    outcome = start.outcome()
    module.exit_json(changed=start.changed, outcome=outcome)


if __name__ == "__main__":
    main()
