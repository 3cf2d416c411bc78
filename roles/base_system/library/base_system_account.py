#!/usr/bin/python
"""Ansible module: create or remove a system account without a password, whose home directory belongs to root."""

DOCUMENTATION = r"""
module: base_system_account
short_description: Create or remove a system account without a password
description:
  - The account has a shell, because sshd runs forced commands with it. It owns no files; its home directory belongs to root.
  - An account of this name with another home directory is an error and is not changed.
  - Records whether the account existed before the first change, for a reset.
options:
  name: {description: Name of the account., type: str, required: true}
  home: {description: Home directory., type: path, required: true}
  state: {description: Whether it should exist., type: str, choices: [present, absent], default: present}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record

SHELL = "/bin/sh"
PASSWD, SHADOW = "/etc/passwd", "/etc/shadow"


def fields(path, name):
    """Return the fields of an account in a file such as /etc/passwd, empty if it has no line."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            lines = [line.rstrip("\n").split(":") for line in stream]
    except OSError:
        return []
    return next((words for words in lines if words[0] == name), [])


def account_command(module, state, name, home):
    """Return the command that brings the account to its desired state, empty if there is nothing to change."""
    words = fields(PASSWD, name)
    if words and (len(words) < 7 or words[5] != home or words[2] == "0"):
        if state == "absent":
            return []
        module.fail_json(
            msg=f"account {name}: it exists and is not the account of the job agent (its home is not {home}). Choose "
            "another name with cluster_agent_account."
        )
    if state == "absent":
        return ["userdel", "--force", name] if words else []
    options = ["--shell", SHELL, "--password", "*"]
    if not words:
        return ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", home, *options, name]
    password = (fields(SHADOW, name) or ["", "*"])[1]
    return [] if words[6] == SHELL and password[:1] in ("*", "!") else ["usermod", *options, name]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "home": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    name, home, state = module.params["name"], module.params["home"], module.params["state"]
    command = account_command(module, state, name, home)
    if command and not module.check_mode:
        record("accounts", name, {"name": name, "home": home, "existed": bool(fields(PASSWD, name))})
        code, out, err = module.run_command(command)
        if code != 0:
            module.fail_json(msg="`{}` failed: {}".format(" ".join(command), (err or out).strip()))
    module.exit_json(changed=bool(command))


if __name__ == "__main__":
    main()
