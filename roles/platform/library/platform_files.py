#!/usr/bin/python
"""Ansible module: write all files of a role in one remote task."""

DOCUMENTATION = r"""
module: platform_files
short_description: Write, edit or remove several files in one remote task
description:
  - Every remote task takes seconds on a slow node, so a role writes all its files in one task.
  - Replaces a file atomically (a temporary file is renamed). A file that is a mount point, such as /etc/hosts of a container
    node, is rewritten in place.
  - Records the original file in C(/var/lib/provision/origins) before the first change, for a reset.
  - Sets owner and mode on the open file, not by its name, and never waits for a pipe. A path that is a link, a pipe or
    of another unexpected type is an error. Only state=block follows a link and edits its target.
options:
  files:
    description: The files, in order.
    type: list
    elements: dict
    required: true
    suboptions:
      path: {description: Absolute path., type: path, required: true}
      state: {description: Desired state., type: str, choices: [file, block, directory, absent], default: file}
      content: {description: 'The whole file, or the lines of the block.', type: str, default: ""}
      encoding: {description: Encoding of I(content). Use base64 for a binary file., type: str, choices: [text, base64], default: text}
      marker: {description: Name of the block in its BEGIN and END lines., type: str, default: provision}
      at_start: {description: Insert a new block at the top of the file., type: bool, default: false}
      drop: {description: 'state=block: regular expression for lines outside the block to remove.', type: str}
      mode: {description: Octal mode. Default 0644; 0755 for a directory. A block does not change the mode., type: str}
      owner: {description: Owner., type: str, default: root}
      group: {description: Group., type: str, default: root}
      validate: {description: 'Command that validates the new file; %s is its name.', type: str}
      origin: {description: 'Record the original file. Set it to false for leftovers of an interrupted run.', type: bool, default: true}
  modules:
    description: Kernel modules that the node loads because of these files. The module records whether they are loaded if a file changes.
    type: list
    elements: str
    default: []
author: [provision]
"""

import base64
import errno
import grp
import os
import pwd
import re
import shlex
import shutil
import stat
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record_file, record_folder, record_module, record_new_folders
from ansible.module_utils.platform_replace import relabel

SUBOPTIONS = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["file", "block", "directory", "absent"], "default": "file"},
    "content": {"type": "str", "default": ""},
    "encoding": {"type": "str", "choices": ["text", "base64"], "default": "text"},
    "marker": {"type": "str", "default": "provision"},
    "at_start": {"type": "bool", "default": False},
    "drop": {"type": "str"},
    "mode": {"type": "str"},
    "owner": {"type": "str", "default": "root"},
    "group": {"type": "str", "default": "root"},
    "validate": {"type": "str"},
    "origin": {"type": "bool", "default": True},
}
UNEXPECTED = "not a {}. Remove it and apply again."


class UnexpectedTypeError(Exception):
    """The object at a path does not have the expected type."""


