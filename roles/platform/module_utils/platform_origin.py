"""Record the original state of objects on a node before roles change them, so that a reset can restore it.

Every task with changes compiles this module on the node, so it is short. The modules platform_undo_* read the records.
"""

import hashlib
import json
import os
import shutil
import stat
import tempfile

FOLDER = "/var/lib/provision/origins"
STATE_FOLDER = "/var/lib/provision/"  # a reset removes this folder, so nothing in it is recorded
MAX_VALUES = 4  # number of recognized contents of the role: the last one, which may be incomplete, and earlier ones


def record_path(kind, name):
    """Return the path of a record without its extension."""
    return os.path.join(FOLDER, kind, hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32])


def record_files(kind, name):
    """Return the paths of a record: the original state, and the values of the role."""
    return [record_path(kind, name) + ending for ending in (".json", ".ours")]


def write_private(path, data):
    """Write a file that only root can read, atomically even if the power fails."""
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
    """Write a JSON file that only root can read."""
    write_private(path, json.dumps(document, sort_keys=True).encode())


def load_json(path):
    """Return a JSON file's content, {} if it is missing or invalid."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return {}


def record(kind, name, document):
    """Record the original state. An existing record is never overwritten."""
    path = record_path(kind, name) + ".json"
    if not os.path.exists(path):
        write_private_json(path, document)


def mark_managed(kind, name, key, value):
    """Record a value that a role is about to set. Only the last values are stored."""
    path = record_path(kind, name) + ".ours"
    known = load_json(path)
    if value not in known.get(key, []):
        write_private_json(path, {**known, key: [*known.get(key, []), value][-MAX_VALUES:]})


def record_file(path, after=None, *, kind="file", settings=None, **more):
    """Record a file (or link, or whole folder) before it is changed.

    Args:
        path: absolute path.
        after: the new content (text or bytes); None if any later content counts as the role's.
        kind: `file`; `block`, of which a reset undoes only the role's lines (more: marker, drop); `json`, of which only its keys.
        settings: the role's keys of a JSON file and their values; the value None stands for any.
        more: additional values of the kind.
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
    """Return type, mode, owners and time of a path."""
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
        write_private(base + ".whole", b"")  # creates the folder of the records
        for name in (base + ".tree", base + ".tree-new"):
            shutil.rmtree(name, ignore_errors=True)
        shutil.copytree(path, base + ".tree-new", symlinks=True)
        os.rename(base + ".tree-new", base + ".tree")


def record_new_folders(path):
    """Record the folders up to `path` that do not exist yet and are about to be created."""
    while path not in ("", "/") and not os.path.lexists(path):
        if not (path + "/").startswith(STATE_FOLDER):
            record("folders", path, {"path": path, "existed": False})
        path = os.path.dirname(path)


def record_folder(path):
    """Record a folder that is about to be created, or whose mode or owners are about to change."""
    path = os.path.normpath(path)
    if os.path.lexists(path) and not (path + "/").startswith(STATE_FOLDER):
        record("folders", path, {"path": path, "existed": True, **file_attributes(path)})
    else:
        record_new_folders(path)


def record_unit(module, name):
    """Record the state of a pre-existing unit before it is started, stopped or enabled."""
    if not os.path.exists(record_path("units", name) + ".json"):
        properties = ["LoadState", "ActiveState", "UnitFileState"]
        out = module.run_command(["systemctl", "show", name, "--property=" + ",".join(properties)])[1]
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        record("units", name, {"name": name, **{key: state.get(key, "") for key in properties}})


def record_module(name):
    """Record whether a kernel module is loaded before a role loads it."""
    record("modules", name, {"name": name, "loaded": os.path.isdir("/sys/module/" + name)})


def record_data_folder(path):
    """Record whether a folder exists that programs will fill."""
    record("data", path, {"path": path, "existed": os.path.lexists(path)})


def record_names(kind):
    """Return the file names of the records of a kind."""
    try:
        return os.listdir(os.path.join(FOLDER, kind))
    except OSError:
        return []


def records(kind):
    """Return all records of a kind, each with the values of the role (`managed`) and the path of the record (`base`)."""
    bases = sorted(os.path.join(FOLDER, kind, name[:-5]) for name in record_names(kind) if name.endswith(".json"))
    return [{**load_json(base + ".json"), "managed": load_json(base + ".ours"), "base": base} for base in bases]
