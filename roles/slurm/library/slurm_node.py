#!/usr/bin/python
"""Ansible module: read the state of Slurm on a node."""

DOCUMENTATION = r"""
module: slurm_node
short_description: Read the state of Slurm on a node
description:
  - Returns what slurmd counts on the node, its GPUs, what slurmctld answers, and what the role has recorded; also whether the
    role has started slurmdbd.
  - The probe of provision uses the same code.
options: {}
author: [provision]
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_probe import CONFIGURATION, read_state, slurm_state, text

STARTED = "/var/lib/provision/slurm/slurmdbd.service.json"
"""The module slurm_service writes it when it starts slurmdbd."""


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    state = slurm_state()
    state["hostname"] = os.uname().nodename.split(".")[0]
    configured = re.findall(r"(?m)^NodeName=(\S+)", text(CONFIGURATION))
    has_slurmdbd = os.path.exists(STARTED)
    module.exit_json(
        changed=False, state=state, document=read_state(), configured=configured, has_slurmdbd=has_slurmdbd
    )


if __name__ == "__main__":
    main()
