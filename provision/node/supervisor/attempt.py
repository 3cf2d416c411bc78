"""The state of one attempt of a job on this node, and its files."""

import collections
import os
import threading
import time
from typing import Any, Deque, Dict, NamedTuple, Optional, Union

from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.supervisor.channel import LeaderChannel, MemberChannel
from provision.node.supervisor.containers import Container
from provision.node.supervisor.messages import Message
from provision.node.supervisor.runtime import Document, Post, Runtime
from provision.node.supervisor.units import Unit

WRITE_SECONDS = 1
"""Time between attempts to write what could not be written."""
UP, GO, END = "up", "go", "end"
"""Phases of an attempt: this node is ready, all instances run, all instances are being ended."""


class Event(NamedTuple):
    """Something that the main thread has to handle."""

    kind: str
    subject: Any
    """A `Runtime`, the name of a node, or None."""
    value: Any


class Attempt:
    """One attempt of a job on one node."""

    def __init__(self, folder: str, request: Document) -> None:
        self.folder, self.request = folder, request
        self.name, self.node, self.is_leader = str(request["name"]), str(request["node"]), bool(request["chief"])
        self.began = time.monotonic()
        self.state: Document = {"phase": "", "created": {}, "ended": {}, "end": None, "began": self.began, "go": None}
        self.state.update(node_files.read_json(os.path.join(folder, "state.json")))
        self.record = node_files.read_json(os.path.join(folder, "attempt.json"))
        self.runtimes = [make_runtime(config, request, folder, self.post) for config in request["containers"]]
        self.beat = max(float(request.get("beat_seconds") or 2), 0.05)
        self.lost = max(float(request.get("lost_seconds") or 12), self.beat)
        self._init_files()
        self._init_events()
        self._init_peers()
        self._init_end()

    def _init_files(self) -> None:
        self.unwritten: Dict[str, Document] = {}
        self.write_at = 0.0
        self.write_error = ""

    def _init_events(self) -> None:
        self.events: Deque[Event] = collections.deque()
        self.wake, self.waker = os.pipe()
        for handle in (self.wake, self.waker):
            os.set_blocking(handle, False)
        self.worker: Optional[threading.Thread] = None
        self.abandoned = threading.Event()
        self.activity = ""
        self.trouble = ""
        """Why the job cannot run on this node."""

    def _init_peers(self) -> None:
        self.channel: Union[LeaderChannel, MemberChannel, None] = None
        self.peers: Dict[str, Message] = {name: {} for name in self.request["nodes"] if name != self.node}
        """The last report of each other node."""
        self.heard: Dict[str, float] = {}
        self.clock_offsets: Dict[str, float] = {}
        self.leader_heard: Optional[float] = None
        self.sent_at, self.last_sent = 0.0, ""
        self.query_sent, self.query_seen = 0.0, 0.0
        """The leader's last query, and the one that this node has answered; a failure is judged after all answers."""
        self.is_acknowledged = False

    def _init_end(self) -> None:
        self.is_terminated = False
        self.stop_request: Optional[Document] = None
        self.settled_at: Optional[float] = None
        self.ending_since: Optional[float] = None
        self.killed_since: Optional[float] = None
        self.quiet_since: Optional[float] = None
        self.is_done = False

    # Events

    def post(self, kind: str, subject: Any = None, value: Any = None) -> None:
        """Pass an event from any thread to the main thread."""
        self.events.append(Event(kind, subject, value))
        try:
            os.write(self.waker, b"x")
        except BlockingIOError:
            pass

    # Files

    def write(self, item: str, document: Document) -> None:
        """Write a file of the attempt; if that fails, the job continues and the file is written later."""
        self.unwritten[item] = document
        self.write_pending()

    def write_pending(self) -> None:
        """Write what could not be written before, and record once that it could not."""
        if not self.unwritten or time.monotonic() < self.write_at:
            return
        try:
            for item in list(self.unwritten):
                node_files.write_json(os.path.join(self.folder, item), self.unwritten[item])
                del self.unwritten[item]
        except OSError as problem:
            self.write_at = time.monotonic() + WRITE_SECONDS
            self.write_error = self.write_error or str(problem.strerror)
        if not self.unwritten and self.write_error:
            self.add_event("nothing could be written for a while: {}".format(self.write_error), "Warning")
            self.write_error = ""

    def save(self) -> None:
        """Write the state of the attempt."""
        self.write("state.json", self.state)

    def add_event(self, text: str, kind: str = "Normal") -> None:
        """Add an event to the job; an error does not end the job."""
        try:
            node_records.add_event(self.name, "node " + self.node, text, kind)
        except OSError:
            pass

    # Runtimes

    def is_running(self, runtime: Runtime) -> bool:
        """Return whether a runtime was started and this node does not know its end."""
        return runtime.is_watched and runtime.name not in self.state["ended"]


def make_runtime(config: Document, request: Document, folder: str, post: Post) -> Runtime:
    """Return the container or the unit of an entry of the request."""
    if config.get("unit"):
        return Unit(config, request, folder, post)
    return Container(config, request, folder, post)
