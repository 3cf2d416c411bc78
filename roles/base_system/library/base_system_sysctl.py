#!/usr/bin/python
"""Ansible module: set kernel settings in their file and in the running kernel, in one remote task."""

DOCUMENTATION = r"""
module: base_system_sysctl
short_description: Set kernel settings on disk and in the running kernel
description:
  - Writes one file for sysctl.d and sets the same values in the running kernel.
  - Skips a key that this kernel does not have, and returns it as missing.
  - Records the original file and values before the first change, for a reset.
options:
  path: {description: File in sysctl.d., type: path, required: true}
  values: {description: Values by key., type: dict, required: true}
author: [provision]
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import mark_managed, record, record_file
from ansible.module_utils.platform_replace import is_root_file, replace

HEADER = "# Managed by provision (role base_system).\n"


def live_path(key):
    """Return the path of a key below /proc/sys. Dots separate its parts; a slash stands for a dot in a part."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def read(path):
    """Return the text of a file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "values": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    path = module.params["path"]
    desired = {key: " ".join(str(value).split()) for key, value in sorted(module.params["values"].items())}
    present = {key: value for key, value in desired.items() if os.path.exists(live_path(key))}
    text, before = HEADER + "".join(f"{key} = {value}\n" for key, value in present.items()), read(path)
    differs = before != text or not is_root_file(path)
    live = {key: " ".join(read(live_path(key)).split()) for key in present}
    different = {key: value for key, value in present.items() if live[key] != value}
    try:
        if differs and not module.check_mode:
            record_file(path, text)
            replace(path, text)
    except OSError as error:
        module.fail_json(msg=f"{path}: cannot write the file ({error.strerror})")
    for key, value in different.items():
        try:
            if not module.check_mode:
                record("sysctls", key, {"key": key, "path": live_path(key), "before": live[key]})
                mark_managed("sysctls", key, "values", value)
                with open(live_path(key), "w", encoding="utf-8") as stream:
                    stream.write(value)
        except OSError as error:
            module.fail_json(
                msg=f"{key}: the kernel refuses the value {value} ({error.strerror}). Correct or remove it in base_system_sysctls."
            )
    diff = [
        {"before_header": path, "after_header": path, "before": before, "after": text},
        {
            "before_header": "running kernel",
            "after_header": "running kernel",
            "before": "".join(f"{key} = {live[key]}\n" for key in different),
            "after": "".join(f"{key} = {value}\n" for key, value in different.items()),
        },
    ]
    changed = differs or bool(different)
    module.exit_json(changed=changed, missing=sorted(set(desired) - set(present)), diff=diff if changed else [])


if __name__ == "__main__":
    main()
