#!/usr/bin/python
"""Ansible module: probe a node for its NVIDIA driver, rebuild the initramfs, and load the driver."""

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Probe a node for its NVIDIA driver, rebuild the initramfs, or load the driver
description:
  - action=probe reads files. It changes nothing, and runs no tool of the driver, which could hang.
  - action=adopt records with which list of nodes a running IMEX was started, before the list is written for the first time.
  - action=initramfs rebuilds the initramfs of every kernel unless the last successful rebuild was for the same content of the files.
  - action=start replaces nouveau or another loaded version, loads the driver, and starts the persistence daemon. The result has the cause if the driver is not loaded.
options:
  action: {description: Action to perform., type: str, choices: [probe, adopt, initramfs, start], required: true}
  certificate: {description: 'action=probe: certificate whose enrolment for Secure Boot is checked.', type: str, default: ""}
  initramfs: {description: 'action=initramfs: the command that rebuilds it.', type: list, elements: str, default: []}
  files: {description: 'action=initramfs: files that it contains.', type: list, elements: path, default: []}
  persistence: {description: 'action=start: whether the persistence daemon runs.', type: bool, default: false}
  fabric: {description: 'action=start: nvswitch or nvlink5 if the fabric manager runs.', type: str, default: ""}
  dcgm: {description: 'action=start: whether DCGM runs.', type: bool, default: false}
  imex: {description: 'action=adopt and start: the list of nodes for IMEX. Empty: an IMEX that the role started is stopped.', type: str, default: ""}
  disruptive: {description: 'action=start: whether a loaded driver may be replaced.', type: bool, default: false}
author: [provision]
"""

import glob
import hashlib
import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.nvidia_driver_files import module_file
from ansible.module_utils.platform_dkms import data, is_enrolled, requires_signature, result, text
from ansible.module_utils.platform_kernel_module_failures import diagnose
from ansible.module_utils.platform_origin import record, record_module, record_unit
from ansible.module_utils.platform_replace import replace

DEVICES = "/sys/bus/pci/devices"
VFIO = "/sys/bus/pci/drivers/vfio-pci"
OWN_FILE = "/etc/modprobe.d/provision-nvidia-driver.conf"
UNIT = "nvidia-persistenced.service"
FABRIC_UNIT = "nvidia-fabricmanager.service"
DCGM_UNIT = "nvidia-dcgm.service"
IMEX_UNIT = "nvidia-imex.service"
SERVICES = (UNIT, FABRIC_UNIT, IMEX_UNIT, DCGM_UNIT, "dcgm.service")
MODULES = ("nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")
REBUILT = "/var/lib/provision/nvidia_driver/initramfs"  # the checksum of the files of the last rebuild
ENABLED = ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias")
IMEX_NODES = "/var/lib/provision/nvidia_driver/imex"  # the checksum of the list of nodes with which IMEX was started
LOAD_SECONDS = "120"


def gpus(root="/"):
    """Return the PCI device IDs of the GPUs, without those of virtual machines."""
    return devices("0x030[02]", root)


def devices(pattern, root="/"):
    """Return the PCI device IDs of NVIDIA's devices of a class, without those of virtual machines."""
    names = []
    for folder in sorted(glob.glob(root.rstrip("/") + DEVICES + "/*")):
        name = os.path.basename(folder)
        kind = text(folder + "/class").strip()
        if text(folder + "/vendor").strip() != "0x10de" or not re.match(pattern, kind):
            continue
        if os.path.exists(folder + "/physfn") or os.path.exists(f"{root.rstrip('/')}{VFIO}/{name}"):
            continue
        match = re.match("0x([0-9a-f]{4})$", text(folder + "/device").strip())
        names.append(match.group(1) if match else "")
    return [name for name in names if name]


def is_loaded(name, root="/"):
    """Return whether a kernel module is loaded."""
    return os.path.isdir(f"{root.rstrip('/')}/sys/module/{name}")


def probe(module):
    """Return the facts by which the role decides."""
    kernel = os.uname().release
    loaded = text("/sys/module/nvidia/version").strip()
    installed = installed_version(module, module_file(kernel))
    certificate = module.params["certificate"]
    return {
        "gpus": gpus(),
        "has_switches": bool(devices("0x0680")),
        "loaded": loaded,
        "installed": installed,
        "managed": os.path.exists(OWN_FILE),
        "imex": bool(text(IMEX_NODES).strip()),
        "stale": bool(loaded and installed and loaded != installed),
        "secure_boot": requires_signature(),
        "certificate": bool(certificate and data(certificate)),
        "enrolled": bool(certificate) and is_enrolled(certificate),
    }


def installed_version(module, path):
    """Return the version of a module file, empty without one."""
    return module.run_command(["modinfo", "-F", "version", path])[1].strip() if path else ""


