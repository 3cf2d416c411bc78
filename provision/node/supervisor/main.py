"""Watches over one job's containers on this node, and with the keepers of its other nodes over the whole job.

`node_jobs.py` starts it as a systemd unit of its own, with the folder of the attempt as its argument; README.md of
`provision/jobs` says what it does. The chief's keeper decides, the others tell it all they know and do as it says;
whoever cannot hear the other for too long ends the job. What it has done is in state.json, so that it goes on where it
was when it is killed and started anew. Python 3.6 or newer, and nothing else.
"""

import collections
import json
import os
import select
import signal
import sys
import threading
import time

from provision.node import endings
from provision.node import files as node_files
from provision.node.jobs import records as node_records
from provision.node.jobs import supervisors as node_keepers
from provision.node.supervisor import channel, network
from provision.node.supervisor.containers import Container
from provision.node.supervisor.finish import Finish
from provision.node.supervisor.judge import Judge
from provision.node.supervisor.records import END, GO, UP, Records
from provision.node.supervisor.start import Start
from provision.node.supervisor.units import Unit

LISTEN_SECONDS = 5
COMING_SECONDS = 90  # all keepers of an attempt are started at once: one that does not come is not started any more


class Keeper(Start, Judge, Finish, Records):
    """One attempt of a job on one node."""

    def __init__(self, folder, told):
        self.folder, self.told = folder, told
        self.name, self.node, self.chief = told["name"], told["node"], bool(told["chief"])
        fresh = {"phase": "", "created": {}, "ended": {}, "end": None, "began": time.monotonic(), "go": None}
        self.state = dict(fresh, **node_files.read_json(os.path.join(folder, "state.json")))
        self.record = node_files.read_json(os.path.join(folder, "attempt.json"))
        self.unwritten, self.write_at, self.unwritable = {}, 0.0, ""
        self.containers = [make_runtime(item, told, folder, self.post) for item in told["containers"]]
        self.others = {name: {} for name in told["nodes"] if name != self.node}
        self.heard, self.offsets = {}, {}
        self.heard_chief = None
        self.born = time.monotonic()
        self.beat = max(float(told.get("beat_seconds") or 2), 0.05)
        self.lost = max(float(told.get("lost_seconds") or 12), self.beat)
        self.news = collections.deque()
        self.wake, self.waker = os.pipe()
        for handle in (self.wake, self.waker):
            os.set_blocking(handle, False)
        self.abandoned = threading.Event()
        self.terminated = False
        self.stop_asked = None
        self.trouble = ""
        self.doing = ""
        self.settled_at = None
        self.asking, self.asked = 0.0, 0.0
        self.worker = None
        self.ending_since = None
        self.killed_since = None
        self.quiet_since = None
        self.told_at, self.told_last = 0.0, ""
        self.acknowledged = False
        self.done = False
        self.line = None

    # Events of other threads

    def post(self, kind, subject=None, value=None):
        """Tell the main thread of something."""
        self.news.append((kind, subject, value))
        try:
            os.write(self.waker, b"x")
        except BlockingIOError:
            pass

    def run(self):
        """Keep the job until it has ended here."""
        self.save()
        self.listen()
        self.take_up()
        while not self.done:
            select.select([self.wake], [], [], self.pause())
            try:
                os.read(self.wake, 4096)
            except BlockingIOError:
                pass
            while self.news:
                self.handle(*self.news.popleft())
            self.look_around()
            self.step()
            self.write_rest()
            self.tell(only_news=True)

    def pause(self):
        """Return how long nothing has to be done by itself."""
        busy = self.settled_at is not None or self.state["phase"] == END
        return 0.05 if busy else self.beat / 2

    def save(self):
        """Write down how far we are."""
        self.write("state.json", self.state)

    def event(self, text, kind="Normal"):
        """Add to the job's events; what cannot be written is no reason to end it."""
        try:
            node_records.add_event(self.name, "node " + self.node, text, kind)
        except OSError:
            pass

    # Starting

    def listen(self):
        """Open the way to the other keepers."""
        if not self.others:
            return
        secret = bytes.fromhex(self.told["secret"])
        address, port = self.told["chief_address"], int(self.told["control_port"])
        if not self.chief:
            self.line = channel.Member(
                address,
                port,
                secret,
                self.node,
                lambda told: self.post("chief", None, told),
                lambda: self.post("connected"),
            )
            return
        deadline = time.monotonic() + LISTEN_SECONDS
        while self.line is None:
            try:
                self.line = channel.Chief(address, port, secret, self.others, lambda *told: self.post("node", *told))
            except OSError as problem:
                if time.monotonic() > deadline:
                    self.trouble = "{}:{} cannot be listened on: {}".format(address, port, problem.strerror)
                    return
                time.sleep(0.1)

    def take_up(self):
        """Begin, or go on where a keeper before us was."""
        if self.state["phase"] == END:
            self.in_thread(self.find_again)
        else:
            self.in_thread(self.bring_up)

    # What happens

    def handle(self, kind, subject, value):
        """Take in one event."""
        getattr(self, "on_" + kind)(subject, value)

    def on_created(self, container, value):
        """A container is there."""
        if self.state["created"].get(container.name) != value:
            self.state["created"][container.name] = value
            self.save()
        for instance in container.config["instances"]:
            self.note(instance, container, status="ContainerCreating", container_id=container.id)

    def on_started(self, container, _):
        """A container runs."""
        for instance in container.config["instances"]:
            self.note(instance, container, status="Running", container_id=container.id, started=container.started)

    def on_up(self, *_):
        """All is made ready here."""
        if not self.state["phase"]:
            self.state["phase"] = UP
            self.save()
            self.event("ready to start")

    def on_ended(self, container, _):
        """A container has ended; whether by itself or because we ended it is told by the time."""
        end = self.state["end"]
        ended = dict(container.ended, stopped=bool(end) and container.ended["time"] >= end["begun"])
        self.state["ended"].setdefault(container.name, ended)
        self.save()
        self.conclude_early(container)
        if not ended["stopped"]:
            bad = ended["code"] != 0
            self.event(
                "{} ended: {}".format(container.name, ended["reason"] or "exit code 0"), "Warning" if bad else "Normal"
            )

    def on_drained(self, container, _):
        """The output of a container that has ended is all there."""
        self.conclude_early(container)

    def conclude_early(self, container):
        """Write down a good end as soon as its output is there; of others the job's end says more."""
        ended = self.state["ended"].get(container.name)
        if self.state["phase"] != END and container.drained and ended and ended["code"] == 0:
            self.conclude(container)

    def on_trouble(self, container, text):
        """Something to be told that ends nothing."""
        self.event("{}: {}".format(container.name, text), "Warning")

    def on_failed(self, _, text):
        """Something could not be made or started here."""
        if self.state["phase"] != END:
            self.trouble = self.trouble or text

    def on_found(self, *_):
        """What there is of a job that was ending is known again."""

    def on_connected(self, *_):
        """The chief is there."""
        self.tell()

    def on_chief(self, _, told):
        """The chief has told what it knows."""
        self.heard_chief = time.monotonic()
        end = told.get("end")
        if isinstance(end, dict) and self.state["phase"] != END:
            self.end(dict(end))
        elif told.get("go") and self.state["phase"] == UP:
            self.go()
        self.acknowledged = self.node in (told.get("done") or ())
        self.asked = told.get("asks") or self.asked

    def on_node(self, name, told):
        """Another node has told what it knows."""
        self.heard[name] = time.monotonic()
        if isinstance(told.get("now"), (int, float)):
            self.offsets[name] = min(time.time() - told["now"], self.offsets.get(name, float("inf")))
        self.others[name] = told

    def look_around(self):
        """See whether somebody asks for the end, and whether the others can still be heard."""
        if self.terminated and self.state["phase"] != END:
            self.trouble = self.trouble or "its keeper was told to end (the node shuts down, or systemctl stop)"
        if self.stop_asked is None:
            self.stop_asked = node_files.read_json(os.path.join(self.folder, "stop.json")) or None
        if self.state["phase"] == END:
            return
        if self.chief:
            self.judge()
        elif self.is_alone():
            self.end(self.end_without_leader())
        elif self.stop_asked and (self.line is None or self.line.link is None):
            self.end(endings.stopped(self.stop_asked))
        elif self.terminated:
            self.tell()
            self.end(endings.node_error(self.node, self.trouble))

    def is_alone(self):
        """Return whether the leader has been silent for too long."""
        now = time.monotonic()
        if self.heard_chief is None:
            limit = self.lost if self.state["phase"] == GO else self.coming()
            return now - max(self.state["began"], self.born) > limit
        return now - self.heard_chief > self.lost

    def end_without_leader(self):
        """Return how the job ends here because the leader is silent."""
        if self.heard_chief is None and self.state["phase"] != GO:
            return endings.broken_off(self.chief_name())
        isolated = self.why_cut_off()
        if isolated:
            return endings.node_isolated(self.node, isolated)
        message = "node {} does not answer; it runs rank 0".format(self.chief_name())
        return endings.node_silent(self.chief_name(), message)

    def chief_name(self):
        """Return the chief's node."""
        return self.told.get("chief_node") or self.told["chief_address"]

    def why_cut_off(self, *, alone=0.0):
        """Return why it is this node that the others cannot hear, empty where that is not known.

        Args:
            alone: so long several other nodes have been silent, all of them: it is unlikely that they all are gone.
        """
        own = next((seat.get("address") for seat in self.seats() if seat.get("node") == self.node), "")
        why = network.trouble_of(own) if own else ""
        if not why and alone and len(self.others) > 1:
            why = "it has heard nothing of any other node for {:.0f} s".format(alone)
        return why

    def coming(self):
        """Return how long the keeper of another node may not be heard of at the beginning."""
        return min(float(self.told.get("coming_seconds") or COMING_SECONDS), self.starting_timeout())

    def starting_timeout(self):
        """Return how long the start may take."""
        return float(self.told.get("starting_timeout") or 600)

    def go(self):
        """Start what counts."""
        self.state.update(phase=GO, go=time.monotonic())
        self.save()
        self.in_thread(self.start_all)
        self.tell()

    # What we tell

    def telling(self):
        """Return all that the chief is told of this node."""
        over = len(self.state["ended"]) == len(self.containers)
        return {
            "up": self.state["phase"] in (UP, GO),
            "doing": self.doing,
            "ended": self.state["ended"],
            "over": over and all(item.get("code") == 0 for item in self.state["ended"].values()),
            "trouble": self.trouble,
            "stop": self.stop_asked,
            "done": self.state.get("done", False),
            "asked": self.asked,
        }

    def ordering(self):
        """Return all that the chief tells the other nodes."""
        done = [name for name, told in self.others.items() if told.get("done")]
        return {"go": self.state["go"] is not None, "end": self.state["end"], "done": done, "asks": self.asking}

    def tell(self, *, only_news=False):
        """Tell the others what we know; what they know already, once in a beat."""
        if self.line is None:
            return
        words = json.dumps(self.ordering() if self.chief else self.telling())
        if only_news and words == self.told_last and time.monotonic() - self.told_at < self.beat:
            return
        self.told_at, self.told_last = time.monotonic(), words
        self.line.tell(dict(json.loads(words), now=time.time()))

    # Ending

    def end(self, end):
        """Begin to end the job here; the first reason counts."""
        if self.state["end"] is not None:
            return True
        end["begun"] = time.time()
        self.state.update(phase=END, end=end)
        self.save()
        self.abandoned.set()
        self.in_thread(self.find_started)
        self.tell()
        return True


