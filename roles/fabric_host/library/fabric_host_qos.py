#!/usr/bin/python
"""Ansible module: set trust, PFC and ECN of the data interfaces, and revert them if they cut off the controller."""

DOCUMENTATION = r"""
module: fabric_host_qos
short_description: Set trust, PFC and ECN
description:
  - Sets by which field of a packet a card chooses its priority (trust), for which priorities it uses flow control (PFC), both by
    C(mlnx_qos), and for which it uses ECN, in sysfs.
  - Returns what this node cannot set as I(left_out), and the values for the script of the role that sets them at boot as I(boot).
  - The node reverts the change unless the controller confirms it over a new connection (I(rescue_seconds)).
  - Restores what is not given any more. Records the original values for a reset.
options:
  interfaces: {description: Names or PCI addresses of the data interfaces., type: list, elements: str, default: []}
  trust: {description: 'Field of a packet. Empty: unchanged.', type: str, choices: ["", pcp, dscp], default: ""}
  pfc: {description: 'For each priority 0 or 1, separated by commas. Empty: unchanged.', type: str, default: ""}
  ecn: {description: 'For each priority 0 or 1, separated by commas. Empty: unchanged.', type: str, default: ""}
  rescue_seconds: {description: 'Time for the confirmation of the change. 0: none is required.', type: int, default: 0}
  rescue_token: {description: Token of the change; the action plugin platform_light sets it., type: str, default: ""}
author: [provision]
"""

import re

from ansible.module_utils import fabric_host_cards as cards
from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_qos as qos
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import mark_managed, record, record_files, records
from ansible.module_utils.platform_rescue import OPTIONS, Rescue

FLAGS = re.compile(r"[01](,[01]){7}")
KIND = "qos"


class Qos:
    """The desired and the current settings of the data interfaces.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Compare; change nothing."""
        self.module, params = module, module.params
        self.left_out, self.unsupported = [], []
        values = {qos.TRUST: params["trust"], qos.PFC: self._flags("pfc")}
        values.update(dict.fromkeys(qos.ECN, self._flags("ecn")))
        values = {setting: value for setting, value in values.items() if value}
        names = cards.lowest(cards.interface_names(params["interfaces"])) if values else []
        desired = {(name, setting): value for name in names for setting, value in values.items()}
        self.recorded = {(doc["interface"], doc["setting"]): doc for doc in records(KIND)}
        self.removed = [key for key in self.recorded if key not in desired]
        self.now = {key: qos.read(module, *key) for key in [*desired, *self.removed]}
        self.wanted = {key: value for key, value in desired.items() if self.now[key] is not None}
        self._leave_out([key for key in desired if key not in self.wanted])
        for key in self.removed:
            if links.is_own(self.recorded[key], self.now[key]):
                self.wanted[key] = self.recorded[key]["before"]

    def _flags(self, name):
        text = self.module.params[name].replace(" ", "")
        if text and not FLAGS.fullmatch(text):
            raise cards.InvalidSetting(
                f"fabric_host_roce_{name}: '{text}' is not eight times 0 or 1, separated by commas"
            )
        return text

    def _leave_out(self, keys):
        self.unsupported = keys
        is_missing = not self.module.get_bin_path("mlnx_qos")
        for name in dict.fromkeys(name for name, _ in keys):
            settings = [setting for key, setting in keys if key == name]
            if qos.TRUST in settings or qos.PFC in settings:
                why = "mlnx_qos is missing" if is_missing else "mlnx_qos does not show them"
                self.left_out.append(f"trust and PFC of {name} skipped: {why}")
            if set(qos.ECN) & set(settings):
                self.left_out.append(f"ECN of {name} skipped: its driver has no such setting")

    def different(self):
        """Return the keys of the values that differ."""
        return [key for key, value in self.wanted.items() if self.now[key] != value]

    def boot(self):
        """Return what the script sets at boot, and what this node cannot set."""
        rows = {key: value for key, value in self.wanted.items() if key not in self.removed}
        rows.update(dict.fromkeys(self.unsupported, ""))
        return [
            {"interface": name, "setting": setting, "value": value} for (name, setting), value in sorted(rows.items())
        ]

    def undo_commands(self):
        """Return the commands that restore the current values."""
        return [qos.command(*key, self.now[key]) for key in self.different()]

    def record_paths(self):
        """Return the paths of the records that the change writes or removes."""
        keys = dict.fromkeys([*self.different(), *self.removed])
        return [path for key in keys for path in record_files(KIND, "/".join(key))]

    def change(self):
        """Set the values; a card that refuses one is an error."""
        for key in self.different():
            (name, setting), label = key, "/".join(key)
            if key not in self.removed:
                record(KIND, label, {"interface": name, "setting": setting, "before": self.now[key]})
                mark_managed(KIND, label, "values", self.wanted[key])
            problem = qos.write(self.module, name, setting, self.wanted[key])
            if problem:
                raise cards.InvalidSetting(problem)
        for key in self.removed:
            links.forget(KIND, "/".join(key))

    def diff(self):
        """Return what an apply changes."""
        keys = self.different()
        before = "".join(f"{' '.join(key)} {self.now[key]}\n" for key in keys)
        after = "".join(f"{' '.join(key)} {self.wanted[key]}\n" for key in keys)
        return [{"before_header": "RoCE QoS", "after_header": "RoCE QoS", "before": before, "after": after}]


def fail(module, error):
    """Fail with the remedy."""
    module.fail_json(msg=f"{error}. Correct the settings of the role fabric_host, then apply again.")


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "trust": {"type": "str", "choices": ["", "pcp", "dscp"], "default": ""},
            "pfc": {"type": "str", "default": ""},
            "ecn": {"type": "str", "default": ""},
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    rescue = Rescue(module, "fabric_host", "trust, PFC and ECN")
    rescue.begin()
    try:
        settings = Qos(module)
    except cards.InvalidSetting as error:
        fail(module, error)
    names = list(dict.fromkeys(name for name, _ in settings.different()))
    result = {"changed": bool(names), "left_out": settings.left_out, "boot": settings.boot()}
    result["diff"] = settings.diff() if names else []
    if not names:
        rescue.unchanged()
    if module.check_mode:
        module.exit_json(**result)
    if not names:
        settings.change()
        module.exit_json(**result)
    rescue.what = f"trust, PFC or ECN of {', '.join(names)}"
    rescue.arm([], settings.undo_commands(), [], records=settings.record_paths())
    try:
        settings.change()
    except (cards.InvalidSetting, OSError) as error:
        rescue.revert()
        fail(module, error)
    module.exit_json(**rescue.changed(result))


if __name__ == "__main__":
    main()
