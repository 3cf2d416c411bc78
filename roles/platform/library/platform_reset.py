#!/usr/bin/python
"""Ansible module: undo on a node what the roles did, and leave alone what stood there before."""

DOCUMENTATION = r"""
module: platform_reset
short_description: Undo what the roles did
description:
  - Goes by the notes that every module of the roles leaves before its first change (C(/var/lib/provision/origins)).
  - Files come back byte for byte. What was edited since is never lost; of blocks and of JSON files only what is ours goes.
  - Packages go that our transactions brought and that nothing else needs; then what they left.
  - The notes go last, so that a reset that was cut short is finished by the next one.
  - A node on which a job runs is refused, as is whatever would stop or remove containers that are not ours.
options:
  plan: {description: Only say what would be done., type: bool, default: false}
  disruptive: {description: Do it all the same where a job or containers of others are in the way., type: bool, default: false}
author: [provision]
"""

import os
import re
import shutil
from functools import partial

from ansible.module_utils import platform_origin as origin
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_busy import running_jobs
from ansible.module_utils.platform_undo_docker import ENGINES, Engine
from ansible.module_utils.platform_undo_files import Step, file_step, folder_steps
from ansible.module_utils.platform_undo_kernel import depmod_steps, dkms_steps, module_steps, sysctl_steps
from ansible.module_utils.platform_undo_packages import (
    bring_back,
    brought,
    gone_for_ours,
    purge,
    remove_rests,
    rests,
    split,
    table,
)

NUKE = "/var/lib/docker/nuke-graph-directory.sh"
RUN = "/run/provision"
OURS_IN_RUN = ("docker_engine.json", "package-transaction")
# The notes go last and by themselves; the history of what was done to the node, and its lock, are not the roles'.
PRESERVED = ("origins", "history.jsonl", "provision.lock", "provision.lock.holder")
UNIT = re.compile(r"/etc/systemd/system/([^/]+\.(?:path|timer|socket|service))$")


