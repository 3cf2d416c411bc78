"""Measures the bandwidth between the nodes' containers in rounds, and cleans up afterwards."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from provision.batch.durations import elapsed
from provision.errors import ProvisionError
from provision.model import Bandwidth, Node, PairBandwidth
from provision.model.cluster import NO_JOBS

if TYPE_CHECKING:
    from provision.checks.bandwidth_plan import Party, Trial
    from provision.checks.rounds import Round
    from provision.connectors import Connector, RemoteProcess
    from provision.facts import NodeFacts
    from provision.facts.rails import NodeRails

Say = Callable[[str], None]

_PROBE_SECONDS = 120
_SKIP_AFTER = 3
"""The number of partners after which a node is skipped if all its measurements failed."""
_PORT_TRIES = 4
_PORT_SPREAD = 1000
"""Range of random first ports, so that two servers that start at once rarely collide."""
_AT_ONCE = 64
_TEXT_LIMIT = 262_144
"""Maximum output of one end of a measurement in bytes."""
_WATCH_SLACK_SECONDS = 40
"""The guard on the node acts first; this timeout is for a node that does not answer."""


def measure(nodes: Sequence[Node], facts: Mapping[str, NodeFacts], say: Say) -> Bandwidth:
    """Measure between all pairs of idle nodes, or a sample if there are many; `facts` are of the reachable nodes.

    `say` is called with the number of rounds and their duration, and then with each round.
    """
    from provision.checks import bandwidth_plan, rounds

    parties, left_out, broken = _parties(nodes, facts)
    names = list(parties)
    planned = rounds.plan(names)
    if not planned:
        say("bandwidth: nothing to measure")
        return Bandwidth((), tuple(names), left_out, broken)
    seconds = bandwidth_plan.expected_seconds(planned, parties)
    sampled = len(names) > rounds.SAMPLE_ABOVE
    scope = f"a sample of the pairs, each node {len(planned)} times" if sampled else "all pairs"
    say(f"bandwidth: {len(names)} nodes, {scope}: {len(planned)} rounds, about {elapsed(seconds)}")
    with _links([node for node in nodes if node.name in parties]) as links:
        table = _Table(parties, links, say)
        table.play(planned)
        more = rounds.follow_up(names, table.measured(), table.bad())
        if more:
            say(f"bandwidth: {len(more)} more rounds, to separate slow nodes from slow paths")
            table.play(more)
    in_host = any(pair.memory == "host" for pair in table.pairs)
    reasons = dict.fromkeys(why for party in parties.values() if in_host and (why := party.memory.why_host))
    unsupported = tuple(name for name, party in parties.items() if party.memory.tool_lacks) if in_host else ()
    return Bandwidth(tuple(table.pairs), tuple(names), left_out, broken, tuple(reasons), unsupported, sampled)


def _parties(
    nodes: Sequence[Node], facts: Mapping[str, NodeFacts]
) -> tuple[dict[str, Party], dict[str, str], dict[str, str]]:
    """Return the participants, and the excluded and broken nodes with the reasons."""
    from provision.checks.bandwidth_plan import Party, busy, memory, not_ready
    from provision.connectors import each
    from provision.facts import Unknown
    from provision.facts.perftest import parse_readiness, readiness_script
    from provision.facts.rails import node_rails
    from provision.report.reasons import message

    idle_hosts = {node.name: message(NO_JOBS) for node in nodes if not node.takes_jobs}
    nodes = [node for node in nodes if node.takes_jobs]
    rails = {n.name: node_rails(n.name, n.variables, facts[n.name]) for n in nodes if n.name in facts}
    left_out = idle_hosts | {node.name: "unreachable" for node in nodes if node.name not in facts}
    broken = _broken(rails)
    for name, rail in rails.items():
        reason = (not rail.endpoints and name not in broken and rail.absent) or busy(facts[name])
        if reason and name not in broken:
            left_out[name] = reason
    candidates = [n for n in nodes if n.name in rails and rails[n.name].endpoints and not busy(facts[n.name])]
    containers = {node.name: str(node.variables.get("training_container_name")) for node in candidates}
    answers = each(candidates, lambda c: c.run(readiness_script(containers[c.name]), timeout=_PROBE_SECONDS))
    parties: dict[str, Party] = {}
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            left_out[name] = f"no longer reachable: {answer.message}"
            continue
        ready = parse_readiness(answer.stdout, answer.stderr)
        if isinstance(ready, Unknown) or not_ready(ready):
            left_out[name] = not_ready(ready)
        else:
            parties[name] = Party(
                name, containers[name], rails[name].endpoints, memory(facts[name], ready, rails[name])
            )
    return parties, left_out, broken


def _broken(rails: Mapping[str, NodeRails]) -> dict[str, str]:
    """Return nodes with broken data ports; missing ports only count if other nodes have them."""
    usual = any(rail.endpoints for rail in rails.values())
    broken = {name: "; ".join(rail.problems) for name, rail in rails.items() if rail.problems}
    lost = {n: f.absent for n, f in rails.items() if usual and f.absent and f.devices}
    return broken | lost


@contextlib.contextmanager
def _links(nodes: Sequence[Node]) -> Iterator[dict[str, Connector | Exception]]:
    """Connect to all nodes; closing the connections ends everything that runs over them."""
    from provision.connectors import connect
    from provision.threads import outcomes

    links = dict(zip([node.name for node in nodes], outcomes(connect, nodes, limit=_AT_ONCE), strict=True))
    try:
        yield links
    finally:
        for link in links.values():
            if not isinstance(link, Exception):
                link.close()


class _Table:
    """Runs rounds and collects the results."""

    def __init__(self, parties: Mapping[str, Party], links: Mapping[str, Connector | Exception], say: Say) -> None:
        self._parties, self._links, self._say = parties, links, say
        self.pairs: list[PairBandwidth] = []

    def measured(self) -> list[tuple[str, str]]:
        """Return the measured pairs of nodes."""
        return [(pair.a.node, pair.b.node) for pair in self.pairs]

    def bad(self) -> set[tuple[str, str]]:
        """Return the pairs of nodes with a failed or slow measurement."""
        from provision.checks.bandwidth import is_good

        return {(pair.a.node, pair.b.node) for pair in self.pairs if not is_good(pair)}

    def play(self, rounds: Sequence[Round]) -> None:
        """Measure the pairs of each round concurrently."""
        from provision.threads import outcomes

        for number, round_ in enumerate(rounds, 1):
            skipped = self._skipped_nodes()
            todo = [pair for pair in round_ if not skipped & set(pair)]
            if todo:
                self._say(f"bandwidth: round {number} of {len(rounds)}: {_named(todo)}")
            for outcome in outcomes(self._pair, todo, limit=_AT_ONCE):
                if isinstance(outcome, Exception):
                    raise outcome
                self.pairs += outcome

    def _skipped_nodes(self) -> set[str]:
        partners: dict[str, set[str]] = {}
        works: set[str] = set()
        for pair in self.pairs:
            if pair.gbit_s is not None:
                works |= {pair.a.node, pair.b.node}
            partners.setdefault(pair.a.node, set()).add(pair.b.node)
            partners.setdefault(pair.b.node, set()).add(pair.a.node)
        return {name for name, met in partners.items() if name not in works and len(met) >= _SKIP_AFTER}

    def _pair(self, names: tuple[str, str]) -> list[PairBandwidth]:
        from provision.checks.bandwidth_plan import trials

        sender, receiver = (self._parties[name] for name in names)
        return [self._trial(trial, sender, receiver) for trial in trials(sender, receiver)]

    def _trial(self, trial: Trial, sender: Party, receiver: Party) -> PairBandwidth:
        for party in (sender, receiver):
            link = self._links[party.node]
            if isinstance(link, Exception):
                return trial.outcome(None, f"{party.node} is no longer reachable: {link}")
        try:
            return _measure_trial(trial, sender, receiver, self._links)
        except ProvisionError as error:
            return trial.outcome(None, f"{error.node or trial.receiver.node}: {error.message}")


def _measure_trial(
    trial: Trial, sender: Party, receiver: Party, links: Mapping[str, Connector | Exception]
) -> PairBandwidth:
    """Start the receiving end, then the sending one, and wait for both."""
    from provision.commands.perftest import FIRST_PORT, PORTS, TAKEN, guarded_script
    from provision.facts.perftest import explain

    reason = ""
    for _ in range(_PORT_TRIES):
        first = FIRST_PORT + secrets.randbelow(_PORT_SPREAD)
        script = guarded_script(receiver.container, trial.receive, limit_seconds=trial.limit_seconds, port=first)
        with _End(links[receiver.node], script, trial.limit_seconds) as server:
            port = server.ready()
            if port is not None:
                return _measure_sender(trial, sender, server, port, links)
        if TAKEN in server.text:
            reason = f"no port from {first} to {first + PORTS - 1} is free"
        else:
            reason = explain(server.text, server.code, trial.limit_seconds)
        if "Couldn't listen to port" not in server.text:  # else another process took the port after the check
            break
    return trial.outcome(None, f"the receiving end in {receiver.node} did not start: {reason}")


def _measure_sender(
    trial: Trial, sender: Party, server: _End, port: int, links: Mapping[str, Connector | Exception]
) -> PairBandwidth:
    """Run the sending end against `server`, which listens."""
    from provision.commands.perftest import guarded_script
    from provision.facts.perftest import bandwidth, explain

    limit = trial.limit_seconds
    script = guarded_script(sender.container, trial.send, limit_seconds=limit, server=trial.receiver.address, port=port)
    with _End(links[sender.node], script, limit) as client:
        client.rest()
    server.hang_up()
    rate = bandwidth(client.text)
    return trial.outcome(rate, "" if rate is not None else explain(f"{client.text}\n{server.text}", client.code, limit))


class _End:
    """A running end of a measurement; leaving the context ends it."""

    def __init__(self, link: Connector | Exception, script: str, limit: int) -> None:
        if isinstance(link, Exception):
            raise link
        self.text = ""
        self.code: int | None = None
        self._process: RemoteProcess = link.start(script, limit=_TEXT_LIMIT)
        self._output = self._process.output()
        self._watch = threading.Timer(limit + _WATCH_SLACK_SECONDS, self._process.close)
        self._watch.daemon = True
        self._watch.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self._process.close()

    def ready(self) -> int | None:
        """Wait until the receiving end listens and return its port; None if it exited before."""
        from provision.commands.perftest import READY

        for _, chunk in self._output:
            self._take(chunk)
            match = re.search(rf"^{READY} ([0-9]{{1,5}})$", self.text, re.MULTILINE)
            if match and self.text[match.end() :].startswith("\n"):
                return int(match[1])
        return None

    def rest(self) -> None:
        """Wait for the end of the output."""
        for _, chunk in self._output:
            self._take(chunk)

    def hang_up(self) -> None:
        """Close the input and wait for the exit."""
        self._process.close_stdin()
        self.rest()

    def _take(self, chunk: bytes) -> None:
        from provision.commands.perftest import END

        self.text += chunk.decode(errors="replace")
        match = re.search(rf"^{END} ([0-9]{{1,3}})$", self.text, re.MULTILINE)
        self.code = int(match[1]) if match else None


def _named(pairs: Sequence[tuple[str, str]]) -> str:
    shown = 4
    more = f" and {len(pairs) - shown} more pairs" if len(pairs) > shown else ""
    return ", ".join(f"{a} -> {b}" for a, b in pairs[:shown]) + more
