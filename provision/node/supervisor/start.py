"""Creation and start of the instances of an attempt, in a thread beside the main loop."""

import functools
import threading
import time
from typing import Callable

from provision.node.supervisor.attempt import GO, Attempt
from provision.node.supervisor.runtime import Runtime, Trouble

READY_SECONDS = 0.1


class Start(Attempt):
    """The part of a job supervisor that works in threads; it reports to the main loop by `post`."""

    def run_in_thread(self, work: Callable[[], None]) -> None:
        """Do work that takes long beside the main loop, after the previous work."""
        before = self.worker

        def run() -> None:
            if before is not None:
                before.join()
            try:
                work()
            except Trouble as trouble:
                self.post("failed", None, str(trouble))
            except Exception as problem:  # noqa: BLE001 - reported as the job's end, else it would be lost
                self.post("failed", None, "the job supervisor failed: {!r}".format(problem))

        self.worker = threading.Thread(target=run, daemon=True)
        self.worker.start()

    def bring_up(self) -> None:
        """Create all runtimes, start those of the first group, and wait until their ports answer."""
        for runtime in self.runtimes:
            create = functools.partial(runtime.create, self.created_id(runtime), self.abandoned)
            self.do_unless_ended("creating", runtime, create)
            self.post("created", runtime, runtime.id)
        for runtime in self.runtimes:
            if runtime.start_group == 1:
                self.do_unless_ended("starting", runtime, runtime.start)
        for runtime in self.runtimes:
            while runtime.is_watched and not runtime.is_ready():
                self.activity = "waiting for port {} of {}".format(runtime.config["ready_port"], runtime.name)
                if self.abandoned.is_set() or runtime.ended:
                    return
                time.sleep(READY_SECONDS)
        self.activity = ""
        self.post("up")
        if self.state["phase"] == GO:
            self.start_all()

    def start_all(self) -> None:
        """Start the runtimes of the second group."""
        for runtime in self.runtimes:
            if runtime.start_group == 2:
                self.do_unless_ended("starting", runtime, runtime.start)
        self.activity = ""

    def created_id(self, runtime: Runtime) -> str:
        """Return the ID of a runtime that a previous supervisor has created, empty without one."""
        return str(self.state["created"].get(runtime.name, ""))

    def do_unless_ended(self, activity: str, runtime: Runtime, work: Callable[[], None]) -> None:
        """Do something with a runtime unless the job ends; name the runtime in errors."""
        if self.abandoned.is_set():
            raise Trouble("it was ended before its start")
        self.activity = "{} {}".format(activity, runtime.name)
        try:
            work()
        except Trouble as trouble:
            raise Trouble("{} {} failed: {}".format(activity, runtime.name, trouble)) from None

    def recover_all(self) -> None:
        """Watch the runtimes of a job that was being ended when the previous supervisor was killed."""
        for runtime in self.runtimes:
            runtime.recover(self.created_id(runtime))
        self.post("recovered")

    def watch_started(self) -> None:
        """Watch runtimes that were started although their start has failed, so that they are ended too."""
        for runtime in self.runtimes:
            runtime.id = runtime.id or self.created_id(runtime)
            if runtime.id and not runtime.is_watched:
                runtime.watch_if_started()
