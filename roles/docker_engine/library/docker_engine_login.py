#!/usr/bin/python
"""Ansible module: log in to registries; passwords go through stdin and end in a file that only root reads."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine_login
short_description: Log in to registries
description:
  - A registry whose stored login is the wanted one is not asked again.
options:
  logins: {description: 'Logins: registry, username, password_secret.', type: list, elements: dict, required: true}
  folder: {description: Folder of docker's client configuration., type: path, default: /root/.docker}
author: [provision]
"""

EXAMPLES = r"""
- name: Log in
  docker_engine_login:
    logins: "{{ docker_engine_registry_logins }}"
  no_log: true
"""

RETURN = r"""
registries:
  description: Registries that were, or in check mode would be, logged in to.
  returned: always
  type: list
  elements: str
"""

import base64
import json
import os

from ansible.module_utils.basic import AnsibleModule

OPTIONS = {
    "registry": {"type": "str", "required": True},
    "username": {"type": "str", "required": True},
    "password_secret": {"type": "str", "required": True, "no_log": True},
}


def stored(folder):
    """Return the stored logins by registry."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
            return json.load(stream).get("auths", {})
    except (OSError, ValueError):
        return {}


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "logins": {"type": "list", "elements": "dict", "required": True, "options": OPTIONS},
            "folder": {"type": "path", "default": "/root/.docker"},
        },
        supports_check_mode=True,
    )
    folder, done = module.params["folder"], []
    os.umask(0o077)
    for login in module.params["logins"]:
        pair = "{}:{}".format(login["username"], login["password_secret"])
        if stored(folder).get(login["registry"], {}).get("auth") == base64.b64encode(pair.encode()).decode():
            continue
        done.append(login["registry"])
        if module.check_mode:
            continue
        command = [
            "docker",
            "--config",
            folder,
            "login",
            "--username",
            login["username"],
            "--password-stdin",
            login["registry"],
        ]
        code, out, err = module.run_command(command, data=login["password_secret"])
        if code != 0:
            reason = (err or out).replace(login["password_secret"], "********").strip()
            module.fail_json(
                msg="registry {}: the login of user {} failed: {}. Correct docker_engine_registry_logins.".format(
                    login["registry"], login["username"], reason[-400:]
                )
            )
    if done and not module.check_mode:
        os.chmod(folder, 0o700)
        os.chmod(os.path.join(folder, "config.json"), 0o600)
    module.exit_json(changed=bool(done), registries=done)


if __name__ == "__main__":
    main()
