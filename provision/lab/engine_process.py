"""The Docker engine of a container lab: the controller's own, or a private one that runs as long as labs need it.

The choice is recorded in the lab's folder (``engine.json``) for later commands. The private engine stores its images in
``$XDG_CACHE_HOME/provision/engine``, and its runtime files in a folder with a short name under ``/run`` (a socket path
has at most 107 characters). It has no default bridge, ignores the controller's configuration, and does not affect an
engine that is installed later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from provision.connectors.container import DEFAULT_HOST, Engine, answers
from provision.documents import decode
from provision.documents.lab import EngineRecord
from provision.errors import InvalidDocument, LabError
from provision.lab.access import file_lock
from provision.lab.base import Progress
from provision.lab.engine_traces import remember_network, restore_network
from provision.local_files import cache_folder, private_folder, write_private

_START_SECONDS = 60
_STOP_SECONDS = 60
_CGROUP = "provision-lab"
_ANY_LAB = {"provision.lab": None}
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
ONLY_ROOT = "only root can start one"
"""Why another account cannot start an engine."""


@dataclass(frozen=True)
class PrivateEngine:
    """The directories of the private engine."""

    root: Path
    """Images and logs, which persist."""
    runtime: Path
    """Socket, pid files and mounts; removed when the engine stops."""

    @property
    def host(self) -> str:
        """Its address in the format of DOCKER_HOST."""
        return f"unix://{self.runtime}/docker.sock"

    @property
    def log(self) -> Path:
        """The log file of the engine."""
        return self.root / "dockerd.log"

    @property
    def argv(self) -> list[str]:
        """The command line that starts it."""
        return [
            "dockerd",
            f"--config-file={self.runtime}/daemon.json",
            f"--data-root={self.root}/data",
            f"--exec-root={self.runtime}/exec",
            f"--pidfile={self.runtime}/docker.pid",
            f"--host={self.host}",
            "--bridge=none",
            "--containerd-namespace=provision",
            "--containerd-plugins-namespace=provision-plugins",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            f"--cgroup-parent=/{_CGROUP}",
        ]


def private_engine() -> PrivateEngine:
    """Return the private engine of this user's cache; each cache directory has its own."""
    root = cache_folder() / "engine"
    short = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    return PrivateEngine(root, Path("/run") / f"provision-engine-{short}")


def require_engine(folder: Path, progress: Progress) -> Engine:
    """Return the engine of the lab in `folder`; for a new lab, choose one and start a private one if necessary."""
    record = _record(folder)
    if record is None:
        record = _choose()
        write_private(folder / "engine.json", json.dumps(msgspec.to_builtins(record)) + "\n")
    if record.private:
        _start(private_engine(), progress)
    return Engine(record.host)


def engine_of(folder: Path, *, start: bool = False) -> Engine | None:
    """Return the engine of the lab in `folder`; None if it has none or its private engine is not running.

    With `start`, a stopped private engine with data of labs is started.
    """
    record = _record(folder)
    if record is None:
        return None
    host = record.host
    if record.private and not answers(host):
        if not start or not (private_engine().root / "data").exists():
            return None
        _start(private_engine(), None)
    return Engine(host)


def release_engine(folder: Path, progress: Progress) -> None:
    """Release the engine of the lab in `folder`; a private engine without labs is stopped."""
    record = _record(folder)
    if record is not None and record.private:
        engine = private_engine()
        with file_lock(_lock(engine)):
            if not answers(engine.host):
                _clean(engine)
            elif not _used(engine):
                progress.step("stopping the lab's docker engine")
                _stop(engine)
                _clean(engine)
    (folder / "engine.json").unlink(missing_ok=True)


def _choose() -> EngineRecord:
    """Return DOCKER_HOST, else the controller's engine if it answers or is another user's, else a private one."""
    named = os.environ.get("DOCKER_HOST", "")
    if named and not named.startswith("unix://"):
        raise LabError(
            f"DOCKER_HOST={named}: the lab's nodes must run on the controller",
            remedy="Unset DOCKER_HOST, or set it to a local socket (unix:///...).",
        )
    socket = Path(DEFAULT_HOST.removeprefix("unix://"))
    if named or answers(DEFAULT_HOST) or (socket.exists() and not os.access(socket, os.W_OK)):
        return EngineRecord(named or DEFAULT_HOST, private=False)
    return EngineRecord(private_engine().host, private=True)


def _record(folder: Path) -> EngineRecord | None:
    try:
        return decode((folder / "engine.json").read_bytes(), EngineRecord, node="", what="engine.json")
    except FileNotFoundError:
        return None
    except InvalidDocument as error:
        raise LabError(f"{folder / 'engine.json'} is damaged: {error.message}", remedy="Remove that file.") from error


