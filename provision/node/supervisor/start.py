"""How a keeper makes and starts its containers, beside its main loop."""

import threading
import time

from provision.node.supervisor.records import GO
from provision.node.supervisor.runtime import Trouble

READY_SECONDS = 0.1


class Start:
    """The part of a keeper that works in a thread of its own; what it did comes to the main loop by `post`."""

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
                self.check("starting", container, lambda item: item.start())
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
                self.check("starting", container, lambda item: item.start())
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
            container.find(self.created(container))
        self.post("found")

    def find_started(self):
        """Find those that run although they could not be started in our eyes, so that they are ended too."""
        for container in self.containers:
            container.id = container.id or self.created(container)
            if container.id and not container.watched:
                container.was_started()
