"""What an instance runs in: what containers and units have in common."""

import os
import time

INSIST_SECONDS = 1


class Trouble(Exception):
    """An instance cannot be made or started; the text says why."""


class Runtime:
    """One of a job's containers or units, and what is known of it; `post(kind, self, value)` tells what happens to it.

    Those that derive from it have: `make`, `start`, `find`, `was_started`, `terminate`, `terminate_all`, `kill`,
    `is_gone`, `give_up`, `may_run`, `take_away`.
    """

    def __init__(self, config, told, folder, post):
        self.config, self.told, self.folder, self.post = config, told, folder, post
        self.name = config["name"]
        self.log = os.path.join(folder, str(config.get("log_instance") or config["instances"][0]) + ".log")
        self.id = ""
        self.started = 0.0
        self.ended = None
        self.drained = True
        self.watched = False
        self.asked, self.asked_at = None, 0.0

    def instance(self):
        """Return the instance whose output it writes."""
        return self.config.get("log_instance") or self.config["instances"][0]

    def ready(self):
        """Return whether somebody listens on its port; True where it has none."""
        import socket

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

    def insist(self):
        """Ask all of it to end where what was asked is gone, and it goes on."""
        if self.asked is None or time.monotonic() - self.asked_at < INSIST_SECONDS:
            return
        if not any(os.path.exists("/proc/{}".format(pid)) for pid in self.asked):
            self.asked = None
            self.terminate_all()

    def end(self, ending, when):
        """Tell that it has ended."""
        self.ended = dict(ending, time=when)
        self.post("ended", self, None)

    def has_drained(self):
        """Tell that its output is all there."""
        self.drained = True
        self.post("drained", self, None)