def _lock(engine: PrivateEngine) -> Path:
    return private_folder(engine.root) / "lock"


def _used(engine: PrivateEngine) -> bool:
    client = Engine(engine.host)
    try:
        return bool(client.containers(_ANY_LAB) or client.networks(_ANY_LAB))
    finally:
        client.close()


def _start(engine: PrivateEngine, progress: Progress | None) -> None:
    """Start the private engine unless it is running."""
    if answers(engine.host):
        return
    if os.geteuid() != 0:
        raise LabError(
            f"no Docker engine answers on the controller, and {ONLY_ROOT}",
            remedy="Start Docker (systemctl start docker) and grant this user access, or run the command as root.",
        )
    program = shutil.which("dockerd", path=_PATH)
    if program is None:
        raise LabError("the Docker engine is not installed", remedy="Run: apt-get install docker.io iptables")
    with file_lock(_lock(engine)):
        if answers(engine.host):
            return
        if progress is not None:
            progress.step("starting a docker engine for the lab")
        _kill_leftovers(engine)
        _unmount(engine)
        private_folder(engine.runtime)
        remember_network(engine.runtime / "before.json")
        (engine.runtime / "docker.pid").unlink(missing_ok=True)
        (engine.runtime / "daemon.json").write_text("{}\n", encoding="ascii")
        with engine.log.open("w") as log:
            process = subprocess.Popen(
                [program, *engine.argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": _PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **_proxies()},
                start_new_session=True,
            )
        _await_start(engine, process)


def engine_host() -> str:
    """Return the Docker engine that a new lab would use.

    Raises:
        LabError: DOCKER_HOST is not on this machine.
    """
    return _choose().host


def start_problem() -> str:
    """Return why the lab cannot start an engine of its own; empty if it can."""
    if os.geteuid() != 0:
        return ONLY_ROOT
    return "" if shutil.which("dockerd", path=_PATH) else "dockerd is not installed"


def _proxies() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.lower() in {"http_proxy", "https_proxy", "no_proxy"}}


def _await_start(engine: PrivateEngine, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while not answers(engine.host):
        if process.poll() is not None or time.monotonic() > end:
            tail = "\n".join(engine.log.read_text(errors="replace").splitlines()[-15:])
            process.kill()
            process.wait()
            _clean(engine)
            raise LabError(
                f"the lab's docker engine did not start (log: {engine.log})",
                remedy="Check the log, or start the controller's own Docker engine, which the lab then uses.",
                output=tail,
            )
        time.sleep(0.3)


def _stop(engine: PrivateEngine) -> None:
    """Stop the engine cleanly; remaining processes are killed by `_clean`."""
    try:
        pid = int((engine.runtime / "docker.pid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if pid not in _processes(engine):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_SECONDS
    while _processes(engine) and time.monotonic() < end:
        time.sleep(0.2)


def _clean(engine: PrivateEngine) -> None:
    """Remove what a stopped engine left: processes, mounts, cgroups, firewall chains, its runtime directory."""
    _kill_leftovers(engine)
    _unmount(engine)
    if _other_engine_runs():
        (engine.runtime / "before.json").unlink(missing_ok=True)  # the other engine's chains have the same names
    else:
        restore_network(engine.runtime / "before.json")
    for hierarchy in [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")]:
        _remove_cgroup(hierarchy / _CGROUP)
    shutil.rmtree(engine.runtime, ignore_errors=True)


def _processes(engine: PrivateEngine) -> list[int]:
    """Return the processes with the engine's runtime directory on their command line: dockerd, containerd and shims."""
    pids = []
    needle = str(engine.runtime).encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if Path(os.fsdecode(words[0])).name.startswith(("dockerd", "containerd")) and any(
                needle in w for w in words
            ):
                pids.append(int(path.parent.name))
    return pids


def _kill_leftovers(engine: PrivateEngine) -> None:
    for _ in range(50):
        left = _processes(engine)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.1)


def _unmount(engine: PrivateEngine) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for target in reversed(mounts):
        if Path(target).is_relative_to(engine.runtime) or Path(target).is_relative_to(engine.root):
            subprocess.run(["umount", "-l", target], capture_output=True, check=False)


def _other_engine_runs() -> bool:
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            ended = not path.with_name("cmdline").read_bytes()  # our own engine as a zombie
            if path.read_text(encoding="utf-8").strip() == "dockerd" and not ended:
                return True
    return False


def _remove_cgroup(path: Path) -> None:
    """Remove an empty cgroup and the empty ones below it."""
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            if child.is_dir():
                _remove_cgroup(child)
        with contextlib.suppress(OSError):
            path.rmdir()
