#!/usr/bin/python
"""Ansible module: confirm a change that the node would revert otherwise."""

DOCUMENTATION = r"""
module: platform_rescue
short_description: Confirm a change that can cut off the operator
description:
  - The action plugin C(platform_light) runs it over a new connection after a task with I(rescue_seconds).
  - Returns the state of the change and the result of its module. A change that the node reverted is a failure.
options:
  token: {description: The token of the change., type: str, required: true}
  fresh: {description: Whether to refuse the connection over which the change was made., type: bool, default: true}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_rescue import confirm


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"token": {"type": "str", "required": True}, "fresh": {"type": "bool", "default": True}},
        supports_check_mode=True,
    )
    state, result = confirm(module, module.params["token"], fresh=module.params["fresh"])
    module.exit_json(changed=False, state=state, result=result)


if __name__ == "__main__":
    main()
