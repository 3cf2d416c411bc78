"""The containers of a job: creation, start, output and end."""

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
from typing import List, Optional, cast

from provision.node import docker as node_docker
from provision.node import endings, output
from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.supervisor import create
from provision.node.supervisor.mounts import Mounts
from provision.node.supervisor.runtime import Document, Post, Runtime, Trouble

CREATE_SECONDS = 600
AWAY_SECONDS = float(os.environ.get("PROVISION_DOCKER_AWAY_SECONDS") or 60)
"""Time limit for an engine that does not answer before a container is created."""
ENGINE_PATIENCE = 0.5
REMOVAL_SECONDS = 0.1
POLL_SECONDS = 0.5
LABELS = ("job", "id", "attempt", "instance")


class Container(Runtime):
    """A container of a job."""

    def __init__(self, config: Document, request: Document, folder: str, post: Post) -> None:
        super().__init__(config, request, folder, post)
        self.pid, self.pid_start = 0, 0

    # Creation

    def create(self, known_id: str, abandoned: threading.Event) -> None:
        """Create it, unless a previous supervisor has created it."""
        about = self.inspect(known_id or self.name)
        if about is not None and self.is_own(about):
            self.id = about["Id"]
            return
        if known_id:
            self.id = known_id
            return
        if about is not None:
            self._remove_old(about)
        self.id = self._create(abandoned)
        if self.config.get("account"):
            self._name_account()

    def _name_account(self) -> None:
        from provision.node.supervisor.account import name_account  # imports tarfile, which few containers need

        try:
            name_account(self.id, self.config["account"])
        except OSError as problem:
            raise Trouble(str(problem)) from None

    def inspect(self, reference: str) -> Optional[Document]:
        """Return the engine's description of a container, None without one; wait for an engine that does not answer.

        For a container that was created before, it waits without a limit: the GPUs may be in use.
        """
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                path = "/containers/{}/json".format(node_docker.quoted(reference))
                return cast("Optional[Document]", node_docker.engine_json(path))
            except OSError as problem:
                if reference == self.name and time.monotonic() > deadline:
                    raise Trouble("docker's engine does not answer: {}".format(problem)) from None
                time.sleep(ENGINE_PATIENCE)

    def is_own(self, about: Document) -> bool:
        """Return whether a container that the engine describes belongs to this attempt."""
        labels = (about.get("Config") or {}).get("Labels") or {}
        own = (str(self.request["name"]), str(self.request["id"]), str(self.request["attempt"]))
        return tuple(labels.get("provision." + key) for key in ("job", "id", "attempt")) == own

    def _remove_old(self, about: Document) -> None:
        """Remove the container of an earlier attempt of the job that has this name."""
        labels = (about.get("Config") or {}).get("Labels") or {}
        if labels.get("provision.job") != self.request["name"] or about["State"].get("Running"):
            raise Trouble("another container on the node has the name {}".format(self.name))
        node_docker.engine("DELETE", "/containers/{}?v=1".format(about["Id"]))

    def _create(self, abandoned: threading.Event) -> str:
        values = (self.request["name"], self.request["id"], self.request["attempt"], self.instance)
        labels = {"provision." + label: str(value) for label, value in zip(LABELS, values)}
        try:
            request = create.container_request(self.create_words(), self.config.get("env") or {}, labels)
        except ValueError as problem:
            raise Trouble(str(problem)) from None

        def wait(connection: socket.socket) -> None:
            deadline = time.monotonic() + CREATE_SECONDS
            while not select.select([connection], [], [], POLL_SECONDS)[0]:
                if abandoned.is_set() or time.monotonic() > deadline:
                    raise Trouble("docker's engine did not create it in time")

        path = "/containers/create?name=" + node_docker.quoted(self.name)
        try:
            status, body = node_docker.engine("POST", path, content=json.dumps(request).encode(), wait=wait)
        except OSError as problem:
            raise Trouble("docker's engine does not answer: {}".format(problem)) from None
        if status != 201:
            raise Trouble(node_docker.engine_words(body))
        return str(json.loads(body.decode())["Id"])

    def create_words(self) -> List[str]:
        """Return the words of ``docker create``; for an account, the sources of its mounts are those of `mounts`."""
        mounts = self.mounts()
        return mounts.words if mounts else list(self.config["create"])

    def mounts(self) -> Optional[Mounts]:
        """Return the mounts of an account's container; None for root's, whose mounts are not restricted."""
        account = str(self.config.get("account") or "")
        if account.partition(":")[0] in ("", "0"):
            return None
        name = "{}-{}".format(self.name, self.request["attempt"])
        return Mounts(name, node_records.job_folder(self.request["name"]), account, self.config["create"])

    # Start

    def start(self) -> None:
        """Start it, unless it was started before, and watch it."""
        about = self.inspect(self.id)
        if about is not None and about["State"]["Status"] == "created":
            try:
                with self.mounts() or contextlib.ExitStack():
                    status, body = node_docker.engine("POST", "/containers/{}/start".format(self.id), timeout=300)
            except OSError as problem:
                status, body = 500, str(problem).encode()
            if status not in (204, 304):
                raise Trouble(self._start_error(node_docker.engine_words(body)))
            about = self.inspect(self.id)
        self.watch(about)

    def _start_error(self, message: str) -> str:
        if "--privileged" not in self.config["create"] or "operation not permitted" not in message.lower():
            return message
        hint = (
            "this node cannot start containers with --privileged; without it a job has RDMA devices and locked memory"
        )
        return "{} ({})".format(hint, message)

    def recover(self, known_id: str) -> None:
        """Watch it if a previous supervisor has started it."""
        self.id = known_id
        about = self.inspect(self.id or self.name)
        if about is not None and self.is_own(about):
            self.id = about["Id"]
            self.watch_if_started()

    def watch_if_started(self) -> None:
        """Watch it if it was started; a container that was removed meanwhile is reported as ended."""
        about = self.inspect(self.id) if self.id else None
        if about is None or about["State"]["Status"] != "created":
            self.watch(about)

    def watch(self, about: Optional[Document]) -> None:
        """Copy its output and wait for its end, in one thread each."""
        if self.is_watched:
            return
        self.is_watched, self.is_output_complete = True, False
        if about is not None:
            self.started = output.seconds_of(about["State"].get("StartedAt", ""))
            self.pid = int(about["State"].get("Pid") or 0)
        self.pid_start = node_files.start_of(self.pid)
        self.post("started", self, None)
        output.Pump(self.id, self.log, self.end_output, lambda text: self.post("warning", self, text)).start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        """Wait until it has ended or is removed; an engine that is restarted reports the end afterwards."""
        code: Optional[int] = None
        when = 0.0
        while True:
            try:
                status, body = node_docker.engine("POST", "/containers/{}/wait".format(self.id), timeout=None)
                if status == 200:
                    code, when = exit_code_in(body), when or time.time()
                about = node_docker.engine_json("/containers/{}/json".format(self.id))
            except OSError:
                time.sleep(ENGINE_PATIENCE)
                continue
            if about is None:
                removed = {"code": code, "signal": endings.signal_of(code), "reason": "its container was removed"}
                return self.end(dict(removed, removed=True), when or time.time())
            state = about["State"]
            if state["Status"] in ("exited", "dead"):
                ended = output.seconds_of(state.get("FinishedAt", ""))
                return self.end(endings.of_state(state), ended or when or time.time())
            time.sleep(REMOVAL_SECONDS)  # it is being removed

    # End

    def terminate(self) -> None:
        """Send SIGTERM to the programs that it was started for."""
        self.terminated_at = time.monotonic()
        try:
            self.terminated_pids = node_docker.terminate(self.id)
        except (OSError, KeyError, TypeError):
            self.terminated_pids = []

    def terminate_first(self) -> None:
        """Send SIGTERM to its first process."""
        try:
            node_docker.terminate_all(self.id)
        except OSError:
            pass

    def kill(self) -> None:
        """Kill it."""
        try:
            node_docker.engine("POST", "/containers/{}/kill?signal=KILL".format(self.id))
        except OSError:
            if self.pid > 1:
                node_files.send_signal(self.pid, signal.SIGKILL, lambda: not self.is_gone())

    def is_gone(self) -> bool:
        """Return whether its first process has ended, independent of docker's engine."""
        return self.pid > 1 and (not self.pid_start or node_files.start_of(self.pid) != self.pid_start)

    def give_up(self) -> None:
        """Report the end of a container whose process has ended while docker's engine does not report it."""
        if self.ended is None:
            self.end({"code": None, "signal": None, "reason": "docker's engine did not report its end"}, time.time())

    def may_run(self) -> bool:
        """Return whether docker's engine does not confirm that it has ended; then its GPUs are in use."""
        try:
            return bool(self.id) and node_docker.is_running(self.id)
        except (OSError, KeyError, TypeError):
            return True

    def remove(self) -> None:
        """Remove it with its anonymous volumes and mounts."""
        mounts = self.mounts()
        try:
            if mounts:
                mounts.clear()
            node_docker.engine("DELETE", "/containers/{}?force=1&v=1".format(self.id), timeout=120)
        except OSError:
            pass


def exit_code_in(body: bytes) -> Optional[int]:
    """Return the code in docker's answer to ``wait``, None for an invalid answer."""
    try:
        return int(json.loads(body.decode())["StatusCode"])
    except (ValueError, KeyError, TypeError):
        return None
