#!/usr/bin/python
"""Ansible module: log in to registries. Passwords are passed through stdin and stored in a file that only root can read."""

DOCUMENTATION = r"""
module: docker_engine_login
short_description: Log in to registries
description:
  - Does not contact a registry if the stored credentials are the desired ones. Only root can read the file with the credentials.
  - Records the original file before the first login, for a reset.
options:
  logins: {description: 'Credentials: registry, username, password_secret.', type: list, elements: dict, required: true}
  folder: {description: Folder of docker's client configuration., type: path, default: /root/.docker}
author: [provision]
"""

import base64
import json
import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record_file, record_folder

OPTIONS = {
    "registry": {"type": "str", "required": True},
    "username": {"type": "str", "required": True},
    "password_secret": {"type": "str", "required": True, "no_log": True},
}


def stored_credentials(folder):
    """Return the stored credentials by registry."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
            return json.load(stream).get("auths", {})
    except (OSError, ValueError):
        return {}


def required_modes(folder):
    """Return path -> mode for the folder and the file if their mode or owner must be corrected."""
    modes = {}
    for path, mode in ((folder, 0o700), (os.path.join(folder, "config.json"), 0o600)):
        if os.path.exists(path):
            status = os.stat(path)
            if (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) != (mode, os.geteuid(), os.getegid()):
                modes[path] = mode
    return modes


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "logins": {"type": "list", "elements": "dict", "required": True, "options": OPTIONS},
            "folder": {"type": "path", "default": "/root/.docker"},
        },
        supports_check_mode=True,
    )
    folder, registries = module.params["folder"], []
    config = os.path.join(folder, "config.json")
    os.umask(0o077)
    for login in module.params["logins"]:
        pair = "{}:{}".format(login["username"], login["password_secret"])
        if (
            stored_credentials(folder).get(login["registry"], {}).get("auth")
            == base64.b64encode(pair.encode()).decode()
        ):
            continue
        registries.append(login["registry"])
        if module.check_mode:
            continue
        record_folder(folder)
        record_file(config, kind="json", settings={"auths": {login["registry"]: None}})
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
                msg="registry {}: cannot log in as {} ({}). Correct docker_engine_registry_logins.".format(
                    login["registry"], login["username"], reason[-400:]
                )
            )
    modes = required_modes(folder)
    for path, mode in modes.items() if not module.check_mode else ():
        if path == config:
            record_file(config, kind="json", settings={})
        else:
            record_folder(folder)
        os.chown(path, os.geteuid(), os.getegid())
        os.chmod(path, mode)
    module.exit_json(changed=bool(registries or modes), registries=registries)


if __name__ == "__main__":
    main()
