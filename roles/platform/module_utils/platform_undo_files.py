"""What a reset does with files: what stood before comes back, what was edited since is never lost."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile

from ansible.module_utils.platform_origin import file_attributes

BESIDE, EDITED = ".provision-before", ".provision-edited"
OWN_FOLDERS = ("/usr/local/lib/provision", "/etc/provision")
_NOTHING = object()


class Step:
    """One thing to do: a sentence, and how it is done; what it could not do it returns as a sentence.

    Args:
        sentence: what is done, as an order.
        act: does it.
        path: the file that it is about, if any.
    """

    def __init__(self, sentence, act, path=""):
        self.sentence, self.act, self.path = sentence, act, path


def read(path):
    """Return the bytes of a regular file, None when there is none; follows no link."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        return stream.read() if stat.S_ISREG(os.fstat(handle).st_mode) else None


def write(path, data, like):
    """Replace a file in one step (in place where it is a mount point), with the mode, owners and time of `like`."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".provision-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchown(handle, like["owner"], like["group"])
            os.fchmod(handle, like["mode"])
            os.fsync(handle)
        os.utime(temporary, ns=(like["mtime"], like["mtime"]))
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            with open(path, "r+b") as stream:
                stream.truncate()
                stream.write(data)
            os.utime(path, ns=(like["mtime"], like["mtime"]))
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def original(doc):
    """Return the bytes that stood there before, b"" when there was no file."""
    return read(doc["base"] + ".content") or b""


def is_role_content(doc, data):
    """Return whether a content is one that we wrote."""
    return "any" in doc["managed"] or hashlib.sha256(data or b"").hexdigest() in doc["managed"].get("sums", [])


def file_step(doc):
    """Return the step for one noted file, None when it is as it was."""
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
    """Return the step for a file that others changed since: what stood before is put beside it."""
    path = doc["path"]
    if read(path + BESIDE) == before:
        return None
    sentence = f"leave {path} alone: it was edited since; what stood there before goes beside it, as {path}{BESIDE}"
    return Step(sentence, lambda: write(path + BESIDE, before, doc), path)


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
    sentence = f"remove {path}, which was edited since; what it holds is kept as {path}{EDITED}"
    return Step(sentence, lambda: os.rename(path, path + EDITED), path)


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
        _take_away(path)
        shutil.copytree(doc["base"] + ".tree", path, symlinks=True)

    return Step(f"restore the folder {path}", act, path)


def _link(doc):
    def act():
        _take_away(doc["path"])
        os.symlink(doc["target"], doc["path"])

    return act


def _take_away(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _tree(top):
    """Return what is in a folder: content by name."""
    entries = {}
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            entries[os.path.relpath(path, top)] = os.readlink(path) if os.path.islink(path) else read(path)
    return entries


# A block of ours in a file of others


def outside(text, marker):
    """Return the lines that are not in our block."""
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
    """Return the text without our block: byte for byte `before` where nobody else changed anything."""
    rest, old = outside(now, marker), outside(before, marker)
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
        f"take our lines out of {path}, which was edited since",
        lambda: write(path, target, file_attributes(path)),
        path,
    )


# Keys of ours in a JSON file of others


def parsed(data):
    """Return the object in a JSON file, {} for an empty one, None where there is none."""
    try:
        document = json.loads(data.decode()) if (data or b"").strip() else {}
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def without_keys(now, before, ours):
    """Return `now` with what we set and nobody changed since as it was `before`; None in `ours` stands for any value."""
    result = {}
    for key, value in now.items():
        old, mine, then = before.get(key, _NOTHING), ours.get(key, _NOTHING), value
        if isinstance(mine, dict) and isinstance(value, dict):
            then = without_keys(value, old if isinstance(old, dict) else {}, mine)
            if not then and not isinstance(old, dict):
                then = old
        elif key in ours and (mine is None or value == mine):
            then = old
        if then is not _NOTHING:
            result[key] = then
    result.update({key: before[key] for key in before if key in ours and key not in now})
    return result


def settings_then(doc):
    """Return what a JSON file will hold after the reset, None when it cannot be told."""
    now, before = parsed(read(doc["path"])), parsed(original(doc))
    if now is None or before is None:
        return None
    if not os.path.lexists(doc["path"]):
        return before
    for ours in reversed(doc["managed"].get("settings", [])):
        now = without_keys(now, before, ours)
    return now


def _json_step(doc):
    path, data, before, then = doc["path"], read(doc["path"]), original(doc), settings_then(doc)
    if then is None:
        return _edited_step(doc, before) if doc["existed"] and data != before else None
    if not doc["existed"] and not then:
        return Step(f"remove {path}", lambda: os.unlink(path), path) if data is not None else None
    if doc["existed"] and then == parsed(before):
        if data == before and not _attributes_differ(doc):
            return None
        return Step(f"restore {path}", lambda: write(path, before, doc), path)
    if then == parsed(data):
        return None
    text = (json.dumps(then, indent=2, sort_keys=True) + "\n").encode()
    return Step(
        f"take our settings out of {path}, which was edited since",
        lambda: write(path, text, file_attributes(path)),
        path,
    )


# Folders


def folder_steps(docs):
    """Return the steps for noted folders: what we made goes where nothing of others is in it, innermost first."""
    steps = []
    for doc in sorted(docs, key=lambda item: item["path"], reverse=True):
        path = doc["path"]
        if not os.path.isdir(path) or os.path.islink(path):
            continue
        if doc["existed"] and _attributes_differ(doc):
            steps.append(Step(f"restore mode and owner of {path}", _attributes(doc)))
        elif not doc["existed"]:
            steps.append(Step(f"remove the folder {path}, unless something else is in it", _empty(path)))
    return steps


def _attributes(doc):
    def act():
        os.chown(doc["path"], doc["owner"], doc["group"])
        os.chmod(doc["path"], doc["mode"])

    return act


def _empty(path):
    def act():
        if path in OWN_FOLDERS:
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)

    return act
