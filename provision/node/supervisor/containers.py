"""One container of a job: made, started, watched and ended."""

import contextlib
import json
import os
import select
import signal
import threading
import time

from provision.node import docker as node_docker
from provision.node import endings, output
from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.supervisor import create as keeper_create
from provision.node.supervisor.runtime import Runtime, Trouble

CREATE_SECONDS = 600
AWAY_SECONDS = float(
    os.environ.get("PROVISION_DOCKER_AWAY_SECONDS") or 60
)  # an engine may be away so long before a container is made
ENGINE_PATIENCE = 0.5
REMOVAL_SECONDS = 0.1
POLL_SECONDS = 0.5
LABELS = ("job", "id", "attempt", "instance")


class Container(Runtime):
    """One container, and what is known of it."""

    def __init__(self, config, told, folder, post):
        super().__init__(config, told, folder, post)
        self.pid, self.pid_start = 0, 0

    # Making

    def make(self, known_id, abandoned):
        """Make it, unless it is there from before we were started anew."""
        found = self.ask(known_id or self.name)
        if found is not None and self.is_ours(found):
            self.id = found["Id"]
            return
        if known_id:
            self.id = known_id
            return
        if found is not None:
            self._make_room(found)
        self.id = self._create(abandoned)
        if self.config.get("account"):
            self._name_account()

    def _name_account(self):
        from provision.node.supervisor import account as keeper_account

        try:
            keeper_account.name_account(self.id, self.config["account"])
        except OSError as problem:
            raise Trouble(str(problem)) from None

    def ask(self, reference):
        """Return what the engine knows of a container; waits for an engine that does not answer.

        For one that is known to be there it waits as long as it takes: its GPUs may be in use.
        """
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return node_docker.engine_json("/containers/{}/json".format(node_docker.quoted(reference)))
            except OSError as problem:
                if reference == self.name and time.monotonic() > deadline:
                    raise Trouble("docker's engine does not answer: {}".format(problem)) from None
                time.sleep(ENGINE_PATIENCE)

    def is_ours(self, found):
        """Return whether a container that the engine tells of is of our attempt."""
        labels = (found.get("Config") or {}).get("Labels") or {}
        mine = (str(self.told["name"]), str(self.told["id"]), str(self.told["attempt"]))
        return tuple(labels.get("provision." + key) for key in ("job", "id", "attempt")) == mine

    def _make_room(self, found):
        """Take away what an earlier attempt of the job has left under our name."""
        labels = (found.get("Config") or {}).get("Labels") or {}
        if labels.get("provision.job") != self.told["name"] or found["State"].get("Running"):
            raise Trouble("there is another container {} on the node".format(self.name))
        node_docker.engine("DELETE", "/containers/{}?v=1".format(found["Id"]))

    def _create(self, abandoned):
        values = (self.told["name"], self.told["id"], self.told["attempt"], self.instance())
        labels = {"provision." + label: str(value) for label, value in zip(LABELS, values)}
        try:
            request = keeper_create.container_request(self.create_words(), self.config.get("env") or {}, labels)
        except ValueError as problem:
            raise Trouble(str(problem)) from None

        def wait(connection):
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

    def create_words(self):
        """Return the container as words of ``docker create``; an account's sources are those of `mounts`."""
        mounts = self.mounts()
        return mounts.words if mounts else self.config["create"]

    def mounts(self):
        """Return the mounts of an account's container; None for root's, which may have any."""
        account = self.config.get("account") or ""
        if account.partition(":")[0] in ("", "0"):
            return None
        from provision.node.supervisor.mounts import Mounts

        name = "{}-{}".format(self.name, self.told["attempt"])
        return Mounts(name, node_records.job_folder(self.told["name"]), account, self.config["create"])

    def start(self):
        """Start it, unless it was started before; its output is kept from now on."""
        found = self.ask(self.id)
        if found is not None and found["State"]["Status"] == "created":
            try:
                with self.mounts() or contextlib.ExitStack():
                    status, body = node_docker.engine("POST", "/containers/{}/start".format(self.id), timeout=300)
            except OSError as problem:
                status, body = 500, str(problem).encode()
            if status not in (204, 304):
                raise Trouble(self._why_not_started(node_docker.engine_words(body)))
            found = self.ask(self.id)
        self.watch(found)

    def _why_not_started(self, said):
        if "--privileged" not in self.config["create"] or "operation not permitted" not in said.lower():
            return said
        told = "this node may start no container with --privileged; without it a job has RDMA devices and locked memory"
        return "{} ({})".format(told, said)

    def find(self, known_id):
        """Find what the keeper before us has started."""
        self.id = known_id
        found = self.ask(self.id or self.name)
        if found is not None and self.is_ours(found):
            self.id = found["Id"]
            self.was_started()

    def was_started(self):
        """Return whether it was started by the keeper that was here before; it is watched from now on, if so."""
        found = self.ask(self.id) if self.id else None
        if found is not None and found["State"]["Status"] == "created":
            return False
        self.watch(found)
        return True

    def watch(self, found):
        """Keep its output and wait for its end, each in a thread of its own."""
        if self.watched:
            return
        self.watched, self.drained = True, False
        self.started = output.seconds_of(found["State"].get("StartedAt", "")) if found else 0.0
        self.pid = int(found["State"].get("Pid") or 0) if found else 0
        self.pid_start = node_files.start_of(self.pid)
        self.post("started", self, None)
        output.Pump(self.id, self.log, self.has_drained, lambda text: self.post("trouble", self, text)).start()
        threading.Thread(target=self._wait, daemon=True).start()

    # Watching

    def _wait(self):
        """Wait for its end, or for its being taken away; an engine that is restarted says what became of it."""
        code, when = None, 0.0
        while True:
            try:
                status, body = node_docker.engine("POST", "/containers/{}/wait".format(self.id), timeout=None)
                code, when = (exit_code_in(body), when or time.time()) if status == 200 else (code, when)
                found = node_docker.engine_json("/containers/{}/json".format(self.id))
            except OSError:
                time.sleep(ENGINE_PATIENCE)
                continue
            if found is None:
                removed = {"code": code, "signal": endings.signal_of(code), "reason": "its container was removed"}
                return self.end(dict(removed, removed=True), when or time.time())
            state = found["State"]
            if state["Status"] in ("exited", "dead"):
                ended = output.seconds_of(state.get("FinishedAt", ""))
                return self.end(endings.of_state(state), ended or when or time.time())
            time.sleep(REMOVAL_SECONDS)  # it is being removed

    # Ending

    def terminate(self):
        """Ask what it was started for to end."""
        self.asked_at = time.monotonic()
        try:
            self.asked = node_docker.terminate(self.id)
        except (OSError, KeyError, TypeError):
            self.asked = []

    def terminate_all(self):
        """Ask its first process to end."""
        try:
            node_docker.terminate_all(self.id)
        except OSError:
            pass

    def kill(self):
        """End it."""
        try:
            node_docker.engine("POST", "/containers/{}/kill?signal=KILL".format(self.id))
        except OSError:
            if self.pid > 1:
                node_files.send_signal(self.pid, signal.SIGKILL, lambda: not self.is_gone())

    def is_gone(self):
        """Return whether its first process is gone, whatever docker's engine says, or does not say."""
        return self.pid > 1 and (not self.pid_start or node_files.start_of(self.pid) != self.pid_start)

    def give_up(self):
        """Take it for ended where its process is gone and docker's engine does not tell how."""
        if self.ended is None:
            self.end({"code": None, "signal": None, "reason": "docker's engine did not tell how it ended"}, time.time())

    def may_run(self):
        """Return whether docker's engine does not say that it is at rest; its GPUs are in use then."""
        try:
            return bool(self.id) and node_docker.is_running(self.id)
        except (OSError, KeyError, TypeError):
            return True

    def take_away(self):
        """Remove it with its anonymous volumes."""
        mounts = self.mounts()
        try:
            if mounts:
                mounts.clear()
            node_docker.engine("DELETE", "/containers/{}?force=1&v=1".format(self.id), timeout=120)
        except OSError:
            pass


def exit_code_in(body):
    """Return the code in docker's answer to ``wait``, None where it makes no sense."""
    try:
        return int(json.loads(body.decode())["StatusCode"])
    except (ValueError, KeyError, TypeError):
        return None
