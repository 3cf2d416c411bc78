#!/usr/bin/python
"""Ansible module: set the MIG mode and the persistence mode of all GPUs of a node."""

DOCUMENTATION = r"""
module: nvidia_driver_modes
short_description: Set the MIG mode and the persistence mode of all GPUs
description:
  - action=check refuses a MIG mode that a GPU of the node does not have, and a change under a job. It changes nothing.
  - action=set sets the modes, and records the original ones for a reset. It fails if a GPU requires a reset.
  - Does nothing on a node without GPUs, and on a container, whose host decides, unless its GPUs are SIMULATED.
options:
  action: {description: Action to perform., type: str, choices: [check, set], required: true}
  mig: {description: 'MIG mode. Empty: not changed.', type: str, choices: ["", disabled, enabled], default: ""}
  persistence: {description: 'Persistence mode. Empty: not changed.', type: str, choices: ["", disabled, enabled], default: ""}
  container: {description: Whether the node is a container., type: bool, default: false}
  gpus: {description: Number of NVIDIA's GPUs on the PCI bus., type: int, default: 0}
  disruptive: {description: Whether MIG mode may be changed under a job., type: bool, default: false}
author: [provision]
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_busy import running_jobs
from ansible.module_utils.platform_gpu_modes import TITLES, ModesError, read, without_clients, write
from ansible.module_utils.platform_origin import mark_managed, record

SIMULATED_GPUS = "/usr/share/provision/simulated/gpus"
INSTANCES = "destroy its MIG instances (nvidia-smi mig -dci; nvidia-smi mig -dgi)"
RESET = "End what uses the GPU and {}, then reset it (nvidia-smi --gpu-reset -i {}) or reboot the node, and apply again"


class Modes:
    """The desired modes.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Read nothing yet."""
        self.module, self.params = module, module.params
        wanted = {name: self.params[name].capitalize() for name in ("persistence", "mig")}
        self.wanted = {name: mode for name, mode in wanted.items() if mode}
        self.left_out, self.before, self.after = [], [], []

    def is_owner(self):
        """Return whether the modes of the GPUs are those of this node."""
        if os.path.exists(SIMULATED_GPUS):
            return True
        if self.params["container"]:
            self.left_out.append("modes of GPUs skipped: those of a container node belong to its host")
        elif not self.params["gpus"]:
            self.left_out.append("modes of GPUs skipped: the node has no NVIDIA GPU")
        return not self.left_out

    def different(self, setting):
        """Return UUID -> mode of the GPUs whose mode is another one; they all have the setting."""
        modes, mode = read(self.module, setting), self.wanted[setting]
        missing = sorted(uuid for uuid, now in modes.items() if not now[0])
        if missing and mode == "Enabled":
            self._fail(
                f"{', '.join(missing)}: no {TITLES[setting]}",
                f"Set nvidia_driver_{setting}_mode to an empty value for this node",
            )
        return {uuid: now[0] for uuid, now in modes.items() if now[0] and set(now) != {mode}}

    def check(self):
        """Refuse what a later change would refuse. A driver that does not answer yet is not judged."""
        for setting in self.wanted:
            try:
                different = self.different(setting)
            except ModesError:
                continue
            if setting == "mig" and different:
                self._require_idle()

    def _require_idle(self):
        jobs = [] if self.params["disruptive"] else running_jobs()
        if jobs:
            self._fail(
                f"MIG mode would change under a job ({'; '.join(jobs)})",
                "Wait until it ends, or apply with --disruptive and the name of the node",
            )

    def set_all(self):
        """Set every mode that differs."""
        for setting in self.wanted:
            try:
                self._set(setting)
            except ModesError as error:
                if not self.module.check_mode:  # the driver may not be installed yet
                    self._fail(f"{TITLES[setting]}: {error}", "Repair the driver, then apply again")

    def _set(self, setting):
        different, mode = self.different(setting), self.wanted[setting]
        if not different:
            return
        self.before += [f"{TITLES[setting]} of {uuid}: {now}\n" for uuid, now in sorted(different.items())]
        self.after += [f"{TITLES[setting]} of {uuid}: {mode}\n" for uuid in sorted(different)]
        if self.module.check_mode:
            return
        if setting == "mig":
            self._require_idle()
        with without_clients(self.module, setting):
            answers = {uuid: self._write(setting, uuid, now, mode) for uuid, now in sorted(different.items())}
        left = self.different(setting)
        if not left:
            return
        code, words = answers.get(min(left), (0, ""))
        gpus, said = ", ".join(sorted(left)), f"(nvidia-smi: {words or 'no message'})"
        if code or setting != "mig":
            self._fail(f"{gpus}: {TITLES[setting]} {mode} was not set {said}", "Repair the driver, then apply again")
        self._fail(
            f"{gpus}: {TITLES[setting]} {mode} requires a reset of the GPU {said}",
            RESET.format(INSTANCES, ",".join(sorted(left))),
        )

    def _write(self, setting, uuid, now, mode):
        name = f"{setting} {uuid}"
        record("gpu_modes", name, {"setting": setting, "uuid": uuid, "before": now})
        mark_managed("gpu_modes", name, "values", mode)
        return write(self.module, setting, uuid, mode)

    def _fail(self, problem, remedy):
        self.module.fail_json(msg=f"{problem}. {remedy}.")


def main():
    """Run the module."""
    modes = ["", "disabled", "enabled"]
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["check", "set"], "required": True},
            "mig": {"type": "str", "choices": modes, "default": ""},
            "persistence": {"type": "str", "choices": modes, "default": ""},
            "container": {"type": "bool", "default": False},
            "gpus": {"type": "int", "default": 0},
            "disruptive": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    node = Modes(module)
    if node.is_owner():
        node.check() if module.params["action"] == "check" else node.set_all()
    module.exit_json(
        changed=bool(node.after),
        left_out=node.left_out,
        diff={"before": "".join(node.before), "after": "".join(node.after)},
    )


if __name__ == "__main__":
    main()
