#!/usr/bin/python
"""Ansible module: all files of a role in one remote task."""

DOCUMENTATION = r"""
module: platform_files
short_description: Write, edit or remove several files in one remote task
description:
  - Every remote task costs seconds on a slow node, so a role hands all its files to one task.
  - A file is replaced in one step (written beside and renamed); where it is a mount point, as /etc/hosts is in a
    container node, it is rewritten in place.
  - What was there before the first change is noted in C(/var/lib/provision/origins), for a reset.
  - Owner and mode are set on the open file, never by its name, and what is there is opened without waiting. A path that
    is a link, a pipe or anything else than what it should be is an error. Only state=block follows a link, and edits
    the file that it leads to.
options:
  files:
    description: The files, in order.
    type: list
    elements: dict
    required: true
    suboptions:
      path: {description: Absolute path., type: path, required: true}
      state: {description: What it should be., type: str, choices: [file, block, directory, absent], default: file}
      content: {description: The whole file, or the block's lines., type: str, default: ""}
      encoding: {description: How I(content) is given; base64 is for a whole file that is not text., type: str, choices: [text, base64], default: text}
      marker: {description: Names the block in its BEGIN and END lines., type: str, default: provision}
      at_start: {description: A new block goes to the top of the file., type: bool, default: false}
      drop: {description: 'state=block: regular expression; lines outside the block that match are removed.', type: str}
      mode: {description: Octal mode. Default 0644; 0755 for a directory. A block leaves the mode alone., type: str}
      owner: {description: Owner., type: str, default: root}
      group: {description: Group., type: str, default: root}
      validate: {description: 'Command that checks the new file, with %s for its name.', type: str}
      origin: {description: 'Note what was there before. Not for what a run that was cut short left.', type: bool, default: true}
  modules:
    description: Kernel modules that these files make the node load. Whether they are loaded now is noted when a file changes.
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
UNEXPECTED = "it is no {}. Remove it and apply again."


class Unexpected(Exception):
    """What stands at a path is not what may be written there."""


def opened(path, flags=os.O_RDONLY, *, directory=False):
    """Return a descriptor of a regular file (or a directory), None when there is nothing. Follows no link, never waits."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise Unexpected(
                f"it is a link to {os.readlink(path)}. Put what it leads to in its place, or remove it, and apply again."
            ) from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise Unexpected(UNEXPECTED.format("directory" if directory else "regular file")) from None
        raise
    kind = os.fstat(handle).st_mode
    if not (stat.S_ISDIR(kind) if directory else stat.S_ISREG(kind)):
        os.close(handle)
        raise Unexpected(UNEXPECTED.format("directory" if directory else "regular file"))
    return handle


def read(path):
    """Return the text of `path`, or None when there is no such file."""
    handle = opened(path)
    if handle is None:
        return None
    with os.fdopen(handle, encoding="utf-8", errors="surrogateescape", newline="") as stream:
        return stream.read()


def with_block(text, content, marker, at_start, drop):
    """Return `text` with the managed block replaced (or added), and without outside lines that match `drop`."""
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


def whole(item):
    """Return the text of a whole file."""
    if item["encoding"] == "text":
        return item["content"]
    return base64.b64decode(item["content"]).decode("utf-8", errors="surrogateescape")


class Writer:
    """Makes one file after the other what it should be."""

    def __init__(self, module):
        """Remember the module and start with nothing changed."""
        self.module = module
        self.changed = []
        self.diffs = []

    def apply(self, item):
        """Bring one file to its state and note whether that changed anything."""
        if item["state"] == "absent":
            self._remove(item["path"], origin=item["origin"])
        elif item["state"] == "directory":
            self._directory(item)
        else:
            self._file(item)

    def _note(self, path, before, after):
        if path not in self.changed:
            self.changed.append(path)
        self.diffs.append({"before_header": path, "after_header": path, "before": before, "after": after})

    def _remove(self, path, *, origin):
        if not os.path.lexists(path):
            return
        self._note(path, "present\n", "absent\n")
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
            self._note(item["path"], "absent\n", "directory\n")
            if self.module.check_mode:
                return
            record_folder(item["path"])
            os.makedirs(item["path"], mode=0o755)
        self._attributes(item, item["path"], int(item["mode"] or "0755", 8), directory=True)

    def _file(self, item):
        path = os.path.realpath(item["path"]) if item["state"] == "block" else item["path"]
        before = read(path)
        if item["state"] == "block":
            after = with_block(before or "", item["content"], item["marker"], item["at_start"], item["drop"])
            mode = int(item["mode"], 8) if item["mode"] else None
        else:
            after, mode = whole(item), int(item["mode"] or "0644", 8)
        if before != after and not (before is None and item["state"] == "block" and not after):
            texts = (before or "", after) if item["encoding"] == "text" else ("", "a file that is not text\n")
            self._note(item["path"], *texts)
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
            self._keep(item, path, text)
            self._replace(temporary, path, text)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)

    @staticmethod
    def _keep(item, path, text):
        if item["state"] == "block":
            record_file(path, text, kind="block", marker=item["marker"], drop=item["drop"])
        else:
            record_file(path, text)

    def _validate(self, item, temporary):
        arguments = [word.replace("%s", temporary) for word in shlex.split(item["validate"])]
        code, out, err = self.module.run_command(arguments)
        if code != 0:
            self.module.fail_json(
                msg="{}: the new content was refused by `{}`: {}. The file was left as it was.".format(
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
                opened(path, os.O_WRONLY), "w", encoding="utf-8", errors="surrogateescape", newline=""
            ) as stream:
                stream.truncate()
                stream.write(text)

    def _attributes(self, item, path, mode, *, directory=False):
        handle = opened(path, directory=directory)
        try:
            self._set_attributes(item, path, mode, handle)
        finally:
            os.close(handle)

    def _set_attributes(self, item, path, mode, handle):
        status = os.fstat(handle)
        owner, group = pwd.getpwnam(item["owner"]).pw_uid, grp.getgrnam(item["group"]).gr_gid
        is_now, wanted = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid), (mode, owner, group)
        if is_now == wanted:
            return
        self._note(
            item["path"], "mode {:04o} uid {} gid {}\n".format(*is_now), "mode {:04o} uid {} gid {}\n".format(*wanted)
        )
        if not self.module.check_mode:
            if stat.S_ISDIR(status.st_mode):
                record_folder(path)
            else:
                self._keep(item, path, read(path))
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
        except (OSError, KeyError, Unexpected) as error:
            reason = f"no such user or group: {error}" if isinstance(error, KeyError) else error
            reason = getattr(error, "strerror", None) or reason
            module.fail_json(msg="{}: could not be written: {}".format(item["path"], reason))
    for name in module.params["modules"] if writer.changed and not module.check_mode else ():
        record_module(name)
    module.exit_json(changed=bool(writer.changed), changed_paths=writer.changed, diff=writer.diffs)


if __name__ == "__main__":
    main()
