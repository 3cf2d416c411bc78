#!/usr/bin/python
"""Ansible module: the receipt that a role leaves on a node when it ended well."""

DOCUMENTATION = r"""
module: platform_receipt
short_description: Leave roles' receipts on the node
description:
  - Writes what was wanted and what is there of what is managed to C(/var/lib/provision/receipts/ROLE.json), for all roles in
    one remote task. C(platform_managed) looks at what is there, as the probe does later.
  - The content has no time in it and a file is written only when it differs, so a second run changes nothing.
  - Beside each receipt is its seal, made with a key of the node, so that a change by other hands is seen. All of it is root's
    alone. The hash of a file that not everybody may read is made with the key too.
options:
  receipts:
    description: What each role says of itself.
    type: list
    elements: dict
    required: true
    suboptions:
      role: {description: Name of the role., type: str, required: true}
      inputs: {description: Wanted values. No secrets., type: dict, default: {}}
      files: {description: Managed files., type: list, elements: str, default: []}
      parts:
        description: 'What is ours of a file that is not all ours: its path, and either block (the marker) or keys (of a JSON object).'
        type: dict
        default: {}
      packages: {description: Managed packages., type: list, elements: str, default: []}
      units: {description: Managed systemd units., type: list, elements: str, default: []}
      modules: {description: Managed kernel modules., type: list, elements: str, default: []}
      images: {description: Managed container images., type: list, elements: str, default: []}
      containers: {description: Managed containers., type: list, elements: str, default: []}
      reductions: {description: What was cut or left out on this node and why., type: list, elements: str, default: []}
  fingerprints:
    description: By role, what its files and variables were. A role without one keeps the one that its receipt has.
    type: dict
    default: {}
author: [provision]
"""

import json
import os
import re
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_managed import SECTIONS, content_of, observe_all, seal
from ansible.module_utils.platform_replace import replace

FOLDER = "/var/lib/provision/receipts"
LISTS = (*SECTIONS, "reductions")
KEY = re.compile(rb"[0-9a-f]{64}")


def is_private(path):
    """Return whether `path` is ours and closed to everybody else."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode)


def close_folder(module):
    """Make the folder root's alone; return whether there was anything to do."""
    if is_private(FOLDER):
        return False
    if not module.check_mode:
        os.makedirs(FOLDER, mode=0o700, exist_ok=True)
        os.chown(FOLDER, os.geteuid(), os.getegid())
        os.chmod(FOLDER, 0o700)
    return True


def key_of_node(module):
    """Return the node's key; it is made once, and anew where others may have read it."""
    path = os.path.join(FOLDER, "key")
    key = content_of(path) or b""
    if is_private(path) and KEY.fullmatch(key):
        return key
    key = os.urandom(32).hex().encode()
    if not module.check_mode:
        replace(path, key, 0o600)
    return key


def sealed(role, key):
    """Return a receipt's bytes when we wrote it as it is, None otherwise."""
    path, beside = (os.path.join(FOLDER, role + ending) for ending in (".json", ".seal"))
    content = content_of(path)
    if content is None or not (is_private(path) and is_private(beside)):
        return None
    return content if content_of(beside) == seal(key, content).encode() else None


def skeleton(wanted):
    """Return the names of all that a role manages, in the form of a receipt."""
    receipt = {section: sorted(set(wanted[section])) for section in SECTIONS}
    receipt["files"] = {path: wanted["parts"].get(path) or {} for path in receipt["files"]}
    return receipt


def look(module, key):
    """Return role -> what is there of what it manages."""
    wanted = {item["role"]: skeleton(item) for item in module.params["receipts"]}
    observed, hung = observe_all(wanted, key)
    for role, sections in observed.items():
        for section in SECTIONS:
            if section not in sections and module.check_mode:
                sections[section] = dict.fromkeys(wanted[role][section])
            elif section not in sections:
                who = " and ".join(hung) or ("systemd" if section == "units" else "docker")
                module.fail_json(
                    msg=f"{who} did not tell how the {section} of the role {role} are ({', '.join(wanted[role][section])}), so "
                    "its receipt was not written. See why on the node, and apply again."
                )
    return observed


def leave(module, wanted, observed, key):
    """Write one receipt where it differs; return its diff, None where there is nothing to do."""
    role, before = wanted["role"], sealed(wanted["role"], key)
    old = json.loads(before.decode()) if before else {}
    receipt = {
        "role": role,
        "inputs": wanted["inputs"],
        "reductions": sorted(set(wanted["reductions"])),
        "fingerprint": module.params["fingerprints"].get(role) or old.get("fingerprint"),
        **observed,
    }
    content = (json.dumps(receipt, indent=2, sort_keys=True) + "\n").encode()
    if before == content:
        return None
    path = os.path.join(FOLDER, role + ".json")
    if not module.check_mode:
        replace(path, content, 0o600)
        replace(os.path.join(FOLDER, role + ".seal"), seal(key, content), 0o600)
    return {"before_header": path, "after_header": path, "before": shown(old), "after": shown(receipt)}


def shown(receipt):
    """Return a receipt for people: without hashes of what not everybody may know."""
    if not receipt:
        return ""
    fingerprint = receipt.get("fingerprint") or {}
    files = {
        path: item
        if int(item.get("mode", "0644"), 8) & stat.S_IROTH
        else {**item, "sum": "********", "keys": "********"}
        for path, item in receipt["files"].items()
    }
    visible = {**receipt, "files": files, "fingerprint": sorted(fingerprint.get("variables") or {})}
    return json.dumps(visible, indent=2, sort_keys=True) + "\n"


def main():
    """Run the module."""
    receipt = {name: {"type": "list", "elements": "str", "default": []} for name in LISTS}
    receipt.update(role={"type": "str", "required": True})
    receipt.update({name: {"type": "dict", "default": {}} for name in ("inputs", "parts")})
    module = AnsibleModule(
        argument_spec={
            "receipts": {"type": "list", "elements": "dict", "required": True, "options": receipt},
            "fingerprints": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        closed = close_folder(module)
        key = key_of_node(module)
        observed = look(module, key)
        diffs = {item["role"]: leave(module, item, observed[item["role"]], key) for item in module.params["receipts"]}
    except OSError as error:
        module.fail_json(msg=f"{error.filename or FOLDER}: the receipts could not be written: {error.strerror}")
    written = [role for role, diff in diffs.items() if diff]
    module.exit_json(changed=closed or bool(written), written=written, diff=[diffs[role] for role in written])


if __name__ == "__main__":
    main()
