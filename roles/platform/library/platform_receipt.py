#!/usr/bin/python
"""Ansible module: the receipt that a role leaves on a node when it ended well."""

from __future__ import annotations

DOCUMENTATION = r"""
module: platform_receipt
short_description: Leave roles' receipts on the node
description:
  - Writes what was wanted and what is managed to C(/var/lib/provision/receipts/ROLE.json), for all roles in one remote task.
  - The content has no time in it and a file is written only when it differs, so a second run changes nothing.
options:
  receipts:
    description: What each role says of itself.
    type: list
    elements: dict
    required: true
    suboptions:
      role: {description: Name of the role., type: str, required: true}
      inputs: {description: Wanted values. No secrets., type: dict, default: {}}
      files: {description: Managed files; the SHA-256 of those that everybody may read is recorded., type: list, elements: str, default: []}
      packages: {description: Managed packages; their versions are recorded., type: list, elements: str, default: []}
      units: {description: Managed systemd units., type: list, elements: str, default: []}
      modules: {description: Managed kernel modules., type: list, elements: str, default: []}
      images: {description: Managed container images., type: list, elements: str, default: []}
      containers: {description: Managed containers., type: list, elements: str, default: []}
      reductions: {description: What was cut or left out on this node and why., type: list, elements: str, default: []}
author: [provision]
"""

EXAMPLES = r"""
- name: Leave the receipts
  platform_receipt:
    receipts:
      - {role: base_system, files: [/etc/hosts]}
"""

RETURN = r"""
written:
  description: The roles whose receipts were, or in check mode would be, written.
  returned: always
  type: list
  elements: str
"""

import hashlib
import json
import os
import stat
import tempfile

from ansible.module_utils.basic import AnsibleModule

FOLDER = "/var/lib/provision"
PRESENT = "present"
LISTS = ("files", "packages", "units", "modules", "images", "containers", "reductions")


def digest(path):
    """Return the SHA-256 of a file, None when it cannot be read.

    Of a file that not everybody may read only that it is there: its hash would let everybody test guesses of a password in it.
    """
    try:
        with open(path, "rb") as stream:
            if not os.fstat(stream.fileno()).st_mode & stat.S_IROTH:
                return PRESENT
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return None


def versions(module, names):
    """Return the installed version of each package, None for one that is not installed."""
    found = dict.fromkeys(names)
    if names and module.get_bin_path("dpkg-query"):
        arguments = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\\n", *names]
    elif names and module.get_bin_path("rpm"):
        arguments = ["rpm", "-q", "--qf", "%{NAME} installed %{VERSION}-%{RELEASE}\\n", *names]
    else:
        return found
    for line in module.run_command(arguments)[1].splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in found and words[1] == "installed":
            found[words[0]] = words[2]
    return found


def write(path, text):
    """Replace `path` by `text` in one step."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".receipt-")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(stream.fileno(), 0o644)
        os.fsync(stream.fileno())
    os.rename(temporary, path)


def leave(module, wanted):
    """Write one receipt where it differs; return its diff, None where there is nothing to do."""
    receipt = {name: sorted(set(wanted[name])) for name in LISTS}
    receipt.update(
        role=wanted["role"],
        inputs=wanted["inputs"],
        files={path: digest(path) for path in receipt["files"]},
        packages=versions(module, receipt["packages"]),
    )
    path = os.path.join(FOLDER, "receipts", wanted["role"] + ".json")
    text = json.dumps(receipt, indent=2, sort_keys=True) + "\n"
    try:
        with open(path, encoding="utf-8") as stream:
            before = stream.read()
    except OSError:
        before = ""
    if before == text:
        return None
    if not module.check_mode:
        try:
            write(path, text)
        except OSError as error:
            module.fail_json(msg=f"{path}: the receipt could not be written: {error.strerror}")
    return {"before_header": path, "after_header": path, "before": before, "after": text}


def main():
    """Run the module."""
    receipt = {name: {"type": "list", "elements": "str", "default": []} for name in LISTS}
    receipt.update(role={"type": "str", "required": True}, inputs={"type": "dict", "default": {}})
    spec = {"receipts": {"type": "list", "elements": "dict", "required": True, "options": receipt}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    diffs = {item["role"]: leave(module, item) for item in module.params["receipts"]}
    written = [role for role, diff in diffs.items() if diff]
    module.exit_json(changed=bool(written), written=written, diff=[diffs[role] for role in written])


if __name__ == "__main__":
    main()
