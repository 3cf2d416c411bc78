#!/usr/bin/python
"""Ansible module: generate the Container Device Interface (CDI) description of the GPUs."""

DOCUMENTATION = r"""
module: nvidia_container_cdi
short_description: Generate the CDI description of the GPUs
description:
  - Writes the file only if it differs. Does nothing if the toolkit cannot describe GPUs, or if the toolkit's own unit does.
  - Records the original file before the first change, for a reset.
options:
  path: {description: File of the description., type: path, required: true}
author: [provision]
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record_file
from ansible.module_utils.platform_replace import is_root_file, replace

SECONDS = "120"


def skip_reason(module):
    """Return why the module does not write the file, empty if it does."""
    if not module.get_bin_path("nvidia-ctk"):
        return "none: nvidia-ctk is not installed"
    if module.run_command(["systemctl", "cat", "nvidia-cdi-refresh.path"])[0] == 0:
        return "managed by nvidia-cdi-refresh"
    if module.run_command(["nvidia-ctk", "cdi", "generate", "--help"])[0] != 0:
        return "none: this nvidia-ctk cannot describe GPUs"
    return ""


def read(path):
    """Return a file's bytes, None if it does not exist."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path, reason = module.params["path"], skip_reason(module)
    if reason:
        module.exit_json(changed=False, state=reason)
    new = os.path.join(module.tmpdir, "nvidia.yaml")
    code, out, err = module.run_command(["timeout", SECONDS, "nvidia-ctk", "cdi", "generate", "--output=" + new])
    if code != 0:
        cause = "no answer within {} s".format(SECONDS) if code == 124 else (err or out).strip()[-400:]
        module.fail_json(
            msg=f"nvidia-ctk: cannot describe the GPUs ({cause}). Check that nvidia-smi answers on the node."
        )
    data = read(new)
    changed = data != read(path) or not is_root_file(path)
    if changed and not module.check_mode:
        record_file(path, data)
        replace(path, data)
    module.exit_json(changed=changed, state=path)


if __name__ == "__main__":
    main()
