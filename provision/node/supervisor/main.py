"""The job supervisor: runs the instances of one attempt of a job on this node.

`provision.node.jobs.start` starts it as a systemd unit with the folder of the attempt as its argument; README.md of
`provision/jobs` describes it. The supervisor of the leader's node decides, the others report to it and follow its
orders; without messages from the other side for too long, a supervisor ends the job. Its state is in state.json, so a
restarted supervisor continues. It needs Python 3.6 or newer, and nothing else.

The supervisor is one object, whose class is divided by subject:

- `Attempt`: the state, its files, and the events for the main loop.
- `Start(Attempt)`: creation and start of containers and units, in threads.
- `InstanceRecords(Attempt)`: the records of the instances.
- `Peers(Start)`: messages from and to the supervisors of the other nodes.
- `Judge(Peers)`: the decisions of the leader.
- `Finish(Peers, InstanceRecords)`: the end of the job on this node.
- `JobSupervisor(Judge, Finish)`: the main loop.

The main loop handles all events; `JobSupervisor.handlers` lists them. Threads only post events.
"""

import os
import select
import signal
import sys
from typing import Any, Callable, Dict

from provision.node import endings
from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.jobs.supervisors import STOP_SIGNAL
from provision.node.supervisor.attempt import END, UP
from provision.node.supervisor.finish import Finish
from provision.node.supervisor.judge import Judge
from provision.node.supervisor.runtime import Runtime


class JobSupervisor(Judge, Finish):
    """The supervisor of one attempt of a job on one node."""

    def handlers(self) -> Dict[str, Callable[[Any, Any], None]]:
        """Return the kind of each event that a thread may post, and its handler."""
        return {
            "created": self.on_created,
            "started": self.on_started,
            "up": self.on_up,
            "ended": self.on_ended,
            "output_ended": self.on_output_ended,
            "warning": self.on_warning,
            "failed": self.on_failed,
            "recovered": self.on_recovered,
            "connected": self.on_connected,  # to the leader
            "leader": self.on_leader,  # an order of the leader
            "node": self.on_node,  # a report of another node
        }

    def run(self) -> None:
        """Supervise the job until it has ended on this node."""
        handlers = self.handlers()
        self.save()
        self.connect()
        self.run_in_thread(self.recover_all if self.state["phase"] == END else self.bring_up)
        while not self.is_done:
            select.select([self.wake], [], [], self.timeout())
            try:
                os.read(self.wake, 4096)
            except BlockingIOError:
                pass
            while self.events:
                event = self.events.popleft()
                handlers[event.kind](event.subject, event.value)
            self.check_requests()
            if self.state["phase"] != END:
                self.check_job()
            self.continue_end()
            self.write_pending()
            self.send(only_changes=True)

    def timeout(self) -> float:
        """Return the seconds until the next check without an event."""
        is_urgent = self.settled_at is not None or self.state["phase"] == END
        return 0.05 if is_urgent else self.beat / 2

    # Events of this node; those of other nodes are in `Peers`

    def on_created(self, runtime: Runtime, known_id: str) -> None:
        """Record a runtime that was created."""
        if self.state["created"].get(runtime.name) != known_id:
            self.state["created"][runtime.name] = known_id
            self.save()
        for instance in runtime.config["instances"]:
            self.update_record(instance, runtime, status="ContainerCreating", container_id=runtime.id)

    def on_started(self, runtime: Runtime, _: None) -> None:
        """Record a runtime that was started."""
        for instance in runtime.config["instances"]:
            self.update_record(instance, runtime, status="Running", container_id=runtime.id, started=runtime.started)

    def on_up(self, *_: object) -> None:
        """Record that this node is ready to start the second group of runtimes."""
        if not self.state["phase"]:
            self.state["phase"] = UP
            self.save()
            self.add_event("ready to start")

    def on_ended(self, runtime: Runtime, _: None) -> None:
        """Record the end of a runtime; the time shows whether this supervisor has stopped it."""
        end, ended = self.state["end"], dict(runtime.ended or {})
        ended["stopped"] = bool(end) and ended["time"] >= end["begun"]
        self.state["ended"].setdefault(runtime.name, ended)
        self.save()
        self.complete_early(runtime)
        if not ended["stopped"]:
            text = "{} ended: {}".format(runtime.name, ended["reason"] or "exit code 0")
            self.add_event(text, "Warning" if ended["code"] != 0 else "Normal")

    def on_output_ended(self, runtime: Runtime, _: None) -> None:
        """Complete the records of an ended runtime whose output is complete."""
        self.complete_early(runtime)

    def complete_early(self, runtime: Runtime) -> None:
        """Complete the records of a successful runtime with complete output; for others, the job's end counts."""
        ended = self.state["ended"].get(runtime.name)
        if self.state["phase"] != END and runtime.is_output_complete and ended and ended["code"] == 0:
            self.complete_records(runtime)

    def on_warning(self, runtime: Runtime, text: str) -> None:
        """Record a problem that does not end the job."""
        self.add_event("{}: {}".format(runtime.name, text), "Warning")

    def on_failed(self, _: None, text: str) -> None:
        """End the job because a runtime could not be created or started."""
        if self.state["phase"] != END:
            self.trouble = self.trouble or text

    def on_recovered(self, *_: object) -> None:
        """Continue the end of a job after a restart of the supervisor."""

    # Decisions

    def check_requests(self) -> None:
        """Check whether a stop was requested."""
        if self.is_terminated and self.state["phase"] != END:
            self.trouble = self.trouble or "its supervisor was stopped (shutdown of the node, or systemctl stop)"
        if self.stop_request is None:
            self.stop_request = node_files.read_json(os.path.join(self.folder, "stop.json")) or None

    def check_job(self) -> None:
        """Check whether the job has to end, or can start."""
        if self.is_leader:
            self.judge()
        elif self.is_leader_silent():
            self.end(self.end_without_leader())
        elif self.stop_request and not self.is_connected():
            self.end(endings.stopped(self.stop_request))
        elif self.is_terminated:
            self.send()
            self.end(endings.node_error(self.node, self.trouble))


def write_pid(handle: int) -> None:
    """Write the PID over the content of the lock file: this needs no space on a full disk."""
    number = str(os.getpid()).encode()
    try:
        os.pwrite(handle, number, 0)
        os.ftruncate(handle, len(number))
    except OSError:
        pass


def supervise(folder: str) -> int:
    """Supervise the attempt in a folder; return at once if it has ended, or another process supervises it."""
    lock = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not node_files.locked_within(lock, 10):
        return 0
    write_pid(lock)
    request = node_files.read_json(os.path.join(folder, "keeper.json"))
    if not request:
        node_records.remove_secrets(folder)
    if not request or request.get("boot_id") != node_files.boot_id():
        return 0
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        os.dup2(os.open(os.path.join(folder, "keeper.out"), flags, 0o600), 2)
    except OSError:
        pass
    supervisor = JobSupervisor(folder, request)

    def terminate(*_: object) -> None:
        supervisor.is_terminated = True

    def stop(*_: object) -> None:
        supervisor.stop_request = supervisor.stop_request or {"reason": "stopped", "grace": None}

    signal.set_wakeup_fd(supervisor.waker)
    signal.signal(STOP_SIGNAL, stop)
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    supervisor.run()
    return 0


def main() -> None:
    """Supervise the attempt whose folder is the first argument."""
    code = supervise(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # threads that wait for docker must not delay the exit
