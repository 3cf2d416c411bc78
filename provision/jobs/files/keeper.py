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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import keeper_channel as channel
import keeper_endings as endings
import keeper_network as network
import keeper_output as output
import node_jobs as node
from keeper_containers import Container, Trouble

SETTLE_SECONDS = 0.5  # so long other nodes may tell of a failure that came before the first that we heard of
READY_SECONDS = 0.1
LISTEN_SECONDS = 5
LINE = 300  # so much of each last line of mpirun is told to the node of the rank that it names
OUTPUT_SECONDS = 10
LAUNCHER_SECONDS = 2  # the same, where the launcher failed and names no rank
COMING_SECONDS = 90  # all keepers of an attempt are started at once: one that does not come is not started any more
LOST_LAUNCHER_SECONDS = 5  # mpirun has so long to end when a node of its is gone
GONE_SECONDS = 5  # docker has so long to tell of what is gone
WRITE_SECONDS = 1  # so often what could not be written is tried again
KILL_SECONDS = 60  # what does not end after SIGKILL for so long is left, and said
UP, GO, END = "up", "go", "end"


class Keeper:
    """One attempt of a job on one node."""

    def __init__(self, folder, told):
        self.folder, self.told = folder, told
        self.name, self.node, self.chief = told["name"], told["node"], bool(told["chief"])
        fresh = {"phase": "", "created": {}, "ended": {}, "end": None, "began": time.monotonic(), "go": None}
        self.state = dict(fresh, **node.read_json(os.path.join(folder, "state.json")))
        self.record = node.read_json(os.path.join(folder, "attempt.json"))
        self.unwritten, self.write_at, self.unwritable = {}, 0.0, ""
        self.containers = [Container(item, told, folder, self.post) for item in told["containers"]]
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

    def write(self, item, document):
        """Write a file of the attempt; what the disk does not take now is kept and tried again, for the job goes on."""
        self.unwritten[item] = document
        self.write_rest()

    def write_rest(self):
        """Write what could not be written before, and say once that it could not."""
        if not self.unwritten or time.monotonic() < self.write_at:
            return
        try:
            for item in list(self.unwritten):
                node.write_json(os.path.join(self.folder, item), self.unwritten[item])
                del self.unwritten[item]
        except OSError as problem:
            self.write_at = time.monotonic() + WRITE_SECONDS
            self.unwritable = self.unwritable or str(problem.strerror)
        if not self.unwritten and self.unwritable:
            self.event("for a while nothing could be written down: {}".format(self.unwritable), "Warning")
            self.unwritable = ""

    def event(self, text, kind="Normal"):
        """Add to the job's events; what cannot be written is no reason to end it."""
        try:
            node.add_event(self.name, "node " + self.node, text, kind)
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

    def in_thread(self, work):
        """Do what takes long beside the main loop; one thing after the other."""
        before = self.worker

        def run():
            if before is not None:
                before.join()
            try:
                work()
            except Trouble as trouble:
                self.post("failed", None, str(trouble))
            except Exception as problem:  # noqa: BLE001 - told as the job's end: nobody would see it otherwise
                self.post("failed", None, "the keeper failed: {!r}".format(problem))

        self.worker = threading.Thread(target=run, daemon=True)
        self.worker.start()

    def bring_up(self):
        """Make all containers and start those of the first phase; wait until their ports answer."""
        for container in self.containers:
            self.check("creating", container, lambda item: item.make(self.created(item), self.abandoned))
            self.post("created", container, container.id)
        for container in self.containers:
            if container.config.get("phase") == 1:
                self.check("starting", container, Container.start)
        for container in self.containers:
            while container.watched and not container.ready():
                self.doing = "waiting for port {} of {}".format(container.config["ready_port"], container.name)
                if self.abandoned.is_set() or container.ended:
                    return
                time.sleep(READY_SECONDS)
        self.doing = ""
        self.post("up")
        if self.state["phase"] == GO:
            self.start_all()

    def start_all(self):
        """Start the containers of the second phase."""
        for container in self.containers:
            if container.config.get("phase") != 1:
                self.check("starting", container, Container.start)
        self.doing = ""

    def created(self, container):
        """Return the id of a container that was made before we were started anew."""
        return self.state["created"].get(container.name, "")

    def check(self, what, container, work):
        """Do something with a container unless the job ends, and say with whom it failed."""
        if self.abandoned.is_set():
            raise Trouble("it was ended before it had begun")
        self.doing = "{} {}".format(what, container.name)
        try:
            work(container)
        except Trouble as trouble:
            raise Trouble("{} {} failed: {}".format(what, container.name, trouble)) from None

    def find_again(self):
        """Find the containers of a job that was ending when the keeper before us was killed."""
        for container in self.containers:
            container.id = self.created(container)
            found = container.ask(container.id or container.name)
            if found is not None and container.is_ours(found):
                container.id = found["Id"]
                container.was_started()
        self.post("found")

    def find_started(self):
        """Find those that run although they could not be started in our eyes, so that they are ended too."""
        for container in self.containers:
            container.id = container.id or self.created(container)
            if container.id and not container.watched:
                container.was_started()

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
            self.stop_asked = node.read_json(os.path.join(self.folder, "stop.json")) or None
        if self.state["phase"] == END:
            return
        if self.chief:
            self.judge()
        elif self.why_alone():
            early = self.heard_chief is None and self.state["phase"] != GO
            self.end(broken_off(self.chief_name()) if early else ending("FAILED", self.why_alone()))
        elif self.stop_asked and (self.line is None or self.line.link is None):
            self.end(ending("STOPPED", self.stop_asked["reason"], grace=self.stop_asked.get("grace")))
        elif self.terminated:
            self.tell()
            self.end(ending("FAILED", "node {}: {}".format(self.node, self.trouble)))

    def why_alone(self):
        """Return why the chief is taken for lost, empty while it is not."""
        now = time.monotonic()
        if self.heard_chief is None:
            limit = self.lost if self.state["phase"] == GO else self.coming()
            silent = now - max(self.state["began"], self.born) > limit
        else:
            silent = now - self.heard_chief > self.lost
        if not silent:
            return ""
        return self.why_cut_off() or "the chief's node {} does not answer".format(self.chief_name())

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
        return "node {} is cut off: {}".format(self.node, why) if why else ""

    # The chief decides

    def judge(self):
        """Decide whether the job starts, goes on or ends."""
        if self.stop_asked:
            return self.end(ending("STOPPED", self.stop_asked["reason"], grace=self.stop_asked.get("grace")))
        for _, told in self.everybody():
            if told.get("stop"):
                return self.end(ending("STOPPED", told["stop"]["reason"], grace=told["stop"].get("grace")))
        failures = self.failures()
        if failures:
            return self.of_first(failures[0])
        for name, told in self.everybody():
            if told.get("trouble"):
                return self.end(ending("FAILED", "node {}: {}".format(name, told["trouble"])))
        return self.lost_node() or self.too_long() or self.never_came() or self.success() or self.begin()

    def of_first(self, failure):
        """End the job by its first failure, when others had the time to tell of an earlier one."""
        now = time.monotonic()
        if self.settled_at is None:
            self.settled_at, self.asking = now + (SETTLE_SECONDS if self.others else 0), time.time()
            self.tell()
        if now < self.settled_at or not self.is_told(failure):
            return None
        if any(self.others[name].get("asked") != self.asking for name in self.heard):
            return self.lost_node()  # whose end may be why others failed
        end = self.of_failure(failure)
        if self.is_of_launcher(failure) and "lines" not in end and now < self.settled_at + LAUNCHER_SECONDS:
            return None
        return self.end(end)

    def is_of_launcher(self, failure):
        """Return whether it is the launcher that failed."""
        _, name, box, _ = failure
        return self.told["ends"] == "chief" and name == self.node and box == self.chief_container()

    def everybody(self):
        """Yield each node's name and what it told, our own first."""
        yield self.node, self.telling()
        yield from self.others.items()

    def failures(self):
        """Return the containers that have failed by themselves, the first by our clock first.

        The launcher of mpi ends because of a worker's container, never the other way round, and may be heard of first.
        """
        found = []
        chief_box = self.chief_container()
        for name, told in self.everybody():
            for box, ended in (told.get("ended") or {}).items():
                by_itself = ended.get("code") != 0 or ended.get("reason")
                worker = self.told["ends"] == "chief" and not (name == self.node and box == chief_box)
                if not ended.get("stopped") and (by_itself or worker):
                    when = float(ended.get("time") or 0) + self.offsets.get(name, 0.0)
                    found.append((when, name, box, ended))
        return sorted(found, key=lambda item: (self.is_of_launcher(item), *item[:3]))

    def chief_container(self):
        """Return the name of the container whose end is the job's, where one alone counts."""
        return next((item.name for item in self.containers if item.config.get("phase") != 1), "")

    def is_told(self, failure):
        """Return whether all is there that a failure is judged by: mpirun's last words come by docker's log."""
        _, name, box, _ = failure
        here = next((item for item in self.containers if name == self.node and item.name == box), None)
        return here is None or here.drained or time.monotonic() > self.settled_at + OUTPUT_SECONDS

    def of_failure(self, failure):
        """Return how the job ends by a container's failure."""
        _, name, box, ended = failure
        if self.is_of_launcher(failure):
            found = self.of_mpirun(ended)
            if found:
                return found
        instance = self.first_instance(box)
        reason = ended.get("reason") or "it ended by itself, which it should not"
        found = ending("FAILED", "{} on {} failed: {}".format(instance, name, reason), ended.get("code"))
        ranks = {seat.get("instance"): seat.get("rank") for seat in self.seats() if seat.get("role") != "launcher"}
        rank = ranks.get(instance)
        found.update(first_failure=instance, first_rank=rank, signal=ended.get("signal"), why=reason)
        return found

    def of_mpirun(self, ended):
        """Return how the job ends by what mpirun says of a rank; None where it says nothing."""
        container = next(item for item in self.containers if item.name == self.chief_container())
        lines = output.last_lines(container.log, 400)
        said = endings.first_of_mpirun("\n".join(lines))
        if not said:
            return None
        seat = endings.seat_of_rank(self.seats(), said["rank"], said["node"])
        why = endings.words_of(said["code"], said["signal"])
        where = " on {}".format(seat["node"]) if seat else ""
        found = ending("FAILED", "rank {}{} failed: {}".format(said["rank"], where, why), ended.get("code"))
        found.update(first_rank=said["rank"], signal=said["signal"], rank_code=said["code"], why=why)
        found["first_failure"] = seat["instance"] if seat else self.first_instance(container.name)
        found["lines"] = [line[:LINE] for line in lines[-20:]]
        return found

    def seats(self):
        """Return the seats of all instances."""
        return [seat for seat in self.record.get("seats") or () if isinstance(seat, dict)]

    def first_instance(self, box):
        """Return the instance that a container is told by."""
        inside = [seat for seat in self.seats() if seat.get("container") == box]
        chief = next((seat for seat in inside if seat.get("chief")), None)
        own = next((item.config["instances"][0] for item in self.containers if item.name == box), box)
        return chief["instance"] if chief else inside[0]["instance"] if inside else own

    def lost_node(self):
        """End the job where a node that has spoken is silent; where all are, it is this one that is cut off."""
        before = self.born if self.state["phase"] == GO else time.monotonic()
        silent = {name: time.monotonic() - self.heard.get(name, before) for name in self.others}
        lost = next((name for name in self.others if silent[name] > self.lost), None)
        if lost is None:
            return None
        least = min(silent.values())
        own = self.why_cut_off(alone=least if least > self.lost - 2 * self.beat else 0.0)
        other = "node {} does not answer: nothing was heard of it for {:.0f} s".format(lost, silent[lost])
        return self.end(ending("FAILED", own or other, grace=self.grace_without_a_node()))

    def grace_without_a_node(self):
        """Return the grace time where a node is gone: mpirun waits in vain for its part there, and has no other use."""
        whole = float(self.told.get("grace_seconds") or 0)
        return min(whole, LOST_LAUNCHER_SECONDS) if self.told["ends"] == "chief" else None

    def coming(self):
        """Return how long the keeper of another node may not be heard of at the beginning."""
        return min(float(self.told.get("coming_seconds") or COMING_SECONDS), self.starting_timeout())

    def starting_timeout(self):
        """Return how long the start may take."""
        return float(self.told.get("starting_timeout") or 600)

    def never_came(self):
        """End the job where a node's keeper does not come at all: whoever started them was ended in between."""
        if self.state["phase"] == GO or time.monotonic() - max(self.state["began"], self.born) < self.coming():
            return None
        name = next((name for name in self.others if name not in self.heard), None)
        return name and self.end(broken_off(name))

    def too_long(self):
        """End the job where it takes too long to start, or to run."""
        now, starting = time.monotonic(), float(self.told.get("starting_timeout") or 0)
        running = float(self.told.get("running_timeout") or 0)
        if self.state["go"] is None and starting and now - self.state["began"] > starting:
            late = [(name, told) for name, told in self.everybody() if not told.get("up")]
            name, told = late[0] if late else (self.node, {})
            doing = told.get("doing") or ("it was not heard of" if not told else "")
            reason = "node {} was not ready within {:.0f} s (starting_timeout)".format(name, starting)
            return self.end(ending("FAILED", "{}: {}".format(reason, doing) if doing else reason))
        if self.state["go"] is not None and running and now - self.state["go"] > running:
            return self.end(ending("FAILED", "it ran for longer than {:.0f} s (running_timeout)".format(running)))
        return None

    def success(self):
        """End the job where all that counts has ended well."""
        if self.state["phase"] != GO:
            return None
        if self.told["ends"] == "chief":
            over = self.chief_container() in self.state["ended"]
        else:
            over = all(told.get("over") for _, told in self.everybody())
        return self.end(ending("SUCCEEDED", "", 0)) if over else None

    def begin(self):
        """Let the job go when all nodes are ready."""
        if self.state["phase"] == UP and all(told.get("up") for _, told in self.everybody()):
            self.go()

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

    def step(self):
        """Go on with ending: SIGTERM, the grace time, SIGKILL, then all that is to be written down and taken away."""
        if self.state["phase"] != END or (self.worker is not None and self.worker.is_alive()) or self.news:
            return
        now = time.monotonic()
        if self.ending_since is None:
            self.ending_since = now
            for container in self.containers:
                if self.runs(container):
                    container.terminate()
        if self.still_runs(now):
            return
        self.quiet_since = self.quiet_since or now
        patience = GONE_SECONDS if self.terminated else KILL_SECONDS
        if all(item.drained for item in self.containers) or now - self.quiet_since > patience:
            self.finish()

    def still_runs(self, now):
        """Return whether anything runs that can still be ended, and do what its time asks for."""
        running = [item for item in self.containers if self.runs(item)]
        for container in running:
            container.insist()
        grace = self.state["end"].get("grace")
        grace = float(self.told.get("grace_seconds") or 0) if grace is None else float(grace)
        if not running or now - self.ending_since < grace:
            return bool(running)
        if self.killed_since is None:
            self.killed_since = now
            for container in running:
                container.kill()
        for container in running:
            if container.is_gone() and now - self.killed_since > GONE_SECONDS:
                container.give_up()
        return now - self.killed_since <= KILL_SECONDS

    def runs(self, container):
        """Return whether a container was started and its end is not known here."""
        return container.watched and container.name not in self.state["ended"]

    def finish(self):
        """Write down how it ended here and leave nothing; the chief waits for the others before."""
        patience = float(self.told.get("grace_seconds") or 0) + self.lost + 20
        waiting = [name for name, told in self.others.items() if not told.get("done")] if self.chief else []
        silent = [name for name in waiting if time.monotonic() - self.heard.get(name, self.born) > self.lost]
        if not self.state.get("done"):
            self.clear()
        if self.chief and set(waiting) - set(silent) and time.monotonic() - self.ending_since < patience:
            return
        if not self.chief and self.line is not None and not self.acknowledged:
            heard = self.heard_chief or self.born
            if time.monotonic() - heard < self.lost and time.monotonic() - self.ending_since < patience:
                return
        self.close()

    def clear(self):
        """Conclude all instances, and take away the containers and the leases."""
        for container in self.containers:
            self.conclude(container)
        clean = self.told.get("clean") or "None"
        alive = [item.name for item in self.containers if self.runs(item)]
        for container in self.containers:
            ended = self.state["ended"].get(container.name)
            if container.id and (clean == "All" or (clean == "Running" and (not ended or ended["stopped"]))):
                container.take_away()
        if alive:
            self.event("{} could not be ended".format(", ".join(alive)), "Warning")
        elif not any(self.may_run(item) for item in self.containers):
            self.release()
        self.state["done"] = True
        self.save()
        self.tell()

    def may_run(self, container):
        """Return whether docker's engine does not say that a container is at rest; its GPUs are in use then."""
        if not container.id or container.name in self.state["ended"]:
            return False
        try:
            return node.is_running(container.id)
        except (OSError, KeyError, TypeError):
            return True

    def release(self):
        """Give back the leases; what stays is given back by the next command that looks, as the attempt is over."""
        try:
            node.release_all(self.told["id"], self.told["attempt"])
        except (node.Refused, OSError) as problem:
            self.event("its leases could not be given back yet: {}".format(problem), "Warning")

    def close(self):
        """Write the result, and take away what was secret."""
        end = self.state["end"]
        names = ("status", "reason", "exit_code", "first_failure", "first_rank")
        result = dict({name: end.get(name) for name in names}, ended=time.time(), chief=self.chief)
        result["first_failure"] = result["first_failure"] or ""
        self.write("result.json", result)
        if self.unwritten:
            return
        words = {"SUCCEEDED": "the job succeeded", "STOPPED": "the job was stopped"}.get(
            end["status"], "the job failed"
        )
        if self.chief:
            text = "{}: {}".format(words, end["reason"]) if end["reason"] else words
            self.event(text, "Warning" if end["status"] == "FAILED" else "Normal")
            self.tell()
        self.forget_secrets(end["status"])
        node.remove(os.path.join(node.UNIT_FILES, node.unit_name(self.name, self.told["attempt"])))
        node.take_away_secrets(self.folder)
        self.done = True

    def forget_secrets(self, status):
        """Take the job's secrets away where they are kept, unless it may be tried again."""
        folder = node.job_folder(self.name)
        waits = node.read_json(os.path.join(folder, "queue.json"))
        tries = int(waits.get("retry") or 0) - int(waits.get("failures") or 0)
        if status != "FAILED" or (tries <= 0 and not self.state["end"].get("broken_off")):
            node.remove(os.path.join(folder, "secrets.json"))

    # Records

    def note(self, instance, container, **changes):
        """Write down what is known of an instance."""
        item = instance + ".json"
        known = self.unwritten.get(item) or node.read_json(os.path.join(self.folder, item))
        record = dict(node.new_record(instance), **known)
        if record["status"] in node.OVER:
            return
        record.update(changes, log=os.path.basename(container.log)[: -len(".log")])
        self.write(item, record)

    def conclude(self, container):
        """Write down how a container's instances have ended."""
        ended = self.state["ended"].get(container.name)
        end = self.state["end"] or {}
        for place, instance in enumerate(container.config["instances"]):
            changes = self.of_instance(instance, container, ended, end, apart=place > 0)
            if changes["status"] == "Error":
                named = instance == end.get("first_failure") and end.get("lines")
                changes["last_lines"] = named or output.last_lines(container.log)
            self.note(instance, container, **changes)

    def of_instance(self, instance, container, ended, end, *, apart):
        """Return how an instance has ended. Those `apart` only live in a container that another one is told by."""
        when = ended["time"] if ended else time.time()
        if instance == end.get("first_failure") and (apart or not ended or ended["stopped"]):
            code = end.get("rank_code", end.get("exit_code"))
            return {
                "status": "Error",
                "exit_code": code,
                "signal": end.get("signal"),
                "reason": end.get("why", ""),
                "ended": when,
            }
        if self.runs(container):
            return {"status": "Lost", "reason": "it could not be ended", "ended": when}
        if ended is None:
            failed = " {} failed".format(container.name) in self.trouble
            return {
                "status": "Error" if failed else "Stopped",
                "reason": self.trouble if failed else end.get("reason", ""),
            }
        if ended["stopped"] or (apart and ended["code"] != 0):
            word = "Completed" if end.get("status") == "SUCCEEDED" else "Stopped"
            return {"status": word, "reason": end.get("reason", ""), "ended": when}
        word = "Completed" if ended["code"] == 0 and not ended["reason"] else "Error"
        return {
            "status": word,
            "exit_code": ended["code"],
            "signal": ended["signal"],
            "reason": ended["reason"],
            "ended": when,
        }


