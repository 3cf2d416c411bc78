#!/usr/bin/python
"""Ansible module: the toolkit's description of the GPUs, for engines that take devices by CDI."""

DOCUMENTATION = r"""
module: nvidia_container_cdi
short_description: Keep the description of the GPUs as the toolkit writes it
description:
  - Written only when it differs. Left alone where the toolkit cannot describe GPUs, or has a unit of its own for that.
  - What was there before the first change is noted, for a reset.
options:
  path: {description: The description's file., type: path, required: true}
author: [provision]
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record_file
from ansible.module_utils.platform_replace import is_root_file, replace

SECONDS = "120"


def why_not(module):
    """Return why the file is not for us to write, empty when it is."""
    if not module.get_bin_path("nvidia-ctk"):
        return "none: nvidia-ctk is not installed"
    if module.run_command(["systemctl", "cat", "nvidia-cdi-refresh.path"])[0] == 0:
        return "kept by nvidia-cdi-refresh"
    if module.run_command(["nvidia-ctk", "cdi", "generate", "--help"])[0] != 0:
        return "none: this nvidia-ctk cannot describe GPUs"
    return ""


def read(path):
    """Return a file's bytes, None when there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path, reason = module.params["path"], why_not(module)
    if reason:
        module.exit_json(changed=False, said=reason)
    new = os.path.join(module.tmpdir, "nvidia.yaml")
    code, out, err = module.run_command(["timeout", SECONDS, "nvidia-ctk", "cdi", "generate", "--output=" + new])
    if code != 0:
        cause = "no answer within {} s".format(SECONDS) if code == 124 else (err or out).strip()[-400:]
        module.fail_json(
            msg=f"nvidia-ctk could not describe the GPUs: {cause}. See that nvidia-smi answers on the node."
        )
    data = read(new)
    changed = data != read(path) or not is_root_file(path)
    if changed and not module.check_mode:
        record_file(path, data)
        replace(path, data)
    module.exit_json(changed=changed, said=path)


if __name__ == "__main__":
    main()
