#!/usr/bin/python
"""Ansible module: admit the other nodes in the firewall of the node."""

DOCUMENTATION = r"""
module: base_system_firewall
short_description: Admit networks and addresses in the active firewall of the node
description:
  - "firewalld: adds the sources to the zone trusted, in the saved and in the running configuration, without a reload."
  - "ufw: adds a rule for each source, after the existing rules."
  - The node reverts the change unless the controller confirms it over a new connection (I(rescue_seconds)).
  - Changes no other rule, and returns the sources about which another rule decides. Records its rules for a reset, and removes those of sources that are no longer given (I(complete)).
options:
  program: {description: The active firewall., type: str, choices: [firewalld, ufw], required: true}
  sources: {description: Networks (CIDR) and addresses., type: list, elements: str, required: true}
  rescue_seconds: {description: 'Time for the confirmation of the change. 0: none is required.', type: int, default: 0}
  rescue_token: {description: Token of the change; the action plugin platform_light sets it., type: str, default: ""}
  complete: {description: 'Whether these are all sources. If an address is unknown, no rule is removed.', type: bool, default: true}
author: [provision]
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_firewall import (
    FirewallError,
    active_sources,
    add_rules,
    decided_sources,
    remove_rules,
    saved_paths,
    saved_sources,
    undo_commands,
)
from ansible.module_utils.platform_origin import record, record_path, records
from ansible.module_utils.platform_rescue import OPTIONS, Rescue


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "program": {"type": "str", "choices": ["firewalld", "ufw"], "required": True},
            "sources": {"type": "list", "elements": "str", "required": True},
            "complete": {"type": "bool", "default": True},
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    program = module.params["program"]
    rescue = Rescue(module, "base_system", f"rules of {program}")
    rescue.begin()
    other = decided_sources(module, program, module.params["sources"])
    decided = [source for source in module.params["sources"] if source in other]
    sources = [source for source in module.params["sources"] if source not in other]
    saved, active = saved_sources(module, program, sources), active_sources(module, program, sources)
    missing = [source for source in sources if source not in saved or source not in active]
    ours = [doc for doc in records("firewall") if doc["program"] == program]
    stale = [doc for doc in ours if doc["source"] not in sources] if module.params["complete"] else []
    changed = bool(missing or stale)
    if not changed:
        rescue.unchanged()
    if changed and not module.check_mode:
        old = [doc["source"] for doc in stale]
        documents = [record_path("firewall", f"{program} {source}") + ".json" for source in [*missing, *old]]
        commands = undo_commands(module, program, missing, old)
        rescue.arm(saved_paths(program), commands, records=documents)
    try:
        if changed and not module.check_mode:
            for source in missing:
                if source not in saved:
                    record("firewall", f"{program} {source}", {"program": program, "source": source})
            add_rules(module, program, missing)
            remove_rules(module, program, [doc["source"] for doc in stale])
            for doc in stale:
                os.unlink(doc["base"] + ".json")
    except FirewallError as error:
        rescue.revert()
        module.fail_json(
            msg=f"{program} refuses a rule ({error}). Correct the rules of the firewall, or set cluster_firewall to check and admit the other nodes yourself."
        )
    diff = {
        "before_header": program,
        "after_header": program,
        "before": "".join("admit {}\n".format(doc["source"]) for doc in stale),
        "after": "".join(f"admit {source}\n" for source in missing),
    }
    result = {"changed": changed, "decided": decided, "diff": [diff] if changed else []}
    module.exit_json(**rescue.changed(result))


if __name__ == "__main__":
    main()
