#!/usr/bin/python
"""Ansible module: the toolkit's description of the GPUs, for engines that take devices by CDI."""

from __future__ import annotations

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

EXAMPLES = r"""
- name: Describe the GPUs for containers
  nvidia_container_cdi:
    path: /etc/cdi/nvidia.yaml
"""

RETURN = r"""
said:
  description: The file, or who keeps it, or why there is none.
  returned: always
  type: str
"""

import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import keep_file

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


def is_ours(path):
    """Return whether a file is a file, root's, and of the mode that we give it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_mode, status.st_uid, status.st_gid) == (stat.S_IFREG | 0o644, os.geteuid(), os.getegid())


def write(path, data):
    """Replace the file in one step."""
    keep_file(path, data)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with open(path + ".provision-new", "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fchmod(stream.fileno(), 0o644)
        os.fsync(stream.fileno())
    os.rename(path + ".provision-new", path)


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
    changed = data != read(path) or not is_ours(path)
    if changed and not module.check_mode:
        write(path, data)
    module.exit_json(changed=changed, said=path)


if __name__ == "__main__":
    main()
