"""Probes the Docker engine for its state, the training image and the training container, and adds the kernel's view.

The engine is queried over its socket, because its client takes longer to start than all else
together. A stopped engine is not queried, because opening its socket would start it. The container's environment and
the engine's proxies are not reported, because they may contain passwords.
"""

import json
import os
import socket
import stat
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from provision.node.probe.busy import PROC, Table, processes, read_proc_file, running_jobs
from provision.node.probe.images import config_digest
from provision.node.probe.managed import DOCKER_SOCKET, Engine, content_of, managed_state, quoted

ENGINE_SECONDS = 15
CACHE_SECONDS = 3600
MOST_EVENTS = 60  # of the 256 (formerly 64) that the engine stores
INFO = (
    "ServerVersion", "Driver", "DockerRootDir", "CgroupDriver", "CgroupVersion", "LiveRestoreEnabled", "Runtimes",
    "DefaultRuntime", "RegistryConfig", "DefaultAddressPools", "ContainersRunning", "DriverStatus",
)  # fmt: skip
SHOWN_DEVICES = (("infiniband/", ""), ("", "nvidia"))  # folder below /dev, and the prefix of names
NODE_NAMES = "/etc/hosts"


def managed_and_engine(folder: str, cache: str = "") -> Dict[str, Any]:
    """Return the state of the objects in receipts, running jobs, and the state of the engine.

    Receipts and the configuration mostly name the same image and container, so answers of the engine are cached.
    """
    answers: Dict[str, Any] = {}
    table = processes()
    state = dict(managed_state(folder, answers), jobs=running_jobs(table))
    container, images = (os.environ.get(name, "") for name in ("PROBE_CONTAINER", "PROBE_IMAGES"))
    return dict(state, engine=engine_state(container, images.split(), table, answers, cache))


def engine_state(
    container: str, images: List[str], processes: Table, answers: Dict[str, Any], cache: str = ""
) -> Dict[str, Any]:
    """Return the state of the engine, of the image and of the container."""
    engines = [pid for pid, (name, *_) in processes.items() if name == "dockerd" and same_pid_namespace(pid)]
    engine = Engine(running=bool(engines), answers=answers)
    engine.deadline = time.monotonic() + ENGINE_SECONDS
    if not any(os.access(os.path.join(folder, "docker"), os.X_OK) for folder in os.get_exec_path()):
        return {"info": {"error": "there is no docker command"}, "image": None, "container": None}
    return {
        "info": query(engine, lambda: info(engine, engines, cache)),
        "image": query(engine, lambda: first_image(engine, images)),
        "container": query(engine, lambda: container_of(engine, container)),
    }


def info(engine: Engine, engines: List[str], cache: str) -> Dict[str, Any]:
    """Return the engine's info, from the cache of an earlier probe while nothing can have changed.

    The query makes the engine start other programs. The cache is valid only for the same engine process, and while its
    events show no change, such as a reload. Events have the node's clock, which may have been set since then: the cache
    is also invalid after a clock change, and it expires.
    """
    if not cache or len(engines) != 1:
        return pick(engine.get("/info"), INFO)
    now = time.time()
    mark = [*process_identity(engines[0]), round(now - time.monotonic())]
    try:
        entry = json.loads((content_of(cache) or b"").decode())
        if (
            entry["mark"] == mark
            and 0 <= now - entry["since"] < CACHE_SECONDS
            and is_unchanged(engine, entry["since"], now)
        ):
            return pick(entry["info"], INFO)
    except (ValueError, LookupError, TypeError):
        pass
    answer = pick(engine.get("/info"), INFO)
    write_cache(cache, json.dumps({"mark": mark, "since": now, "info": answer}).encode())
    return answer


def process_identity(pid: str) -> List[str]:
    """Return values that identify a process even if its pid is reused."""
    return [pid, read_proc_file(f"{PROC}/{pid}/stat").rpartition(")")[2].split()[19]]


def is_unchanged(engine: Engine, since: float, now: float) -> bool:
    """Return whether no event changed the engine's info; the engine stores only a limited number of events."""
    events = engine.request(f"/events?since={since:.6f}&until={now:.6f}")
    actions = [str(json.loads(line)["Action"]) for line in (events or "").splitlines()]
    return (
        events is not None
        and len(actions) < MOST_EVENTS
        and all(action.startswith(("exec_", "health_status")) for action in actions)
    )


