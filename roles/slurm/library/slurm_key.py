#!/usr/bin/python
"""Ansible module: return munge's key, and make it where there is none."""

DOCUMENTATION = r"""
module: slurm_key
short_description: Return munge's key, and make it where there is none
description:
  - Returns the key as base64. Always use it with no_log.
  - The package of munge makes a key when it is installed. A key that is too short or missing is made anew.
options:
  path: {description: Path of the key., type: path, required: true}
author: [provision]
"""

import base64
import os
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record_file

LENGTH, SHORTEST, LONGEST = 1024, 32, 4096


def read(path):
    """Return the key, empty if there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read(LONGEST)
    except FileNotFoundError:
        return b""


def make(path):
    """Make a key that only munge can read, in one step."""
    key, new = os.urandom(LENGTH), path + ".provision-new"
    record_file(path, key)
    owner = pwd.getpwnam("munge")
    if os.path.lexists(new):
        os.unlink(new)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
    with os.fdopen(handle, "wb") as stream:
        stream.write(key)
        os.fchown(stream.fileno(), owner.pw_uid, owner.pw_gid)
        os.fsync(stream.fileno())
    os.rename(new, path)
    return key


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}})
    path = module.params["path"]
    try:
        key = read(path)
        is_new = len(key) < SHORTEST
        key = make(path) if is_new else key
    except (OSError, KeyError) as error:
        reason = "the package munge is not installed" if isinstance(error, KeyError) else error.strerror
        module.fail_json(msg=f"{path}: the key cannot be read or made ({reason})")
    module.exit_json(changed=is_new, content=base64.b64encode(key).decode())


if __name__ == "__main__":
    main()
