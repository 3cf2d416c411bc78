#!/usr/bin/python
"""Ansible module: let the container's sshd read its settings, and wait until it answers."""

DOCUMENTATION = r"""
module: container_ssh_service
short_description: Reload the container's sshd, and wait until it answers
description:
  - It is skipped in check mode.
options:
  container: {description: Name of the container., type: str, required: true}
  reload_script: {description: 'Shell script that sends sshd the signal to read its settings. Empty: sshd has read them.', type: str, default: ""}
  address: {description: Address of the container's sshd., type: str, required: true}
  port: {description: Port of the container's sshd., type: int, required: true}
  timeout: {description: Seconds to wait., type: int, required: true}
author: [provision]
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.container_ssh_server import is_listening


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "reload_script": {"type": "str", "default": ""},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "timeout": {"type": "int", "required": True},
        },
    )
    name, script = module.params["container"], module.params["reload_script"]
    address, port = module.params["address"], module.params["port"]
    if script:
        command = ["docker", "exec", "--user", "0", "--interactive", name, "sh", "-s"]
        code, _, err = module.run_command(command, data=script)
        if code != 0:
            module.fail_json(
                msg=f"sshd in the container {name} does not read its settings ({err.strip() or f'exit status {code}'}). "
                f"Read `docker logs {name}` on the node."
            )
    deadline = time.monotonic() + module.params["timeout"]
    while not is_listening(address, port):
        if time.monotonic() >= deadline:
            module.fail_json(
                msg=f"sshd in the container {name} does not answer on {address} port {port}. Read `docker logs {name}` on "
                "the node. If another program uses the port (`ss -ltnp`), set another container_ssh_port."
            )
        time.sleep(0.5)
    module.exit_json(changed=bool(script))


if __name__ == "__main__":
    main()
