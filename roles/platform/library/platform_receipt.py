#!/usr/bin/python
"""Ansible module: write the receipts of the roles that succeeded on a node."""

DOCUMENTATION = r"""
module: platform_receipt
short_description: Write the receipts of roles on the node
description:
  - Writes the desired state and the state of all managed objects to C(/var/lib/provision/receipts/ROLE.json), for all roles in
    one remote task. C(platform_managed) reads the state, as the probe does later.
  - A receipt contains no time and is written only if it differs, so that a second run changes nothing.
  - Each receipt has a seal, a hash with a key of the node, which reveals manual changes. Only root can read receipts, seals and
    key. The hash of a file that is not world-readable uses the key as well.
options:
  receipts:
    description: The receipts of the roles.
    type: list
    elements: dict
    required: true
    suboptions:
      role: {description: Name of the role., type: str, required: true}
      inputs: {description: Desired values. No secrets., type: dict, default: {}}
      files: {description: Managed files., type: list, elements: str, default: []}
      parts:
        description: 'Managed parts of partly managed files: path -> block (the marker) or keys (of a JSON object).'
        type: dict
        default: {}
      packages: {description: Managed packages., type: list, elements: str, default: []}
      units: {description: Managed systemd units., type: list, elements: str, default: []}
      modules: {description: Managed kernel modules., type: list, elements: str, default: []}
      images: {description: Managed container images., type: list, elements: str, default: []}
      containers: {description: Managed containers., type: list, elements: str, default: []}
      reductions: {description: 'Settings that were reduced or skipped on this node, with reasons.', type: list, elements: str, default: []}
      incomplete: {description: 'Names of optional parts that failed.', type: list, elements: str, default: []}
  fingerprints:
    description: Role -> fingerprint of its files and variables. Without one, the fingerprint in the receipt is preserved.
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
LISTS = (*SECTIONS, "reductions", "incomplete")
KEY = re.compile(rb"[0-9a-f]{64}")


def is_private(path):
    """Return whether only root can read `path`."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077 and not stat.S_ISLNK(status.st_mode)


def restrict_folder(module):
    """Create the folder and let only root read it; return whether that is a change."""
    if is_private(FOLDER):
        return False
    if not module.check_mode:
        os.makedirs(FOLDER, mode=0o700, exist_ok=True)
        os.chown(FOLDER, os.geteuid(), os.getegid())
        os.chmod(FOLDER, 0o700)
    return True


def key_of_node(module):
    """Return the node's key. Generate it once, and again if other users may have read it."""
    path = os.path.join(FOLDER, "key")
    key = content_of(path) or b""
    if is_private(path) and KEY.fullmatch(key):
        return key
    key = os.urandom(32).hex().encode()
    if not module.check_mode:
        replace(path, key, 0o600)
    return key


def sealed_content(role, key):
    """Return the bytes of a receipt with a valid seal, else None."""
    path, seal_path = (os.path.join(FOLDER, role + ending) for ending in (".json", ".seal"))
    content = content_of(path)
    if content is None or not (is_private(path) and is_private(seal_path)):
        return None
    return content if content_of(seal_path) == seal(key, content).encode() else None


def managed_names(entry):
    """Return the names of the managed objects of a role, in the form of a receipt."""
    receipt = {section: sorted(set(entry[section])) for section in SECTIONS}
    receipt["files"] = {path: entry["parts"].get(path) or {} for path in receipt["files"]}
    return receipt


def observe(module, key):
    """Return role -> the state of its managed objects."""
    names = {item["role"]: managed_names(item) for item in module.params["receipts"]}
    observed, hung = observe_all(names, key)
    for role, sections in observed.items():
        for section in SECTIONS:
            if section not in sections and module.check_mode:
                sections[section] = dict.fromkeys(names[role][section])
            elif section not in sections:
                source = " and ".join(hung) or ("systemd" if section == "units" else "docker")
                module.fail_json(
                    msg=f"{source}: no answer about the {section} of the role {role} ({', '.join(names[role][section])}), so its "
                    "receipt was not written. Find the cause on the node, and apply again."
                )
    return observed


def write_receipt(module, entry, observed, key):
    """Write one receipt if it differs; return its diff, None if it does not differ."""
    role, before = entry["role"], sealed_content(entry["role"], key)
    old = json.loads(before.decode()) if before else {}
    receipt = {
        "role": role,
        "inputs": entry["inputs"],
        "reductions": sorted(set(entry["reductions"])),
        **({"incomplete": sorted(set(entry["incomplete"]))} if entry["incomplete"] else {}),
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
    return {"before_header": path, "after_header": path, "before": diff_text(old), "after": diff_text(receipt)}


def diff_text(receipt):
    """Return a receipt for a diff, without hashes of content that is not world-readable."""
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
        restricted = restrict_folder(module)
        key = key_of_node(module)
        observed = observe(module, key)
        diffs = {
            item["role"]: write_receipt(module, item, observed[item["role"]], key) for item in module.params["receipts"]
        }
    except OSError as error:
        module.fail_json(msg=f"{error.filename or FOLDER}: cannot write the receipts ({error.strerror})")
    written = [role for role, diff in diffs.items() if diff]
    module.exit_json(changed=restricted or bool(written), written=written, diff=[diffs[role] for role in written])


if __name__ == "__main__":
    main()
