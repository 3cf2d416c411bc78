#!/usr/bin/python
"""Ansible module: merge settings into daemon.json without losing anything that is there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine_config
short_description: Merge settings into docker's daemon.json
description:
  - Keys that others wrote stay. Keys that this role wrote in its last run and that are no longer wanted go.
  - A file that is no JSON is kept as it is, copied beside, and reported with line and column.
  - The new file is checked by C(dockerd --validate) where dockerd knows that option.
options:
  path: {description: The file., type: path, default: /etc/docker/daemon.json}
  settings: {description: What is wanted., type: dict, required: true}
author: [provision]
"""

EXAMPLES = r"""
- name: Merge into daemon.json
  docker_engine_config:
    settings: {live-restore: true}
"""

RETURN = r"""
settings:
  description: The whole file as it is, or in check mode would be.
  returned: always
  type: dict
"""

import hashlib
import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.docker_engine_json import BrokenFileError, merge, parse, without

RECEIPT = "/var/lib/provision/receipts/docker_engine.json"


def read(path):
    """Return a file's text, None when there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def written_before():
    """Return the settings that this role's last receipt records."""
    try:
        return json.loads(read(RECEIPT) or "{}").get("inputs", {}).get("daemon", {})
    except ValueError:
        return {}


def write(path, text):
    """Replace a file in one step."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = path + ".provision-new"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(temporary, 0o644)
    os.rename(temporary, path)


def refuse_broken(module, path, text, reason):
    """Keep a broken file, copy it beside, and say what to do."""
    backup = "{}.broken-{}".format(path, hashlib.sha256(text.encode()).hexdigest()[:8])
    if not module.check_mode and not os.path.exists(backup):
        write(backup, text)
    module.fail_json(
        msg=f"{reason}. The file is not valid JSON, so docker cannot start with it. It was left as it was"
        + ("" if module.check_mode else f" and copied to {backup}")
        + ". Correct it, or remove it if nothing in it is needed, and apply again."
    )


def validate(module, text):
    """Fail when this dockerd can check a file and refuses the new one."""
    program = module.get_bin_path("dockerd")
    if not program or "--validate" not in module.run_command([program, "--help"])[1]:
        return
    name = os.path.join(module.tmpdir, "daemon.json")
    with open(name, "w", encoding="utf-8") as stream:
        stream.write(text)
    code, out, err = module.run_command([program, "--validate", "--config-file", name])
    if code != 0:
        module.fail_json(
            msg="dockerd refuses the new daemon.json: {}. The file on the node was left as it was. "
            "Correct docker_engine_daemon_options.".format((err or out).strip()[-500:])
        )


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "settings": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    path, wanted = module.params["path"], module.params["settings"]
    before = read(path)
    try:
        present = parse(before or "", path)
    except BrokenFileError as error:
        refuse_broken(module, path, before, str(error))
    settings = merge(without(present, written_before(), wanted), wanted)
    changed = settings != present or before is None
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n" if changed else before
    if changed:
        validate(module, text)
        if not module.check_mode:
            try:
                if before is not None:
                    write(path + ".provision-previous", before)
                write(path, text)
            except OSError as error:
                module.fail_json(msg=f"{path}: could not be written: {error.strerror}")
    diff = {"before_header": path, "after_header": path, "before": before or "", "after": text}
    module.exit_json(changed=changed, settings=settings, diff=diff if changed else {})


if __name__ == "__main__":
    main()