def adopt_imex(module):
    """Record the list of a running IMEX that has no record; return whether it was necessary."""
    path = module.params["imex"]
    is_active = module.run_command(["systemctl", "is-active", "--quiet", IMEX_UNIT])[0] == 0
    if text(IMEX_NODES).strip() or not is_active or not data(path):
        return False
    if not module.check_mode:
        replace(IMEX_NODES, (hashlib.sha256(data(path)).hexdigest() + "\n").encode())
    return True


def rebuild_initramfs(module):
    """Rebuild the initramfs unless the last rebuild was for the same files; return whether it was necessary."""
    digest = hashlib.sha256(b"\0".join(data(path) for path in module.params["files"])).hexdigest()
    if text(REBUILT).strip() == digest:
        return False
    if module.check_mode:
        return True
    command = module.params["initramfs"]
    record("initramfs", "all", {"argv": command})
    code, out, err = module.run_command(command)
    if code != 0:
        module.fail_json(
            msg="`{}` failed: {}. Check the free space in /boot, then apply again.".format(
                " ".join(command), (err or out).strip()[-400:]
            )
        )
    replace(REBUILT, (digest + "\n").encode())
    return True


class Start:
    """Loads the driver.

    Args:
        module: runs programs.
    """

    def __init__(self, module):
        """Read the state of the node; change nothing."""
        self.module = module
        self.kernel = os.uname().release
        self.changed = False
        self.devices = gpus()
        self.after = []  # services that were stopped and have to be started again

    def outcome(self):
        """Bring the driver to its desired state; return the outcome."""
        failure = self._unload_others() or self._load() or self._fabric() or self._imex()
        self._daemon(running=self.module.params["persistence"] and not failure)
        return failure or self._dcgm() or result(ok=True)

    def _unload_others(self):
        """Unload nouveau, or another version of the driver."""
        if is_loaded("nouveau") and self.devices:
            self._run(["modprobe", "-r", "nouveau"])
            if is_loaded("nouveau"):
                return result(
                    "nouveau",
                    "nouveau is loaded and in use, and takes the GPUs from the driver",
                    "It is blocked from the next boot on. Reboot the node.",
                )
            self.changed = True
        loaded = text("/sys/module/nvidia/version").strip()
        installed = installed_version(self.module, module_file(self.kernel))
        if not loaded or not installed or loaded == installed:
            return None
        return self._unload(loaded, installed)

    def _unload(self, loaded, installed):
        """Unload the driver that is loaded, with the services that use it."""
        reboot = result(
            "reboot",
            f"driver {loaded} is loaded and in use, and {installed} is installed",
            "End the jobs on the node, then reboot it.",
        )
        if not self.module.params["disruptive"]:
            return reboot
        running = [name for name in SERVICES if self._run(["systemctl", "is-active", "--quiet", name])[0] == 0]
        for name in running:
            self._run(["systemctl", "stop", name])
        for name in MODULES:
            if is_loaded(name):
                self._run(["rmmod", name])
        self.changed = True
        if not is_loaded("nvidia"):
            self.after = running
            return None
        for name in running:
            self._run(["systemctl", "start", name])
        return reboot

    def _load(self):
        """Load the driver; without a device, report that it cannot be loaded."""
        for name in reversed(MODULES):
            record_module(name)
        if not is_loaded("nvidia"):
            before = self._kernel_lines()
            code, out, err = self._run(["timeout", LOAD_SECONDS, "modprobe", "nvidia"])
            if code != 0 or not is_loaded("nvidia"):
                return self._not_loaded(code, out + err, self._kernel_lines()[len(before) :])
            self.changed = True
        if self.devices and not is_loaded("nvidia_uvm"):
            self._run(["timeout", LOAD_SECONDS, "modprobe", "nvidia-uvm"])
        for name in self.after:
            if name != UNIT:
                self._run(["systemctl", "start", name])
        return None

    def _fabric(self):
        """Start the fabric manager; it requires exactly the version of the driver."""
        if not self.module.params["fabric"]:
            return None
        if self.module.params["fabric"] == "nvlink5" and not is_loaded("ib_umad"):
            record_module("ib_umad")
            self._run(["modprobe", "ib_umad"])
        remedy = "Install it in exactly the version of the driver, then read `journalctl -b -u {}` on the node."
        return self._service(FABRIC_UNIT, "fabric_manager", "the fabric manager does not start", remedy)

    def _imex(self):
        """Start IMEX, which requires exactly the version of the driver; start it again for another list of nodes."""
        if not self.module.params["imex"]:
            return self._stop_imex() if text(IMEX_NODES).strip() else None
        digest = hashlib.sha256(data(self.module.params["imex"])).hexdigest()
        is_active = self._run(["systemctl", "is-active", "--quiet", IMEX_UNIT])[0] == 0
        if is_active and text(IMEX_NODES).strip() != digest:
            if not self.module.params["disruptive"]:
                explanation = "IMEX runs with another list of nodes, and a restart would end jobs on several nodes"
                return result("imex", explanation, "Apply again when the node is idle.")
            record_unit(self.module, IMEX_UNIT)
            self._run(["systemctl", "stop", IMEX_UNIT])
        remedy = "Install it in exactly the version of the driver, then read `journalctl -b -u {}` on the node."
        failure = self._service(IMEX_UNIT, "imex", "IMEX does not start", remedy)
        if not failure and text(IMEX_NODES).strip() != digest:
            replace(IMEX_NODES, (digest + "\n").encode())
        return failure

    def _stop_imex(self):
        """Stop IMEX on a node that left its NVLink domain. The role removes the list and its record afterwards."""
        states = [self._run(["systemctl", word, "--quiet", IMEX_UNIT])[0] == 0 for word in ("is-active", "is-enabled")]
        if not any(states):
            return None
        if states[0] and not self.module.params["disruptive"]:
            explanation = (
                "IMEX runs for an NVLink domain that the node left, and a stop would end jobs on several nodes"
            )
            return result("imex", explanation, "Apply again when the node is idle.")
        record_unit(self.module, IMEX_UNIT)
        self.changed = True
        self._run(["systemctl", "--no-reload", "disable", IMEX_UNIT])
        if self._run(["systemctl", "stop", IMEX_UNIT])[0] == 0:
            return None
        return result("imex", "IMEX does not stop", f"Read `journalctl -b -u {IMEX_UNIT}` on the node.")

    def _dcgm(self):
        """Start DCGM."""
        if not self.module.params["dcgm"]:
            return None
        return self._service(DCGM_UNIT, "dcgm", "DCGM does not start", "Read `journalctl -b -u {}` on the node.")

    def _service(self, unit, cause, explanation, remedy):
        """Enable and start a unit; return the outcome with its own words if it fails."""
        if all(self._run(["systemctl", word, "--quiet", unit])[0] == 0 for word in ("is-active", "is-enabled")):
            return None
        record_unit(self.module, unit)
        self.changed = True
        self._run(["systemctl", "--no-reload", "enable", unit])
        if self._run(["systemctl", "start", unit])[0] == 0:
            return None
        lines = self._run(["journalctl", "-b", "-u", unit, "-n", "20", "-o", "cat"])[1].splitlines()
        words = [line.strip() for line in lines if re.search("version|error|fail", line, re.IGNORECASE)] or lines
        return result(cause, explanation, remedy.format(unit), words[0] if words else "")

    def _not_loaded(self, code, output, lines):
        cause = diagnose(dmesg="\n".join(lines), modprobe=output)
        version = installed_version(self.module, module_file(self.kernel))
        if not self.devices and cause.cause == "no_gpu":
            explanation = f"no NVIDIA device: driver {version} is installed for kernel {self.kernel}, and does not load without one"
            return result("no_device", explanation, "", cause.evidence, ok=True)
        explanation = f"driver {version} does not load: {cause.explanation}"
        if code == 124:
            explanation = f"loading driver {version} hangs (no end within {LOAD_SECONDS} s)"
        return result(cause.cause, explanation, cause.remedy, cause.evidence)

    def _kernel_lines(self):
        return self._run(["dmesg"])[1].splitlines()

    def _daemon(self, *, running):
        """Start the persistence daemon, or stop it where it is of no use. systemd rereads no units."""
        code, out, _ = self._run(
            ["systemctl", "show", "-p", "LoadState", "-p", "ActiveState", "-p", "UnitFileState", UNIT]
        )
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        if code != 0 or state.get("LoadState") != "loaded":
            return
        is_enabled, is_active = state.get("UnitFileState") in ENABLED, state.get("ActiveState") == "active"
        if running == is_enabled and running == is_active and state.get("ActiveState") != "failed":
            return
        record_unit(self.module, UNIT)
        self.changed = True
        if running:
            self._run(["systemctl", "--no-reload", "enable", UNIT])
            self._run(["systemctl", "start", UNIT])
        elif not self.devices:
            self._run(["systemctl", "--no-reload", "disable", UNIT])
            self._run(["systemctl", "stop", UNIT])
            self._run(["systemctl", "reset-failed", UNIT])

    def _run(self, argv):
        return self.module.run_command(argv)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["probe", "adopt", "initramfs", "start"], "required": True},
            "certificate": {"type": "str", "default": ""},
            "initramfs": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
            "persistence": {"type": "bool", "default": False},
            "fabric": {"type": "str", "default": ""},
            "dcgm": {"type": "bool", "default": False},
            "imex": {"type": "str", "default": ""},
            "disruptive": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    if module.params["action"] == "probe":
        module.exit_json(changed=False, facts=probe(module))
    if module.params["action"] == "adopt":
        module.exit_json(changed=adopt_imex(module))
    if module.params["action"] == "initramfs":
        module.exit_json(changed=rebuild_initramfs(module))
    if module.check_mode:
        module.exit_json(changed=not is_loaded("nvidia") and bool(gpus()), outcome=result(ok=True))
    start = Start(module)
    outcome = start.outcome()
    module.exit_json(changed=start.changed, outcome=outcome)


if __name__ == "__main__":
    main()
