"""What was on the node before our roles changed it: noted before the first change, so that a reset can undo it.

Every task that changes something compiles this anew on the node, so it is short; platform_undo_* read the notes.
"""

import hashlib
import json
import os
import shutil
import stat
import tempfile

FOLDER = "/var/lib/provision/origins"
STATE_FOLDER = "/var/lib/provision/"  # a reset removes all of it: nothing of it is noted
MAX_VALUES = 4  # how many of our own contents are known again: one that was cut short, and those before it


def record_path(kind, name):
    """Return where a note is, without its ending."""
    return os.path.join(FOLDER, kind, hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32])


def write_private(path, data):
    """Write a file for root alone, whole or not at all, also over a power cut."""
    folder = os.path.dirname(path)
    os.makedirs(os.path.dirname(FOLDER), mode=0o755, exist_ok=True)
    for part in (FOLDER, folder):
        if not os.path.isdir(part):
            os.mkdir(part, 0o700)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")  # 0600
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(temporary, path)
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def write_private_json(path, document):
    """Write a JSON file for root alone."""
    write_private(path, json.dumps(document, sort_keys=True).encode())


def load_json(path):
    """Return a JSON file's content, {} when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return {}


def record(kind, name, document):
    """Write down what was there before; the first note stays."""
    path = record_path(kind, name) + ".json"
    if not os.path.exists(path):
        write_private_json(path, document)


def mark_managed(kind, name, key, value):
    """Write down what of ours is there, before it is: the last few are kept."""
    path = record_path(kind, name) + ".ours"
    known = load_json(path)
    if value not in known.get(key, []):
        write_private_json(path, {**known, key: [*known.get(key, []), value][-MAX_VALUES:]})


def record_file(path, after=None, *, kind="file", settings=None, **more):
    """Note a file (or link, or whole folder) before it is changed.

    Args:
        path: its absolute path.
        after: what is about to be written (text or bytes); None where whatever will be there is ours.
        kind: `file`; `block`, of which only our lines are undone (more: marker, drop); `json`, of which only our keys are.
        settings: of a JSON file, our keys and their values; None as a value stands for any.
        more: what the kind needs besides.
    """
    path = os.path.normpath(path)
    if path.startswith(STATE_FOLDER):
        return
    record_new_folders(os.path.dirname(path))
    base = record_path("files", path)
    if not os.path.exists(base + ".json"):
        document = {"path": path, "existed": os.path.lexists(path), "kind": kind, **more}
        if document["existed"]:
            document.update(file_attributes(path))
            _copy(path, base, document["type"])
        write_private_json(base + ".json", document)
    if kind == "json":
        mark_managed("files", path, "settings", settings)
    elif after is None:
        mark_managed("files", path, "any", value=True)
    else:
        data = after.encode("utf-8", "surrogateescape") if isinstance(after, str) else after
        mark_managed("files", path, "sums", hashlib.sha256(data).hexdigest())


def file_attributes(path):
    """Return what kind of thing a path is, with mode, owners and time."""
    status = os.lstat(path)
    entry = {"mode": stat.S_IMODE(status.st_mode), "owner": status.st_uid, "group": status.st_gid}
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    entry.update(type=kinds.get(stat.S_IFMT(status.st_mode), "other"), mtime=status.st_mtime_ns)
    if entry["type"] == "link":
        entry["target"] = os.readlink(path)
    return entry


def _copy(path, base, kind):
    if kind == "file":
        with open(path, "rb") as stream:
            write_private(base + ".content", stream.read())
    elif kind == "directory":
        write_private(base + ".whole", b"")  # so that the folder for notes is there
        for name in (base + ".tree", base + ".tree-new"):
            shutil.rmtree(name, ignore_errors=True)
        shutil.copytree(path, base + ".tree-new", symlinks=True)
        os.rename(base + ".tree-new", base + ".tree")


def record_new_folders(path):
    """Note the folders up to `path` that are not there yet and will be made."""
    while path not in ("", "/") and not os.path.lexists(path):
        if not (path + "/").startswith(STATE_FOLDER):
            record("folders", path, {"path": path, "existed": False})
        path = os.path.dirname(path)


def record_folder(path):
    """Note a folder whose mode or owners are about to be changed, or that is about to be made."""
    path = os.path.normpath(path)
    if os.path.lexists(path) and not (path + "/").startswith(STATE_FOLDER):
        record("folders", path, {"path": path, "existed": True, **file_attributes(path)})
    else:
        record_new_folders(path)


def record_unit(module, name):
    """Note how a unit of others is before it is started, stopped or enabled."""
    if not os.path.exists(record_path("units", name) + ".json"):
        wanted = ["LoadState", "ActiveState", "UnitFileState"]
        out = module.run_command(["systemctl", "show", name, "--property=" + ",".join(wanted)])[1]
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        record("units", name, {"name": name, **{key: state.get(key, "") for key in wanted}})


def record_module(name):
    """Note whether a kernel module is loaded before something of ours loads it."""
    record("modules", name, {"name": name, "loaded": os.path.isdir("/sys/module/" + name)})


def record_data_folder(path):
    """Note whether a folder is there that programs will fill."""
    record("data", path, {"path": path, "existed": os.path.lexists(path)})


def record_names(kind):
    """Return the names of the files that notes of a kind are in."""
    try:
        return os.listdir(os.path.join(FOLDER, kind))
    except OSError:
        return []


def records(kind):
    """Return all notes of a kind, each with what was marked as ours under `ours` and its place under `base`."""
    bases = sorted(os.path.join(FOLDER, kind, name[:-5]) for name in record_names(kind) if name.endswith(".json"))
    return [{**load_json(base + ".json"), "managed": load_json(base + ".ours"), "base": base} for base in bases]
