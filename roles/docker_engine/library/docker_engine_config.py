#!/usr/bin/python
"""Ansible module: merge settings into daemon.json without losing anything that is there."""

DOCUMENTATION = r"""
module: docker_engine_config
short_description: Merge settings into docker's daemon.json
description:
  - Keys that others wrote stay. Keys that this role wrote in its last run and that are no longer wanted go.
  - A file that is no JSON is kept as it is, copied beside, and reported with line and column.
  - The new file is checked by C(dockerd --validate) where dockerd knows that option, else as far as all versions agree.
  - The file that stood there before the first change is noted, for a reset.
  - An existing file keeps its mode, but that root alone may write it. Copies are readable by root alone.
options:
  path: {description: The file., type: path, default: /etc/docker/daemon.json}
  settings: {description: What is wanted., type: dict, required: true}
  private: {description: The settings may hold secrets; only root reads the file and no value is shown., type: bool, default: false}
author: [provision]
"""

import hashlib
import json
import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.docker_engine_json import BrokenFileError, merge, needed, parse, problems, without
from ansible.module_utils.platform_origin import record_data_folder, record_file
from ansible.module_utils.platform_replace import replace

WRITTEN = "/var/lib/provision/docker_engine.json"


def read(path):
    """Return a file's text, None when there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def written_before():
    """Return the settings that this role wrote when it last ended well."""
    try:
        settings = json.loads(read(WRITTEN) or "{}")
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def mode_of(path):
    """Return a file's mode, None when there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def is_roots(path):
    """Return whether a file belongs to root."""
    status = os.stat(path)
    return (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def refuse_broken(module, path, text, reason):
    """Keep a broken file, copy it beside, and say what to do."""
    backup = "{}.broken-{}".format(path, hashlib.sha256(text.encode()).hexdigest()[:8])
    if not module.check_mode and not os.path.exists(backup):
        record_file(backup, text)
        replace(backup, text, 0o600)
    module.fail_json(
        msg=f"{reason}. The file is not valid JSON, so docker cannot start with it. It was left as it was"
        + ("" if module.check_mode else f" and copied to {backup}")
        + ". Correct it, or remove it if nothing in it is needed, and apply again."
    )


def validate(module, settings, text):
    """Fail when dockerd refuses the new file, or would: dockerd before 23 cannot say so without taking it."""
    program, reason = module.get_bin_path("dockerd"), ""
    if program and "--validate" in module.run_command([program, "--help"])[1]:
        name = os.path.join(module.tmpdir, "daemon.json")
        replace(name, text, 0o600)
        code, out, err = module.run_command([program, "--validate", "--config-file", name])
        reason = (err or out).strip()[-500:] or f"exit code {code}" if code != 0 else ""
    else:
        reason = "; ".join(problems(settings))
    if reason:
        module.fail_json(
            msg=f"dockerd refuses the new daemon.json: {reason}. The file on the node was left as it was. Correct "
            "docker_engine_registry_mirrors or docker_engine_daemon_options, or what others wrote into the file."
        )


def shown(text, settings, private):
    """Return a file's text for a diff; of a private one only the names."""
    return json.dumps(dict.fromkeys(sorted(settings), "********"), indent=2) + "\n" if private and text else text


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "settings": {"type": "dict", "required": True},
            "private": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    path, wanted, private = module.params["path"], module.params["settings"], module.params["private"]
    before, mode = read(path), mode_of(path)
    mode_wanted = 0o600 if private else 0o644 if mode is None else mode & ~0o022
    private = private or (mode is not None and not mode & stat.S_IROTH)
    try:
        present = parse(before or "", path)
    except BrokenFileError as error:
        refuse_broken(module, path, before, str(error))
    ours = needed(present, wanted)
    settings = merge(without(present, written_before(), wanted), ours)
    differs = settings != present or (before is None and settings != {})
    changed = differs or (before is not None and (mode != mode_wanted or not is_roots(path)))
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n" if differs else before
    if differs:
        validate(module, settings, text)
    if changed and not module.check_mode:
        try:
            record_file(path, kind="json", settings=ours)
            record_data_root(ours)
            back_up_and_write(path, before, text, mode_wanted)
        except OSError as error:
            module.fail_json(msg=f"{path}: could not be written: {error.strerror}")
    diff = {"before_header": path, "after_header": path}
    diff.update(before=shown(before or "", present, private), after=shown(text, settings, private))
    module.exit_json(changed=changed, settings=settings, ours=ours, diff=diff if changed else {})


def record_data_root(settings):
    """Note whether docker's data folder is there before docker fills it."""
    if isinstance(settings.get("data-root"), str):
        record_data_folder(settings["data-root"])


def back_up_and_write(path, before, text, mode):
    """Replace the file; the one that docker last took stays beside it until docker has taken the new one."""
    previous = path + ".provision-previous"
    if before == text:
        os.chown(path, os.geteuid(), os.getegid())
        os.chmod(path, mode)
        return
    if before is not None and not os.path.exists(previous):
        record_file(previous, before)
        replace(previous, before, mode)
    replace(path, text, mode)


if __name__ == "__main__":
    main()