class Reset:
    """All that is noted, and the steps that undo it.

    Args:
        module: runs programs, and says what went wrong.
    """

    def __init__(self, module):
        """Look at the node; nothing is changed."""
        self.module, self.left = module, []
        self.has_records = any(
            origin.record_names(kind) for kind in ("files", "folders", "packages", "units", "images", "sysctls")
        )
        self.files = origin.records("files")
        self.file_steps = [step for step in map(file_step, self.files) if step]
        self.transactions = origin.records("packages")
        known = table(module) if self.transactions else {}
        self.back = gone_for_ours(self.transactions, known)
        ours = brought(self.transactions, known)
        self.going, stay = split(ours, self._asked_for(ours), known)
        self.left += [f"leave the package {name}: {why}" for name, why in sorted(stay.items())]
        self._note_upgrades(known)
        self.engine = Engine(module, self.going, self.files, self.file_steps)

    def _asked_for(self, ours):
        """Return those that came along with ours and that somebody has asked apt for since."""
        requested = {name for doc in self.transactions for name in doc["requested"]}
        return (
            (set(self.module.run_command(["apt-mark", "showmanual"])[1].split()) & ours) - requested if ours else set()
        )

    def _note_upgrades(self, known):
        newer = {
            f"{name} {old} -> {new}"
            for doc in self.transactions
            for name, (old, new) in doc["managed"].get("upgraded", {}).items()
            if known.get(name, {}).get("version") == new
        }
        if newer:
            self.left.append(f"leave at the versions that came with ours: {', '.join(sorted(newer))}")

    def refusals(self):
        """Return why this node is left as it is unless it may be disrupted."""
        return [f"a job runs: {job}" for job in running_jobs()] + self.engine.refusals()

    def steps(self):
        """Return all steps in an order that is safe to be cut off anywhere; none when nothing is noted."""
        if not self.has_records:
            return []
        steps_in_order = [*self.engine.first_steps(), *self._unit_steps(), *module_steps(self.module)]
        steps_in_order += [
            *dkms_steps(self.module, self.left),
            *self.file_steps,
            *depmod_steps(self.module, self.file_steps),
        ]
        steps_in_order += [
            *sysctl_steps(self.left),
            *folder_steps(origin.records("folders")),
            *self.engine.last_steps(),
        ]
        steps_in_order += [*self._account_steps(), *self._package_steps(), *self.engine.data_steps()]
        return [*steps_in_order, Step("remove our receipts and notes", self._end)]

    def _unit_steps(self):
        """Return the steps that stop our own units; a path unit first, which would start its service again."""
        paths = [doc["path"] for doc in self.files if not doc["existed"] and os.path.lexists(doc["path"])]
        names = sorted(
            (match.group(1) for match in map(UNIT.match, paths) if match), key=lambda name: (name[-5:] != ".path", name)
        )
        return [Step(f"stop and disable {name}", self._unit(name)) for name in names]

    def _unit(self, name):
        def act():
            code, _, err = self.module.run_command(["systemctl", "stop", name])
            self.module.run_command(["systemctl", "--no-reload", "disable", name])
            return (
                f"{name} could not be stopped: {err.strip()[-200:]}" if code != 0 and "not loaded" not in err else None
            )

        return act

    def _account_steps(self):
        """Return the steps that remove accounts of ours: those that were not there, and that still have our home."""
        ours = {doc["name"]: doc["home"] for doc in origin.records("accounts") if not doc["existed"]}
        with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as stream:
            known = [line.rstrip("\n").split(":") for line in stream]
        names = [words[0] for words in known if len(words) > 5 and ours.get(words[0]) == words[5]]
        return [Step(f"remove the account {name}", self._account(name)) for name in names]

    def _account(self, name):
        def act():
            code, _, err = self.module.run_command(["userdel", "--force", name])
            return f"the account {name} could not be removed: {err.strip()[-200:]}" if code != 0 else None

        return act

    # Packages, and the end

    def _package_steps(self):
        steps = []
        if self.going:
            names = ", ".join(self.going)
            word = "package" if len(self.going) == 1 else f"{len(self.going)} packages"
            steps.append(Step(f"remove the {word} {names}", self._purge))
        if self.back:
            again = partial(bring_back, self.module, self.back)
            steps.append(Step(f"install again what had to go for ours: {', '.join(self.back)}", again))
        remains = rests(self.transactions)
        if any(remains.values()):
            what = [f"the user {name}" for name in remains["users"]] + [
                f"the group {name}" for name in remains["groups"]
            ]
            what += ["files in /etc"] if remains["etc"] else []
            steps.append(Step(f"remove what packages leave behind: {', '.join(what)}", self._remove_rests))
        return steps

    def _purge(self):
        if self.engine.ours and not self.engine.data_goes:
            # Debian's package would remove all of docker's data when it is purged: the data stood before.
            purge(self.module, [name for name in self.going if name in ENGINES], "remove")
            if os.path.exists(NUKE):
                os.unlink(NUKE)
        purge(self.module, self.going)

    def _remove_rests(self):
        return "; ".join(remove_rests(self.module, self.transactions)) or None

    def _end(self):
        """Have systemd forget what is gone; then the receipts go, and last the notes."""
        self.module.run_command(["systemctl", "daemon-reexec"])
        for step in folder_steps(origin.records("folders")):  # what was not empty before packages went
            step.act()
        for name in OURS_IN_RUN:
            if os.path.lexists(f"{RUN}/{name}"):
                os.unlink(f"{RUN}/{name}")
        _remove_if_empty(RUN)
        state = os.path.dirname(origin.FOLDER)
        for name in os.listdir(state):
            if name in PRESERVED:
                continue
            path = f"{state}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        gone = f"{state}/.origins-gone"
        os.rename(origin.FOLDER, gone)  # in one step: half of the notes would be worse than none
        shutil.rmtree(gone)
        _remove_if_empty(state)


def _remove_if_empty(path):
    if os.path.isdir(path) and not os.listdir(path):
        os.rmdir(path)


def before_notes():
    """Return a sentence where roles ran before there were notes, none elsewhere."""
    if os.path.isdir(os.path.dirname(origin.FOLDER) + "/receipts"):
        return [
            "leave all as it is: the roles ran here before they noted what stood there, so nothing can be told apart"
        ]
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
        "left": reset.left if steps else before_notes(),
        "refused": refused,
    }
    if module.params["plan"] or module.check_mode:
        module.exit_json(changed=bool(steps) and not refused and not module.params["plan"], **result)
    if refused:
        module.fail_json(
            msg="nothing was undone: {}. Reset again when that has ended, or with --disruptive and the node's name.".format(
                "; ".join(refused)
            ),
            **result,
        )
    for step in steps:
        try:
            said = step.act()
        except OSError as error:
            module.fail_json(
                msg=f"could not {step.sentence}: {error.strerror or error}. What was done stands; the next reset goes on.",
                **result,
            )
        if said:
            result["left"].append(said)
    module.exit_json(changed=bool(steps), **result)


if __name__ == "__main__":
    main()
