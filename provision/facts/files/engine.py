"""What the docker engine tells of itself, of the wanted image and of the training container, and what the kernel adds.

The probe sends the text of busy.py, managed.py and this file as one program. Python 3.6 or newer, and nothing else.
The engine is asked by its socket (its client takes longer to start than all else together), and not at all while it
does not run: to touch the socket of an engine that is stopped would start it. A container's environment and the
engine's proxy settings are left out: either may hold passwords.
"""

import json
import os
import socket
import stat
import time

from provision.facts.files.busy import PROC, _read, processes, running_jobs
from provision.facts.files.managed import DOCKER_SOCKET, Engine, content_of, quoted, survey

ENGINE_SECONDS = 15
KEPT_SECONDS = 3600
MOST_EVENTS = 60  # of the 256 that the engine remembers, once 64
INFO = (
    "ServerVersion", "Driver", "DockerRootDir", "CgroupDriver", "CgroupVersion", "LiveRestoreEnabled", "Runtimes",
    "DefaultRuntime", "RegistryConfig", "DefaultAddressPools", "ContainersRunning",
)  # fmt: skip
SHOWN_DEVICES = (("infiniband/", ""), ("", "nvidia"))  # folder below /dev, and how names begin there
NODE_NAMES = "/etc/hosts"


def found_here(folder, kept=""):
    """Return what there is of what the receipts name, which jobs run, and what the engine tells.

    What a receipt names and what is wanted are mostly the same image and container: the engine is asked once.
    """
    answers, ask = {}, Engine.get

    def once(engine, path):
        if path not in answers:
            answers[path] = ask(engine, path)
        return answers[path]

    Engine.get = once
    there = processes()
    found = dict(survey(folder), jobs=running_jobs(there))
    container, images = (os.environ.get(name, "") for name in ("PROBE_CONTAINER", "PROBE_IMAGES"))
    return dict(found, engine=training(container, images.split(), there, kept))


def training(container, images, processes, kept=""):
    """Return what the engine tells of itself, of the image and of the container."""
    engines = [pid for pid, (name, *_) in processes.items() if name == "dockerd" and same_space(pid)]
    engine = Engine(running=bool(engines))
    engine.deadline = time.monotonic() + ENGINE_SECONDS
    if not any(os.access(os.path.join(folder, "docker"), os.X_OK) for folder in os.get_exec_path()):
        return {"info": {"error": "there is no docker command"}, "image": None, "container": None}
    return {
        "info": asked(engine, lambda: info(engine, engines, kept)),
        "image": asked(engine, lambda: first_image(engine, images)),
        "container": asked(engine, lambda: container_of(engine, container)),
    }


def info(engine, engines, kept):
    """Return what the engine tells of itself, from a file of an earlier look while nothing can have changed.

    To say it, the engine starts other programs. It is another answer once the engine was started anew or its events
    tell of anything that it has done since; what they tell of a reload too. Events go by the node's clock, which may
    have been set since: then, and after a while, the engine is asked again.
    """
    if not kept or len(engines) != 1:
        return pick(engine.get("/info"), INFO)
    now = time.time()
    mark = [*started(engines[0]), round(now - time.monotonic())]
    try:
        known = json.loads((content_of(kept) or b"").decode())
        if known["mark"] == mark and 0 <= now - known["since"] < KEPT_SECONDS and quiet(engine, known["since"], now):
            return pick(known["info"], INFO)
    except (ValueError, LookupError, TypeError):
        pass
    found = pick(engine.get("/info"), INFO)
    leave(kept, json.dumps({"mark": mark, "since": now, "info": found}).encode())
    return found


def started(pid):
    """Return what tells a process from another, of the same number too."""
    return [pid, _read(f"{PROC}/{pid}/stat").rpartition(")")[2].split()[19]]


