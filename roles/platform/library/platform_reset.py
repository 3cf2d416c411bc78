#!/usr/bin/python
"""Ansible module: undo the changes of the roles on a node, and preserve the pre-existing configuration."""

DOCUMENTATION = r"""
module: platform_reset
short_description: Undo the changes of the roles
description:
  - Uses the records that every module of the roles writes before its first change (C(/var/lib/provision/origins)).
  - Restores files byte for byte. Never loses later edits; removes only the role's part of blocks and of JSON files.
  - Removes the packages that transactions of the roles installed and that nothing else requires, then their leftovers.
  - Removes the records last, so that the next reset completes an interrupted one.
  - Refuses a busy node, and steps that would stop or remove containers or databases that the roles did not create,
    or records of jobs.
options:
  plan: {description: Only list the steps., type: bool, default: false}
  disruptive:
    description: Reset a busy node, stop containers and databases that the roles did not create, and remove records of jobs.
    type: bool
    default: false
author: [provision]
"""

import os
import re
import shutil
from functools import partial

from ansible.module_utils import platform_origin as origin
from ansible.module_utils import platform_rescue_node as rescue
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_busy import running_jobs
from ansible.module_utils.platform_package_base import PackageFailure
from ansible.module_utils.platform_package_manager import package_manager
from ansible.module_utils.platform_rescue import stop_timer
from ansible.module_utils.platform_undo_database import UNIT as DATABASE_UNIT
from ansible.module_utils.platform_undo_database import Database
from ansible.module_utils.platform_undo_docker import Engine
from ansible.module_utils.platform_undo_files import Step, file_step, folder_steps
from ansible.module_utils.platform_undo_gpus import mode_steps
from ansible.module_utils.platform_undo_kernel import (
    argument_steps,
    depmod_steps,
    dkms_steps,
    firewall_steps,
    governor_steps,
    initramfs_steps,
    irq_steps,
    kernel_folder_steps,
    kernels_on_trial,
    link_steps,
    loader_steps,
    module_steps,
    names_until_boot,
    pci_steps,
    qos_steps,
    roce_steps,
    sysctl_steps,
    unit_steps,
)
from ansible.module_utils.platform_undo_packages import (
    installed_packages,
    leftovers,
    remove_leftovers,
    remove_saved,
    replaced_packages,
    saved_files,
    split,
)

RUN = "/run/provision"
RUN_FILES = ("docker_engine.json", "package-transaction")
# The records are removed last. The history and the lock of the node do not belong to the roles.
PRESERVED = ("origins", "history.jsonl", "provision.lock", "provision.lock.holder")
ENGINE_UNITS = ("docker.service", "docker.socket", "containerd.service")
# Units of other software that roles start or stop; `_daemon_names` has those of packages that the roles installed.
CHANGED_UNITS = ("irqbalance.service",)
UNIT = re.compile(r"/etc/systemd/system/([^/]+\.(?:path|timer|socket|service))$")


