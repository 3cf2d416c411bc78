#!/usr/bin/python
"""Ansible module: run a program on the node."""

DOCUMENTATION = r"""
module: platform_command
short_description: Run a program on the node
description:
  - As ansible.builtin.command, on nodes whose Python is older than Ansible's modules support. It is skipped in check mode.
  - It reports a change; use changed_when for programs that change nothing.
options:
  argv: {description: The program and its arguments., type: list, elements: str, required: true}
  stdin: {description: Text for the standard input., type: str, default: ""}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "argv": {"type": "list", "elements": "str", "required": True},
            "stdin": {"type": "str", "default": ""},
        },
    )
    code, out, err = module.run_command(module.params["argv"], data=module.params["stdin"])
    result = {"changed": True, "rc": code, "stdout": out.rstrip("\r\n"), "stderr": err.rstrip("\r\n")}
    if code != 0:
        module.fail_json(msg="non-zero return code", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