def open_path(path, flags=os.O_RDONLY, *, directory=False):
    """Return a descriptor of a regular file (or a directory), None if it does not exist. Do not follow links or wait."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnexpectedTypeError(
                f"it is a link to {os.readlink(path)}. Replace it by its target, or remove it, and apply again."
            ) from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise UnexpectedTypeError(UNEXPECTED.format("directory" if directory else "regular file")) from None
        raise
    kind = os.fstat(handle).st_mode
    if not (stat.S_ISDIR(kind) if directory else stat.S_ISREG(kind)):
        os.close(handle)
        raise UnexpectedTypeError(UNEXPECTED.format("directory" if directory else "regular file"))
    return handle


def read(path):
    """Return the text of `path`, None if it does not exist."""
    handle = open_path(path)
    if handle is None:
        return None
    with os.fdopen(handle, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def with_block(text, content, marker, at_start, drop):
    """Return `text` with the managed block replaced (or added), and without other lines that match `drop`."""
    begin, end = f"# BEGIN {marker}", f"# END {marker}"
    lines, outside, position, inside = text.splitlines(), [], None, False
    for line in lines:
        if line == begin:
            inside, position = True, len(outside) if position is None else position
        elif line == end and inside:
            inside = False
        elif not inside and not (drop and re.search(drop, line)):
            outside.append(line)
    block = [begin, *content.splitlines(), end] if content.strip() else []
    if position is None:
        position = 0 if at_start else len(outside)
    return "".join(line + "\n" for line in [*outside[:position], *block, *outside[position:]])


def decoded_content(item):
    """Return the decoded content of a whole file."""
    if item["encoding"] == "text":
        return item["content"]
    return base64.b64decode(item["content"]).decode("utf-8", errors="surrogateescape")


class Writer:
    """Brings files to their desired state."""

    def __init__(self, module):
        """Start without changes."""
        self.module = module
        self.changed = []
        self.diffs = []

    def apply(self, item):
        """Bring one file to its desired state, and add it to the changed files if it differed."""
        if item["state"] == "absent":
            self._remove(item["path"], origin=item["origin"])
        elif item["state"] == "directory":
            self._directory(item)
        else:
            self._file(item)

    def _add_change(self, path, before, after):
        if path not in self.changed:
            self.changed.append(path)
        self.diffs.append({"before_header": path, "after_header": path, "before": before, "after": after})

    def _remove(self, path, *, origin):
        if not os.path.lexists(path):
            return
        self._add_change(path, "present\n", "absent\n")
        if self.module.check_mode:
            return
        if origin:
            record_file(path, "")
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def _directory(self, item):
        if not os.path.lexists(item["path"]):
            self._add_change(item["path"], "absent\n", "directory\n")
            if self.module.check_mode:
                return
            record_folder(item["path"])
            os.makedirs(item["path"], mode=0o755, exist_ok=True)
        self._attributes(item, item["path"], int(item["mode"] or "0755", 8), directory=True)

    def _file(self, item):
        path = os.path.realpath(item["path"]) if item["state"] == "block" else item["path"]
        before = read(path)
        if item["state"] == "block":
            after = with_block(before or "", item["content"], item["marker"], item["at_start"], item["drop"])
            mode = int(item["mode"], 8) if item["mode"] else None
        else:
            after, mode = decoded_content(item), int(item["mode"] or "0644", 8)
        if before != after and not (before is None and item["state"] == "block" and not after):
            texts = (before or "", after) if item["encoding"] == "text" else ("", "a binary file\n")
            self._add_change(item["path"], *texts)
            if self.module.check_mode:
                return
            self._write(item, path, after, mode)
        if os.path.lexists(path) and mode is not None:
            self._attributes(item, path, mode)

    def _write(self, item, path, text, mode):
        record_new_folders(os.path.dirname(path))
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".provision-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
                stream.write(text)
                stream.flush()
                old = os.lstat(path).st_mode if os.path.lexists(path) else 0o644
                os.fchown(handle, pwd.getpwnam(item["owner"]).pw_uid, grp.getgrnam(item["group"]).gr_gid)
                os.fchmod(handle, stat.S_IMODE(old) if mode is None else mode)
                os.fsync(handle)
            if item["validate"]:
                self._validate(item, temporary)
            self._record(item, path, text)
            self._replace(temporary, path, text)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)

    @staticmethod
    def _record(item, path, text):
        if item["state"] == "block":
            record_file(path, text, kind="block", marker=item["marker"], drop=item["drop"])
        else:
            record_file(path, text)

    def _validate(self, item, temporary):
        arguments = [word.replace("%s", temporary) for word in shlex.split(item["validate"])]
        code, out, err = self.module.run_command(arguments)
        if code != 0:
            self.module.fail_json(
                msg="{}: `{}` refuses the new content ({}). The file is unchanged.".format(
                    item["path"], item["validate"], (err or out).strip()
                )
            )

    @staticmethod
    def _replace(temporary, path, text):
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            with os.fdopen(
                open_path(path, os.O_WRONLY), "w", encoding="utf-8", errors="surrogateescape", newline=""
            ) as stream:
                stream.truncate()
                stream.write(text)

    def _attributes(self, item, path, mode, *, directory=False):
        handle = open_path(path, directory=directory)
        try:
            self._set_attributes(item, path, mode, handle)
        finally:
            os.close(handle)

    def _set_attributes(self, item, path, mode, handle):
        status = os.fstat(handle)
        owner, group = pwd.getpwnam(item["owner"]).pw_uid, grp.getgrnam(item["group"]).gr_gid
        current, desired = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid), (mode, owner, group)
        if current == desired:
            return
        self._add_change(
            item["path"], "mode {:04o} uid {} gid {}\n".format(*current), "mode {:04o} uid {} gid {}\n".format(*desired)
        )
        if not self.module.check_mode:
            if stat.S_ISDIR(status.st_mode):
                record_folder(path)
            else:
                self._record(item, path, read(path))
            os.fchown(handle, owner, group)
            os.fchmod(handle, mode)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "required": True, "options": SUBOPTIONS},
            "modules": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    writer = Writer(module)
    for item in module.params["files"]:
        try:
            writer.apply(item)
        except (OSError, KeyError, UnexpectedTypeError) as error:
            reason = f"no such user or group: {error}" if isinstance(error, KeyError) else error
            reason = getattr(error, "strerror", None) or reason
            module.fail_json(msg="{}: cannot write it ({})".format(item["path"], reason))
    for name in module.params["modules"] if writer.changed and not module.check_mode else ():
        record_module(name)
    if not module.check_mode:
        relabel(writer.changed)
    module.exit_json(changed=bool(writer.changed), changed_paths=writer.changed, diff=writer.diffs)


if __name__ == "__main__":
    main()
