#!/usr/bin/python
"""Ansible module: merge settings into daemon.json and preserve pre-existing settings."""

DOCUMENTATION = r"""
module: docker_engine_config
short_description: Merge settings into docker's daemon.json
description:
  - Preserves keys that the role did not write. Removes keys that the role wrote in its last run and that are no longer desired.
  - Does not change a file with invalid JSON, copies it to a second file, and reports line and column.
  - Fails before it writes what is also set on the command line of the running dockerd.
  - Checks the new file with C(dockerd --validate) if dockerd has this option, else with rules that hold for all versions.
  - Records the original file before the first change, for a reset.
  - Preserves the mode of an existing file, but only root may write it. Only root can read copies.
options:
  path: {description: The file., type: path, default: /etc/docker/daemon.json}
  settings: {description: Desired settings., type: dict, required: true}
  private: {description: 'The settings may contain secrets: only root can read the file, and no value is shown.', type: bool, default: false}
author: [provision]
"""

import hashlib
import json
import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.docker_engine_json import BrokenFileError, merge, needed, parse, problems, without_obsolete
from ansible.module_utils.platform_origin import record_data_folder, record_file
from ansible.module_utils.platform_replace import replace

LAST_SETTINGS = "/var/lib/provision/docker_engine.json"


def read(path):
    """Return a file's text, None if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def last_settings():
    """Return the settings that the last successful run of the role wrote."""
    try:
        settings = json.loads(read(LAST_SETTINGS) or "{}")
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def mode_of(path):
    """Return a file's mode, None if it does not exist."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def is_owned_by_root(path):
    """Return whether a file belongs to root."""
    status = os.stat(path)
    return (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def refuse_broken(module, path, text, reason):
    """Copy a file with invalid JSON to a second file, and fail with the remedy."""
    backup = "{}.broken-{}".format(path, hashlib.sha256(text.encode()).hexdigest()[:8])
    if not module.check_mode and not os.path.exists(backup):
        record_file(backup, text)
        replace(backup, text, 0o600)
    module.fail_json(
        msg=f"{reason} (invalid JSON, so docker cannot start with it; the file is unchanged"
        + (")" if module.check_mode else f", with a copy in {backup})")
        + ". Correct the file, or remove it if its settings are not needed, and apply again."
    )


def validate(module, settings, text):
    """Fail if dockerd refuses the new file, or would refuse it: dockerd before version 23 cannot check a file without using it."""
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
            msg=f"daemon.json: dockerd refuses the new settings ({reason}; the file on the node is unchanged). Correct "
            "docker_engine_registry_mirrors, docker_engine_daemon_options or the pre-existing settings in the file."
        )


def refuse_conflicts(module, settings, words):
    """Fail if options of the running dockerd set what the file sets: dockerd does not start then."""
    conflicts = [key for key in sorted(settings) if any(sets(option, key) for option in options_of(words))]
    if conflicts:
        module.fail_json(
            msg=f"daemon.json: dockerd would not start: {', '.join(conflicts)} would be set in the file and on its command line "
            "(the file on the node is unchanged). Remove these options from the drop-in of docker.service "
            "(systemctl cat docker.service) or from /etc/default/docker, or remove the settings from the inventory."
        )


def options_of(words):
    """Return the names of the options on dockerd's command line."""
    short = {"-H": "host", "-g": "data-root", "-D": "debug", "-l": "log-level", "-G": "group", "-p": "pidfile"}
    return {
        short.get(word[:2], "") if word[1:2] != "-" else word[2:].partition("=")[0] for word in words if word[:1] == "-"
    }


def sets(option, key):
    """Return whether an option of dockerd sets a key of the file: --log-opt sets log-opts, --insecure-registry insecure-registries."""
    others = {"add-runtime": "runtimes", "graph": "data-root"}
    return key in (option, option + "s", option[:-1] + "ies", others.get(option))


def running_command(module):
    """Return the words of the command line of the running dockerd; none if systemd started none."""
    if not module.get_bin_path("systemctl"):
        return []
    pid = module.run_command(["systemctl", "show", "docker.service", "--property=MainPID"])[1].strip().partition("=")[2]
    try:
        with open(f"/proc/{int(pid)}/cmdline", encoding="utf-8", errors="replace") as stream:
            return stream.read().split("\0")
    except (OSError, ValueError):
        return []


def diff_text(text, settings, private):
    """Return a file's text for a diff; of a private file only the names of settings."""
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
    path, desired, private = module.params["path"], module.params["settings"], module.params["private"]
    before, mode = read(path), mode_of(path)
    new_mode = 0o600 if private else 0o644 if mode is None else mode & ~0o022
    private = private or (mode is not None and not mode & stat.S_IROTH)
    try:
        present = parse(before or "", path)
    except BrokenFileError as error:
        refuse_broken(module, path, before, str(error))
    managed = needed(present, desired)
    settings = merge(without_obsolete(present, last_settings(), desired), managed)
    differs = settings != present or (before is None and settings != {})
    changed = differs or (before is not None and (mode != new_mode or not is_owned_by_root(path)))
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n" if differs else before
    if differs:
        refuse_conflicts(module, settings, running_command(module))
        validate(module, settings, text)
    if changed and not module.check_mode:
        try:
            record_file(path, kind="json", settings=managed)
            record_data_root(managed)
            back_up_and_write(path, before, text, new_mode)
        except OSError as error:
            module.fail_json(msg=f"{path}: cannot write the file ({error.strerror})")
    diff = {"before_header": path, "after_header": path}
    diff.update(before=diff_text(before or "", present, private), after=diff_text(text, settings, private))
    module.exit_json(changed=changed, settings=settings, managed=managed, diff=diff if changed else {})


def record_data_root(settings):
    """Record whether docker's data folder exists before docker fills it."""
    if isinstance(settings.get("data-root"), str):
        record_data_folder(settings["data-root"])


def back_up_and_write(path, before, text, mode):
    """Replace the file, and keep the previous one as a backup until docker has accepted the new one."""
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