def same_pid_namespace(pid: str) -> bool:
    """Return whether a process is in this process's PID namespace; an engine in a container is not the node's."""
    try:
        return os.readlink(f"{PROC}/{pid}/ns/pid") == os.readlink(f"{PROC}/self/ns/pid")
    except OSError:
        return False


def query(engine: Engine, request: Callable[[], Optional[Dict[str, Any]]]) -> Optional[Dict[str, Any]]:
    """Return the result of `request`, or why the engine did not answer."""
    if not engine.running:
        return {"error": "the engine does not run"}
    if engine.hung:
        return {"hung": ENGINE_SECONDS}
    try:
        return request()
    except socket.timeout:
        engine.hung = True
        return {"hung": ENGINE_SECONDS}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        return {"error": f"{DOCKER_SOCKET}: {problem}"}


def pick(answer: Dict[str, Any], keys: Sequence[str]) -> Dict[str, Any]:
    """Return the given keys of an answer."""
    return {key: answer.get(key) for key in keys}


def write_cache(path: str, content: bytes) -> None:
    """Write a file for later probes, if only root can write to the folder."""
    folder, new = os.path.dirname(path), f"{path}.{os.getpid()}"
    try:
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if status.st_uid or status.st_mode & 0o022 or not stat.S_ISDIR(status.st_mode):
            return
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.rename(new, path)
    except OSError:
        os.unlink(new)


def first_image(engine: Engine, references: List[str]) -> Optional[Dict[str, Any]]:
    """Return the image of the first reference that exists, or None."""
    for reference in references:
        image = engine.get(f"/images/{quoted(reference)}/json")
        if image is not None:
            return dict(pick(image, ("Id", "RepoDigests", "RepoTags")), config_digest=config_digest(image))
    return None


def container_of(engine: Engine, name: str) -> Optional[Dict[str, Any]]:
    """Return the configuration and state of a container, None if it does not exist."""
    answer = engine.get(f"/containers/{quoted(name)}/json")
    if answer is None:
        return None
    state, config, host = answer["State"], answer["Config"], answer["HostConfig"]
    container = {
        "pid": state.get("Pid") or 0, "status": state.get("Status"), "exit_code": state.get("ExitCode"),
        "image_id": answer.get("Image"), "image": config.get("Image"), "labels": config.get("Labels"),
        "privileged": host.get("Privileged"), "network": host.get("NetworkMode"), "binds": host.get("Binds"),
        "shm_size": host.get("ShmSize"), "restarts": answer.get("RestartCount"),
    }  # fmt: skip
    return dict(container, **runtime_state(container["pid"])) if container["pid"] else container


def runtime_state(pid: int) -> Dict[str, Any]:
    """Return the kernel's view of a container by its first process: limits, devices, deleted mounts, processes."""
    root = f"{PROC}/{pid}/root"
    devices = [folder + name for folder, prefix in SHOWN_DEVICES for name in entries(f"{root}/dev/{folder}", prefix)]
    return {
        "limits": read_proc_file(f"{PROC}/{pid}/limits"),
        "devices": devices,
        "deleted": [path for path in deleted_mounts(pid) if path == NODE_NAMES or os.path.isdir(root + path)],
        "processes": processes_beside(pid),
    }


def entries(folder: str, prefix: str) -> List[str]:
    """Return the sorted names in a folder that start with `prefix`, without hidden ones; empty for a missing folder."""
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix) and not name.startswith("."))
    except OSError:
        return []


def deleted_mounts(pid: int) -> List[str]:
    """Return the mount points in the container whose source was deleted on the node."""
    rows = [line.split() for line in read_proc_file(f"{PROC}/{pid}/mountinfo").splitlines()]
    return [unescaped(words[4]) for words in rows if len(words) > 4 and words[3].endswith("//deleted")]


def unescaped(path: str) -> str:
    """Return a path of the mount table without its octal escapes."""
    first, *others = path.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)


def processes_beside(pid: int) -> List[Tuple[int, str]]:
    """Return [pid, name] of each process in the PID namespace of `pid`."""
    try:
        space = os.readlink(f"{PROC}/{pid}/ns/pid")
    except OSError:
        return []
    beside: List[Tuple[int, str]] = []
    for other in os.listdir(PROC):
        try:
            if other.isdigit() and os.readlink(f"{PROC}/{other}/ns/pid") == space:
                beside.append((int(other), read_proc_file(f"{PROC}/{other}/comm")))
        except OSError:
            continue
    return sorted(row for row in beside if row[1])