def ending(status, reason, code=None, *, grace=None):
    """Return how a job ends; a failure has an exit code, if only 1."""
    code = 1 if status == "FAILED" and not code else code
    return {
        "status": status,
        "reason": reason,
        "exit_code": code,
        "first_failure": "",
        "first_rank": None,
        "grace": grace,
    }


def broken_off(name):
    """Return how a job ends of which a node's keeper never came: it may be started anew, with its secrets."""
    return dict(
        ending("FAILED", "node {} does not answer: it was not heard of since the start".format(name)), broken_off=True
    )


def write_pid(handle):
    """Write our number into the lock's file, over the one before: that needs no room on a disk that is full."""
    number = str(os.getpid()).encode()
    try:
        os.pwrite(handle, number, 0)
        os.ftruncate(handle, len(number))
    except OSError:
        pass


def main(folder):
    """Keep the attempt whose folder this is; with nothing to keep, end."""
    lock = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not node.locked_within(lock, 10):
        return 0
    write_pid(lock)
    told = node.read_json(os.path.join(folder, "keeper.json"))
    if not told:
        node.take_away_secrets(folder)
    if not told or told.get("boot_id") != node.boot_id():
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
    signal.signal(node.STOP_SIGNAL, stop)
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    keeper.run()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # threads that wait for docker must not keep us
