"""Reset files: restore the original files, and never lose later edits."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile

from ansible.module_utils.platform_origin import file_attributes
from ansible.module_utils.platform_replace import relabel

ORIGINAL_SUFFIX, EDITED_SUFFIX = ".provision-before", ".provision-edited"
OWN_FOLDERS = ("/usr/local/lib/provision", "/etc/provision")
_NOTHING = object()


class Step:
    """One step of the reset.

    Args:
        sentence: the description of the step, in the imperative.
        act: performs the step; returns a sentence if it could not complete it.
        path: the file that the step changes, if any.
    """

    def __init__(self, sentence, act, path=""):
        self.sentence, self.act, self.path = sentence, act, path


def read(path):
    """Return the bytes of a regular file, None if it does not exist. Do not follow links."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        return stream.read() if stat.S_ISREG(os.fstat(handle).st_mode) else None


def write(path, data, attributes):
    """Replace a file atomically (a mount point in place), with the mode, owners and time of `attributes`."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".provision-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchown(handle, attributes["owner"], attributes["group"])
            os.fchmod(handle, attributes["mode"])
            os.fsync(handle)
        os.utime(temporary, ns=(attributes["mtime"], attributes["mtime"]))
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            with open(path, "r+b") as stream:
                stream.truncate()
                stream.write(data)
            os.utime(path, ns=(attributes["mtime"], attributes["mtime"]))
        relabel([path])
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def original(doc):
    """Return the original bytes of a file, b"" if it did not exist."""
    return read(doc["base"] + ".content") or b""


def is_role_content(doc, data):
    """Return whether a role wrote this content."""
    return "any" in doc["managed"] or hashlib.sha256(data or b"").hexdigest() in doc["managed"].get("sums", [])


def file_step(doc):
    """Return the step for one recorded file, None if it has its original state."""
    if doc["kind"] == "block":
        return _block_step(doc)
    if doc["kind"] == "json":
        return _json_step(doc)
    if not doc["existed"]:
        return _new_file_step(doc)
    if doc["type"] in ("directory", "link"):
        return _whole_step(doc)
    path, data, before = doc["path"], read(doc["path"]), original(doc)
    if doc["type"] == "other" or (data == before and not _attributes_differ(doc)):
        return None
    if not os.path.lexists(path) or data == before or (data is not None and is_role_content(doc, data)):
        return Step(f"restore {path}", lambda: write(path, before, doc), path)
    return _edited_step(doc, before)


def _edited_step(doc, before):
    """Return the step for a file that was edited since: write the original to a second file."""
    path = doc["path"]
    if read(path + ORIGINAL_SUFFIX) == before:
        return None
    sentence = f"leave {path}, which was edited since, and write its original content to {path}{ORIGINAL_SUFFIX}"
    return Step(sentence, lambda: write(path + ORIGINAL_SUFFIX, before, doc), path)


def _attributes_differ(doc):
    now = file_attributes(doc["path"])
    return any(now[key] != doc[key] for key in ("mode", "owner", "group"))


def _new_file_step(doc):
    path = doc["path"]
    if not os.path.lexists(path):
        return None
    if os.path.isdir(path) and not os.path.islink(path):
        return Step(f"remove {path}", lambda: shutil.rmtree(path), path) if "any" in doc["managed"] else None
    if is_role_content(doc, read(path)):
        return Step(f"remove {path}", lambda: os.unlink(path), path)
    sentence = f"rename {path}, which was edited since, to {path}{EDITED_SUFFIX}"
    return Step(sentence, lambda: os.rename(path, path + EDITED_SUFFIX), path)


def _whole_step(doc):
    """Return the step for a link or a folder that was replaced."""
    path = doc["path"]
    if doc["type"] == "link":
        same = os.path.islink(path) and os.readlink(path) == doc["target"]
        edited = os.path.lexists(path) and not is_role_content(doc, read(path))
        return None if same or edited else Step(f"restore {path}", _link(doc), path)
    if _tree(path) == _tree(doc["base"] + ".tree"):
        return None

    def act():
        _remove(path)
        shutil.copytree(doc["base"] + ".tree", path, symlinks=True)

    return Step(f"restore the folder {path}", act, path)


def _link(doc):
    def act():
        _remove(doc["path"])
        os.symlink(doc["target"], doc["path"])

    return act


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _tree(top):
    """Return name -> content of the files in a folder."""
    entries = {}
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            entries[os.path.relpath(path, top)] = os.readlink(path) if os.path.islink(path) else read(path)
    return entries


# The managed block of a file


def unmanaged_lines(text, marker):
    """Return the lines outside the managed block."""
    lines, inside = [], False
    for line in text.splitlines():
        if line == f"# BEGIN {marker}":
            inside = True
        elif line == f"# END {marker}" and inside:
            inside = False
        elif not inside:
            lines.append(line)
    return lines


def without_block(now, before, marker, drop):
    """Return the text without the managed block: byte for byte `before` if nothing else changed."""
    rest, old = unmanaged_lines(now, marker), unmanaged_lines(before, marker)
    if rest == [line for line in old if not (drop and re.search(drop, line))] or rest == old:
        return before if old == before.splitlines() else "".join(line + "\n" for line in old)
    for index, line in enumerate(old):
        if drop and re.search(drop, line) and line not in rest:
            rest.insert(min(index, len(rest)), line)
    return "".join(line + "\n" for line in rest)


def _block_step(doc):
    path, data, before = doc["path"], read(doc["path"]), original(doc)
    if data is None:
        return Step(f"restore {path}", lambda: write(path, before, doc), path) if doc["existed"] else None
    now, old = (item.decode("utf-8", "surrogateescape") for item in (data, before))
    target = without_block(now, old, doc["marker"], doc["drop"]).encode("utf-8", "surrogateescape")
    if not doc["existed"] and not target.strip():
        return Step(f"remove {path}", lambda: os.unlink(path), path)
    exact = target == before and doc["existed"]
    if target == data and not (exact and _attributes_differ(doc)):
        return None
    if exact:
        return Step(f"restore {path}", lambda: write(path, before, doc), path)
    return Step(
        f"remove the managed block of {path}, which was edited since",
        lambda: write(path, target, file_attributes(path)),
        path,
    )


# The managed keys of a JSON file


def parsed(data):
    """Return the object in a JSON file, {} for an empty file, None if the file is invalid."""
    try:
        document = json.loads(data.decode()) if (data or b"").strip() else {}
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def without_keys(now, before, managed):
    """Return `now` with the unchanged settings of the role reset to `before`; the value None in `managed` stands for any."""
    result = {}
    for key, value in now.items():
        old, own, result_value = before.get(key, _NOTHING), managed.get(key, _NOTHING), value
        if isinstance(own, dict) and isinstance(value, dict):
            result_value = without_keys(value, old if isinstance(old, dict) else {}, own)
            if not result_value and not isinstance(old, dict):
                result_value = old
        elif key in managed and (own is None or value == own):
            result_value = old
        if result_value is not _NOTHING:
            result[key] = result_value
    result.update({key: before[key] for key in before if key in managed and key not in now})
    return result


def settings_after_reset(doc):
    """Return the settings in a JSON file after the reset, None if they are unknown."""
    now, before = parsed(read(doc["path"])), parsed(original(doc))
    if now is None or before is None:
        return None
    if not os.path.lexists(doc["path"]):
        return before
    for managed in reversed(doc["managed"].get("settings", [])):
        now = without_keys(now, before, managed)
    return now


def _json_step(doc):
    path, data, before, settings = doc["path"], read(doc["path"]), original(doc), settings_after_reset(doc)
    if settings is None:
        return _edited_step(doc, before) if doc["existed"] and data != before else None
    if not doc["existed"] and not settings:
        return Step(f"remove {path}", lambda: os.unlink(path), path) if data is not None else None
    if doc["existed"] and settings == parsed(before):
        if data == before and not _attributes_differ(doc):
            return None
        return Step(f"restore {path}", lambda: write(path, before, doc), path)
    if settings == parsed(data):
        return None
    text = (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode()
    return Step(
        f"remove the role's settings from {path}, which was edited since",
        lambda: write(path, text, file_attributes(path)),
        path,
    )


# Folders


def folder_steps(docs):
    """Return the steps for recorded folders, innermost first. New folders are removed only if they are empty."""
    steps = []
    for doc in sorted(docs, key=lambda item: item["path"], reverse=True):
        path = doc["path"]
        if not os.path.isdir(path) or os.path.islink(path):
            continue
        if doc["existed"] and _attributes_differ(doc):
            steps.append(Step(f"restore mode and owner of {path}", _restore_attributes(doc)))
        elif not doc["existed"]:
            steps.append(Step(f"remove the folder {path}, unless something else is in it", _remove_empty(path)))
    return steps


def _restore_attributes(doc):
    def act():
        os.chown(doc["path"], doc["owner"], doc["group"])
        os.chmod(doc["path"], doc["mode"])

    return act


def _remove_empty(path):
    def act():
        if path in OWN_FOLDERS:
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)

    return act