def quiet(engine, since, now):
    """Return whether nothing has happened that changes what the engine tells of itself; it remembers few events."""
    events = engine.said(f"/events?since={since:.6f}&until={now:.6f}")
    told = [str(json.loads(line)["Action"]) for line in (events or "").splitlines()]
    return (
        events is not None
        and len(told) < MOST_EVENTS
        and all(action.startswith(("exec_", "health_status")) for action in told)
    )


def same_space(pid):
    """Return whether a process sees the same processes as this one: one in a container is not the node's."""
    try:
        return os.readlink(f"{PROC}/{pid}/ns/pid") == os.readlink(f"{PROC}/self/ns/pid")
    except OSError:
        return False


def asked(engine, look):
    """Return what `look` finds, or why the engine did not tell."""
    if not engine.running:
        return {"error": "the engine does not run"}
    if engine.hung:
        return {"hung": ENGINE_SECONDS}
    try:
        return look()
    except socket.timeout:
        engine.hung = True
        return {"hung": ENGINE_SECONDS}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        return {"error": f"{DOCKER_SOCKET}: {problem}"}


def pick(answer, keys):
    """Return some keys of an answer."""
    return {key: answer.get(key) for key in keys}


def leave(path, content):
    """Leave a file for later looks, where only root can."""
    folder, new = os.path.dirname(path), f"{path}.{os.getpid()}"
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if status.st_uid or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
            return
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.rename(new, path)
    except OSError:
        pass


def first_image(engine, references):
    """Return the image of the first reference under which there is one, None where there is none."""
    for reference in references:
        found = engine.get(f"/images/{quoted(reference)}/json")
        if found is not None:
            return pick(found, ("Id", "RepoDigests", "RepoTags"))
    return None


def container_of(engine, name):
    """Return a container as it was made and as it is, None where there is none of that name."""
    found = engine.get(f"/containers/{quoted(name)}/json")
    if found is None:
        return None
    state, config, host = found["State"], found["Config"], found["HostConfig"]
    told = {
        "pid": state.get("Pid") or 0, "status": state.get("Status"), "exit_code": state.get("ExitCode"),
        "image_id": found.get("Image"), "image": config.get("Image"), "labels": config.get("Labels"),
        "privileged": host.get("Privileged"), "network": host.get("NetworkMode"), "binds": host.get("Binds"),
        "shm_size": host.get("ShmSize"), "restarts": found.get("RestartCount"),
    }  # fmt: skip
    return dict(told, **inside(told["pid"])) if told["pid"] else told


def inside(pid):
    """Return what the kernel shows of a container by its first process: limits, devices, lost folders, processes."""
    root = f"{PROC}/{pid}/root"
    devices = [folder + name for folder, begin in SHOWN_DEVICES for name in shown(f"{root}/dev/{folder}", begin)]
    return {
        "limits": _read(f"{PROC}/{pid}/limits"),
        "devices": devices,
        "deleted": [path for path in deleted(pid) if path == NODE_NAMES or os.path.isdir(root + path)],
        "processes": processes_beside(pid),
    }


def shown(folder, begin):
    """Return what in a folder has a name that begins so, in order; nothing where there is no such folder."""
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(begin) and not name.startswith("."))
    except OSError:
        return []


def deleted(pid):
    """Return where in the container something is mounted that was deleted on the node."""
    rows = [line.split() for line in _read(f"{PROC}/{pid}/mountinfo").splitlines()]
    return [unescaped(words[4]) for words in rows if len(words) > 4 and words[3].endswith("//deleted")]


def unescaped(path):
    """Return a path of the mount table, in which a space is an octal number behind a backslash, as it is."""
    first, *others = path.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)


def processes_beside(pid):
    """Return [pid, name] of each process that sees the same processes as `pid`."""
    try:
        space = os.readlink(f"{PROC}/{pid}/ns/pid")
    except OSError:
        return []
    beside = []
    for other in os.listdir(PROC):
        try:
            if other.isdigit() and os.readlink(f"{PROC}/{other}/ns/pid") == space:
                beside.append([int(other), _read(f"{PROC}/{other}/comm")])
        except OSError:
            continue
    return sorted(row for row in beside if row[1])