class Reset:
    """The records of the node, and the steps that undo the recorded changes.

    Args:
        module: runs programs and reports errors.
    """

    def __init__(self, module):
        """Read the records and the state of the node; change nothing."""
        self.module, self.left = module, []
        self.has_records = any(
            origin.record_names(kind)
            for kind in (
                *("files", "folders", "packages", "units", "images", "sysctls", "mtus", "governors"),
                *("kernel_arguments", "pci", "roce", "qos", "link_names", "irqs", "gpu_modes"),
            )
        )
        self.files = origin.records("files")
        self.file_steps = [step for step in map(file_step, self.files) if step]
        self.transactions = origin.records("packages")
        self.manager = package_manager(module)
        for doc in self.transactions:
            doc["requested"] = [self.manager.plain_name(name) for name in doc["requested"]]
        known = self.manager.table() if self.transactions else {}
        self.removed = replaced_packages(self.transactions, known)
        for doc in self.transactions:
            if "installed" not in doc["managed"]:
                self.manager.add_files(known, set(known) - set(doc["installed"]))
        installed = installed_packages(self.transactions, known)
        self.manager.add_files(known, installed)
        self.removable, stay = split(installed, self._manual_packages(installed), known)
        self.left += [f"leave the package {name}: {why}" for name, why in sorted(stay.items())]
        self._report_upgrades(known)
        self.engine = Engine(module, self.removable, self.files, self.file_steps)
        self.database = Database(module, self.removable)

    def _manual_packages(self, installed):
        """Return the dependencies of the roles' packages that were requested manually since."""
        requested = {name for doc in self.transactions for name in doc["requested"]}
        return (self.manager.manual() & installed) - requested if installed else set()

    def _report_upgrades(self, known):
        newer = {
            f"{name} {old} -> {new}"
            for doc in self.transactions
            for name, (old, new) in doc["managed"].get("upgraded", {}).items()
            if known.get(name, {}).get("version") == new
        }
        if newer:
            self.left.append(f"leave at the versions that the roles' packages required: {', '.join(sorted(newer))}")

    def refusals(self):
        """Return why the reset is refused unless the node may be disrupted."""
        return (
            [f"a job runs: {job}" for job in running_jobs()]
            + waiting_changes()
            + kernels_on_trial()
            + self.engine.refusals()
            + self.database.refusals()
        )

    def steps(self):
        """Return all steps in an order that can be interrupted anywhere, none without records."""
        if not self.has_records:
            return []
        self.left += names_until_boot()
        daemons = self._daemon_names()
        steps_in_order = [
            *self._rescue_steps(),
            *self.engine.first_steps(),
            *self._stop_steps(name for name in daemons if name != DATABASE_UNIT),
        ]
        steps_in_order += [*self.database.first_steps(), *self._stop_steps({DATABASE_UNIT} & daemons)]
        steps_in_order += [
            *self._unit_steps(),
            *mode_steps(self.module, self.left),
            *qos_steps(self.module, self.left),
            *roce_steps(self.left),
            *module_steps(self.module),
        ]
        steps_in_order += [
            *dkms_steps(self.module, self.left),
            *self.file_steps,
            *depmod_steps(self.module, self.file_steps),
            *loader_steps(self.module, self.file_steps),
            *argument_steps(self.module, self.left),
        ]
        steps_in_order += [
            *sysctl_steps(self.left),
            *link_steps(self.module, self.left),
            *governor_steps(),
            *irq_steps(self.left),
            *pci_steps(self.module, self.left),
            *unit_steps(self.module, CHANGED_UNITS),
            *firewall_steps(self.module),
            *folder_steps(origin.records("folders")),
            *self.engine.last_steps(),
        ]
        steps_in_order += [*self._account_steps(), *self._package_steps(), *kernel_folder_steps()]
        steps_in_order += initramfs_steps(self.module)
        steps_in_order += self.engine.data_steps()
        steps_in_order += [*self.database.last_steps(), *_job_steps()]
        return [*steps_in_order, Step("remove the receipts and records of the roles", self._remove_state)]

    def _rescue_steps(self):
        """Return the step that takes the place of a revert, which would otherwise happen during the reset or after it."""
        pending = rescue.read_document("pending")
        return [Step("end the wait for a confirmation: {what}".format(**pending), self._end_wait)] if pending else []

    def _end_wait(self):
        with rescue.locked(required=False):
            pending = rescue.read_document("pending")
            if pending:
                rescue.end(pending, "confirmed")
                stop_timer(self.module, pending["token"])

    def _daemon_names(self):
        """Return the running daemons of packages that the roles started."""
        return {
            doc["name"]
            for doc in origin.records("units")
            if doc["name"] not in (*ENGINE_UNITS, *CHANGED_UNITS)
            and doc["ActiveState"] != "active"
            and self.module.run_command(["systemctl", "is-active", "--quiet", doc["name"]])[0] == 0
        }

    def _stop_steps(self, names):
        """Return the steps that stop daemons while their configuration exists.

        Without it, the package of Debian 12's slurmctld cannot be removed.
        """
        return [Step(f"stop {name}", self._unit(name, disable=False)) for name in sorted(names)]

    def _unit_steps(self):
        """Return the steps that stop the units of the roles, path units first, because they would start their services again."""
        paths = [doc["path"] for doc in self.files if not doc["existed"] and os.path.lexists(doc["path"])]
        names = sorted(
            (match.group(1) for match in map(UNIT.match, paths) if match), key=lambda name: (name[-5:] != ".path", name)
        )
        return [Step(f"stop and disable {name}", self._unit(name)) for name in names]

    def _unit(self, name, *, disable=True):
        def act():
            code, _, err = self.module.run_command(["systemctl", "stop", name])
            if disable:
                self.module.run_command(["systemctl", "--no-reload", "disable", name])
            return (
                f"{name}: cannot stop the unit ({err.strip()[-200:]})"
                if code != 0 and "not loaded" not in err
                else None
            )

        return act

    def _account_steps(self):
        """Return the steps that remove accounts of the roles: new accounts that still have the home of the role."""
        homes = {doc["name"]: doc["home"] for doc in origin.records("accounts") if not doc["existed"]}
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as stream:
            known = [line.rstrip("\n").split(":") for line in stream]
        names = [words[0] for words in known if len(words) > 5 and homes.get(words[0]) == words[5]]
        return [Step(f"remove the account {name}", self._account(name)) for name in names]

    def _account(self, name):
        def act():
            code, _, err = self.module.run_command(["userdel", "--force", name])
            return f"account {name}: cannot remove it ({err.strip()[-200:]})" if code != 0 else None

        return act

    # Packages and state

    def _package_steps(self):
        steps = []
        if self.removable:
            names = ", ".join(self.removable)
            word = "package" if len(self.removable) == 1 else f"{len(self.removable)} packages"
            steps.append(Step(f"remove the {word} {names}", self._remove_packages))
        if self.removed:
            sentence = f"install the packages again that the roles' packages replaced: {', '.join(self.removed)}"
            steps.append(Step(sentence, self._reinstall))
        remains = leftovers(self.transactions)
        if any(remains.values()):
            objects = [f"the user {name}" for name in remains["users"]] + [
                f"the group {name}" for name in remains["groups"]
            ]
            objects += ["files in /etc"] if remains["etc"] else []
            steps.append(Step(f"remove the leftovers of packages: {', '.join(objects)}", self._remove_leftovers))
        return steps

    def _remove_packages(self):
        """Remove the packages. Data of docker that existed before the roles is preserved."""
        saved = saved_files(self.manager, self.transactions)
        self.manager.remove(self.removable, data=self.engine.removes_data or not self.engine.is_removed)
        return "; ".join(remove_saved(saved)) or None

    def _reinstall(self):
        try:
            self.manager.refresh()
            self.manager.install(self.removed)
        except PackageFailure as failure:
            return f"install {', '.join(self.removed)} manually, which existed before: {failure}"
        return None

    def _remove_leftovers(self):
        return "; ".join(remove_leftovers(self.module, self.manager, self.transactions)) or None

    def _remove_state(self):
        """Make systemd reread its units, then remove the receipts and finally the records."""
        self.module.run_command(["systemctl", "daemon-reexec"])
        for step in folder_steps(
            origin.records("folders")
        ):  # folders that were not empty while their packages were installed
            step.act()
        for name in RUN_FILES:
            if os.path.lexists(f"{RUN}/{name}"):
                os.unlink(f"{RUN}/{name}")
        _remove_if_empty(RUN)
        state = os.path.dirname(origin.FOLDER)
        for name in os.listdir(state):
            if name in PRESERVED:
                continue
            path = f"{state}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        removed = f"{state}/.origins-gone"
        os.rename(origin.FOLDER, removed)  # in one step, because incomplete records would be worse than none
        shutil.rmtree(removed)
        _remove_if_empty(state)


