"""What an instance runs in: the common base of containers and units."""

import os
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterable, Optional

REPEAT_SECONDS = 1

Document = Dict[str, Any]
"""A JSON object."""
Post = Callable[[str, Optional["Runtime"], Any], None]
"""Passes an event to the main thread: its kind, the runtime and a value."""


class Trouble(Exception):
    """An instance cannot be created or started; the text is the reason."""


class Runtime:
    """A container or a unit of a job."""

    def __init__(self, config: Document, request: Document, folder: str, post: Post) -> None:
        self.config, self.request, self.folder, self.post = config, request, folder, post
        self.name = str(config["name"])
        self.instance = str(config.get("log_instance") or config["instances"][0])
        """The instance whose output it writes."""
        self.start_group = 1 if config.get("phase") == 1 else 2
        """1: it starts before the job starts, because others connect to it; 2: it starts when all nodes are ready."""
        self.log = os.path.join(folder, self.instance + ".log")
        self.id = ""
        self.started = 0.0
        self.ended: Optional[Document] = None
        self.is_output_complete = True
        self.is_watched = False
        self.terminated_pids: Optional[Iterable[int]] = None
        self.terminated_at = 0.0

    def create(self, known_id: str, abandoned: threading.Event) -> None:
        """Create it, unless a previous supervisor has created it with that ID; stop waiting if the job is abandoned."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, unless it was started before, and watch it."""
        raise NotImplementedError

    def recover(self, known_id: str) -> None:
        """Watch it if a previous supervisor has started it."""
        raise NotImplementedError

    def watch_if_started(self) -> None:
        """Watch it if it was started."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Send SIGTERM to the programs that it was started for."""
        raise NotImplementedError

    def terminate_first(self) -> None:
        """Send SIGTERM to its first process."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill all its processes."""
        raise NotImplementedError

    def is_gone(self) -> bool:
        """Return whether its processes have ended."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Report its end although the cause is unknown."""
        raise NotImplementedError

    def may_run(self) -> bool:
        """Return whether it may be running; then its GPUs are in use."""
        raise NotImplementedError

    def remove(self) -> None:
        """Remove it and what was created for it."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether its port accepts connections; True without a port."""
        port = self.config.get("ready_port")
        if not port:
            return True
        for address in filter(None, (self.config.get("ready_address"), "127.0.0.1")):
            try:
                socket.create_connection((address, port), timeout=1).close()
            except OSError:
                continue
            return True
        return False

    def repeat_termination(self) -> None:
        """Send SIGTERM to the first process if the programs that received it have ended and it still runs."""
        if self.terminated_pids is None or time.monotonic() - self.terminated_at < REPEAT_SECONDS:
            return
        if not any(os.path.exists("/proc/{}".format(pid)) for pid in self.terminated_pids):
            self.terminated_pids = None
            self.terminate_first()

    def end(self, ending: Document, when: float) -> None:
        """Report its end."""
        self.ended = dict(ending, time=when)
        self.post("ended", self, None)

    def end_output(self) -> None:
        """Report that its output is complete."""
        self.is_output_complete = True
        self.post("output_ended", self, None)