def write_pid(handle):
    """Write our number into the lock's file, over the one before: that needs no room on a disk that is full."""
    number = str(os.getpid()).encode()
    try:
        os.pwrite(handle, number, 0)
        os.ftruncate(handle, len(number))
    except OSError:
        pass


def make_runtime(config, told, folder, post):
    """Return the container or the unit of an entry of the request."""
    kind = Unit if config.get("unit") else Container
    return kind(config, told, folder, post)


def supervise(folder):
    """Keep the attempt whose folder this is; with nothing to keep, end."""
    lock = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not node_files.locked_within(lock, 10):
        return 0
    write_pid(lock)
    told = node_files.read_json(os.path.join(folder, "keeper.json"))
    if not told:
        node_records.remove_secrets(folder)
    if not told or told.get("boot_id") != node_files.boot_id():
        return 0
    try:
        said = os.open(os.path.join(folder, "keeper.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(said, 2)
    except OSError:
        pass
    keeper = Keeper(folder, told)

    def terminate(*_):
        keeper.terminated = True

    def stop(*_):
        keeper.stop_asked = keeper.stop_asked or {"reason": "stopped", "grace": None}

    signal.set_wakeup_fd(keeper.waker)
    signal.signal(node_keepers.STOP_SIGNAL, stop)
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    keeper.run()
    return 0


def main():
    """Supervise the attempt whose folder is the first argument."""
    code = supervise(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # do not wait for threads that wait for docker