def _job_steps():
    """Return the step that removes the jobs of the node, because their outputs exist nowhere else."""
    folder = os.path.dirname(origin.FOLDER) + "/jobs"
    names = [name for name in os.listdir(folder) if not name.startswith(".")] if os.path.isdir(folder) else []
    if not names:
        return []
    jobs = "1 batch job" if len(names) == 1 else f"{len(names)} batch jobs"
    return [Step(f"remove the records and outputs of {jobs} in {folder}", partial(shutil.rmtree, folder))]


def _remove_if_empty(path):
    if os.path.isdir(path) and not os.listdir(path):
        os.rmdir(path)


def waiting_changes():
    """Return the change that the node reverts unless its controller confirms it."""
    pending = rescue.read_document("pending")
    return ["a change waits for its confirmation: {what} (role {role})".format(**pending)] if pending else []


def unrecorded_changes():
    """Return a sentence if roles changed the node before they wrote records, else nothing."""
    if os.path.isdir(os.path.dirname(origin.FOLDER) + "/receipts"):
        return ["leave everything unchanged: the roles changed this node before they recorded its original state"]
    return []


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "bool", "default": False},
            "disruptive": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    reset = Reset(module)
    steps = reset.steps()
    refused = [] if module.params["disruptive"] or not steps else reset.refusals()
    result = {
        "steps": [step.sentence for step in steps],
        "left": reset.left if steps else unrecorded_changes(),
        "refused": refused,
    }
    if module.params["plan"] or module.check_mode:
        module.exit_json(changed=bool(steps) and not refused and not module.params["plan"], **result)
    if refused:
        module.fail_json(
            msg="the reset is refused ({}). Reset again when the node is idle, or with --disruptive and the node's name.".format(
                "; ".join(refused)
            ),
            **result,
        )
    for step in steps:
        try:
            message = step.act()
        except PackageFailure as failure:
            module.fail_json(**failure.result(), **result)
        except OSError as error:
            module.fail_json(
                msg=f"cannot {step.sentence} ({error.strerror or error}). Reset again to continue with the remaining steps.",
                **result,
            )
        if message:
            result["left"].append(message)
    module.exit_json(changed=bool(steps), **result)


if __name__ == "__main__":
    main()
