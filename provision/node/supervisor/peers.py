"""What the job supervisors of an attempt send to each other: each node reports to the leader, which sends orders."""

import json
import time
from typing import List

from provision.node import endings
from provision.node.supervisor import network
from provision.node.supervisor.attempt import END, GO, UP
from provision.node.supervisor.channel import LeaderChannel, MemberChannel
from provision.node.supervisor.messages import Message
from provision.node.supervisor.runtime import Document
from provision.node.supervisor.start import Start

LISTEN_SECONDS = 5
JOIN_SECONDS = 90
"""All supervisors of an attempt are started at once; after this time a missing one will not start any more."""


class Peers(Start):
    """The part of a job supervisor that exchanges messages with the other nodes of the attempt."""

    # Connection

    def connect(self) -> None:
        """Open the channel to the other supervisors; an attempt on one node has none."""
        if not self.peers:
            return
        secret = bytes.fromhex(self.request["secret"])
        address, port = str(self.request["chief_address"]), int(self.request["control_port"])
        if self.is_leader:
            self._listen(address, port, secret)
            return
        self.channel = MemberChannel(
            address,
            port,
            secret,
            self.node,
            lambda message: self.post("leader", None, message),
            lambda: self.post("connected"),
        )

    def _listen(self, address: str, port: int, secret: bytes) -> None:
        deadline = time.monotonic() + LISTEN_SECONDS
        while self.channel is None:
            try:
                self.channel = LeaderChannel(
                    address, port, secret, self.peers, lambda node, message: self.post("node", node, message)
                )
            except OSError as problem:
                if time.monotonic() > deadline:
                    self.trouble = "{}:{} is not available for the supervisor: {}".format(
                        address, port, problem.strerror
                    )
                    return
                time.sleep(0.1)

    def is_connected(self) -> bool:
        """Return whether this node is connected to the leader."""
        return isinstance(self.channel, MemberChannel) and self.channel.link is not None

    # Messages to other nodes

    def report(self) -> Message:
        """Return the state of this node for the leader."""
        is_complete = len(self.state["ended"]) == len(self.runtimes)
        return {
            "up": self.state["phase"] in (UP, GO),
            "doing": self.activity,
            "ended": self.state["ended"],
            "over": is_complete and all(item.get("code") == 0 for item in self.state["ended"].values()),
            "trouble": self.trouble,
            "stop": self.stop_request,
            "done": self.state.get("done", False),
            "asked": self.query_seen,
        }

    def order(self) -> Message:
        """Return the leader's order to the other nodes."""
        done = [name for name, report in self.peers.items() if report.get("done")]
        return {"go": self.state["go"] is not None, "end": self.state["end"], "done": done, "asks": self.query_sent}

    def send(self, *, only_changes: bool = False) -> None:
        """Send the report or the order; with `only_changes`, an unchanged one only once per beat."""
        if self.channel is None:
            return
        text = json.dumps(self.order() if self.is_leader else self.report())
        if only_changes and text == self.last_sent and time.monotonic() - self.sent_at < self.beat:
            return
        self.sent_at, self.last_sent = time.monotonic(), text
        self.channel.send(dict(json.loads(text), now=time.time()))

    # Messages from other nodes

    def on_connected(self, *_: object) -> None:
        """Report to the leader, which is connected now."""
        self.send()

    def on_leader(self, _: None, order: Message) -> None:
        """Follow an order of the leader."""
        self.leader_heard = time.monotonic()
        end = order.get("end")
        if isinstance(end, dict) and self.state["phase"] != END:
            self.end(dict(end))
        elif order.get("go") and self.state["phase"] == UP:
            self.go()
        self.is_acknowledged = self.node in (order.get("done") or ())
        self.query_seen = order.get("asks") or self.query_seen

    def on_node(self, name: str, report: Message) -> None:
        """Store the report of another node."""
        self.heard[name] = time.monotonic()
        now = report.get("now")
        if isinstance(now, (int, float)):
            self.clock_offsets[name] = min(time.time() - now, self.clock_offsets.get(name, float("inf")))
        self.peers[name] = report

    # Silence

    def is_leader_silent(self) -> bool:
        """Return whether the leader has been silent for too long."""
        now = time.monotonic()
        if self.leader_heard is None:
            limit = self.lost if self.state["phase"] == GO else self.join_timeout()
            return bool(now - max(self.state["began"], self.began) > limit)
        return now - self.leader_heard > self.lost

    def end_without_leader(self) -> Document:
        """Return how the job ends on this node because the leader is silent."""
        if self.leader_heard is None and self.state["phase"] != GO:
            return endings.broken_off(self.leader_name())
        isolated = self.isolation_error()
        if isolated:
            return endings.node_isolated(self.node, isolated)
        message = "node {} does not answer; it runs rank 0".format(self.leader_name())
        return endings.node_silent(self.leader_name(), message)

    def leader_name(self) -> str:
        """Return the leader's node."""
        return str(self.request.get("chief_node") or self.request["chief_address"])

    def isolation_error(self, *, silence: float = 0.0) -> str:
        """Return why the other nodes cannot reach this one, empty if that is not known.

        Args:
            silence: seconds in which all other nodes were silent: several of them hardly fail at the same time.
        """
        addresses = (one.get("address") for one in self.assignments() if one.get("node") == self.node)
        own = next(addresses, None)
        error = network.interface_error(own) if own else ""
        if not error and silence and len(self.peers) > 1:
            error = "it has heard nothing from any other node for {:.0f} s".format(silence)
        return error

    def assignments(self) -> List[Document]:
        """Return the assignments of all instances of the attempt."""
        return [one for one in self.record.get("seats") or () if isinstance(one, dict)]

    def join_timeout(self) -> float:
        """Return how long the supervisor of another node may be silent after the start."""
        return min(float(self.request.get("coming_seconds") or JOIN_SECONDS), self.starting_timeout())

    def starting_timeout(self) -> float:
        """Return the time limit of the start."""
        return float(self.request.get("starting_timeout") or 600)

    # Phases

    def go(self) -> None:
        """Start the second group of runtimes."""
        self.state.update(phase=GO, go=time.monotonic())
        self.save()
        self.run_in_thread(self.start_all)
        self.send()

    def end(self, end: Document) -> bool:
        """Begin to end the job on this node; later reasons are ignored. Returns True."""
        if self.state["end"] is None:
            end["begun"] = time.time()
            self.state.update(phase=END, end=end)
            self.save()
            self.abandoned.set()
            self.run_in_thread(self.watch_started)
            self.send()
        return True
