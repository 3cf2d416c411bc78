"""``provision image pull --peers``: one node gets an image, and the nodes copy it among themselves."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.commands.docker import NO_LOGIN
from provision.errors import NodeError, ProvisionError, PythonMissing, UsageError
from provision.workflow import images
from provision.workflow.image_peers import PROGRAM, PeerCopy, Received, Report, TransferFailed

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.documents.image_copy import CopyState
    from provision.model import Cluster, Node
    from provision.workflow.images import ImageState

_STATE_SECONDS = 60.0
_LOAD_SECONDS = 3600.0
_MOST_SENDERS = 3
"""How many nodes try to get the image from the registry, one after the other."""
_MOST_TABLE_BYTES = 1 << 24
_PIECE = 1 << 20
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})\Z")


@dataclass(frozen=True)
class CopyRequest:
    """Where the image comes from, and how fast it may be copied."""

    image: str
    sender: str = ""
    """The node that has the image and sends it; no registry is contacted then."""
    archive: Path | None = None
    """The tar file of `docker save` on the controller; no registry is contacted then."""
    rate: int = 0
    """The limit of each node in bytes per second; 0 for none."""

    @property
    def has_registry(self) -> bool:
        """Whether nodes may pull the image from its registry."""
        return not self.sender and self.archive is None


@dataclass
class Outcome:
    """The image on one node after the copy."""

    state: ImageState | ProvisionError
    source: str = ""
    """``present``, ``registry``, ``archive`` or ``peers``; empty after a failure."""
    reason: str = ""
    """Why the node did not take part in the copy, if it did not."""
    received: int = 0
    """Bytes from other nodes."""


@dataclass
class Distribution:
    """The result of a copy."""

    sender: str = ""
    """Empty if no node sent the image, because none or all had it."""
    nodes: dict[str, Outcome] = field(default_factory=dict)


@dataclass(frozen=True)
class Names:
    """The names of an image: the one to pull, and the one that it gets on the nodes."""

    pulled: str
    tag: str
    digest: str = ""


def names_of(image: str) -> Names:
    """Return the names of an image; UsageError if it has only a digest, under which Docker cannot load images."""
    match = _DIGEST.search(image)
    name = image[: match.start()] if match else image
    has_tag = ":" in name.rpartition("/")[2]
    if not match:
        return Names(image if has_tag else f"{image}:latest", image if has_tag else f"{image}:latest")
    if not has_tag:
        raise UsageError(
            f"{image}: the image has no tag, and Docker cannot load an image by its digest alone",
            remedy="Add the tag that the nodes give the image, for example registry.example.com/training:1@sha256:...",
        )
    return Names(f"{name.rpartition(':')[0]}{match[0]}", name, match[1])


def distribute(
    cluster: Cluster, names: Sequence[str], request: CopyRequest, report: Report = lambda *_: None
) -> Distribution:
    """Bring an image to nodes with one copy from its source.

    Args:
        cluster: the cluster.
        names: the nodes; all if empty.
        request: the image and its source.
        report: receives the progress of nodes; other threads call it.

    Raises:
        UsageError: the image, the node or the file of `request` cannot be used.
    """
    return _Distribution(cluster, names, request, report).run()


class _Distribution:
    def __init__(self, cluster: Cluster, names: Sequence[str], request: CopyRequest, report: Report) -> None:
        self.cluster, self.request, self.report = cluster, request, report
        self.nodes = [node for node in cluster.nodes if not names or node.name in names]
        self.names = names_of(request.image)
        self.archive_id = self._archive_id(request.archive) if request.archive else ""
        self.result = Distribution(nodes={node.name: Outcome(images.ImageState()) for node in self.nodes})
        self.problems: dict[str, str] = {}
        """Node -> why it cannot take part."""

    def _archive_id(self, archive: Path) -> str:
        image, digest = archive_id(archive, self.names.tag), self.names.digest
        if digest not in {"", image}:
            raise UsageError(
                f"--archive {archive}: it has the image {image}, not {digest}",
                remedy="Correct the file or the digest. An archive is named by the ID of its image.",
            )
        return image

    def run(self) -> Distribution:
        for node in self.nodes:
            self.report(node.name, "preparing", 0, 0, 0)
        states = node_states(self.nodes, self.names.tag)
        self._set_errors(states)
        reached = {name: state for name, state in states.items() if not isinstance(state, ProvisionError)}
        addresses = self._addresses([node for node in self.nodes if node.name in reached])
        sender = self._sender(reached)
        self._copy(sender, reached, addresses)
        self._add_states()
        return self.result

    def _set_errors(self, states: Mapping[str, CopyState | ProvisionError]) -> None:
        for name, state in states.items():
            if isinstance(state, PythonMissing):
                self.problems[name] = state.message
            elif isinstance(state, ProvisionError):
                self.result.nodes[name].state = state
            elif state.docker:
                self.result.nodes[name].state = NodeError(
                    f"Docker does not answer ({state.docker})",
                    node=name,
                    remedy="Run `provision verify`, and read `journalctl -u docker` on the node.",
                )
            elif state.problem:
                self.problems[name] = state.problem

    def _addresses(self, nodes: Sequence[Node]) -> dict[str, str]:
        """Return the data addresses of the nodes; a node without one cannot take part."""
        addresses, problems = data_addresses(nodes)
        for name, problem in problems.items():
            self.problems.setdefault(name, problem)
        return addresses

    def _healthy(self, reached: Mapping[str, CopyState]) -> list[str]:
        return [name for name in reached if not isinstance(self.result.nodes[name].state, ProvisionError)]

    def _sender(self, reached: Mapping[str, CopyState]) -> str:
        """Return the node that has the image from now on; empty if none could get it, with the errors in the result."""
        able = [name for name in self._healthy(reached) if name not in self.problems]
        if self.request.sender:
            return self._given_sender(reached)
        able.sort(key=lambda name: not reached[name].id)
        for name in able[:_MOST_SENDERS]:
            archive = self.request.archive
            outcome = self._load(name, reached[name], archive) if archive else self._pull(name)
            self.result.nodes[name] = outcome
            if not isinstance(outcome.state, ProvisionError):
                return name
            if re.search(NO_LOGIN, outcome.state.output):
                self._refuse_login(name, outcome.state)
                break
        return ""

    def _refuse_login(self, sender: str, error: ProvisionError) -> None:
        """Give all other nodes the registry's answer, which would be the same for them; each attempt may count."""
        for name, outcome in self.result.nodes.items():
            if name != sender and not isinstance(outcome.state, ProvisionError):
                words = f"not pulled: {sender} got no access to the registry"
                outcome.state = NodeError(words, node=name, remedy=error.remedy)

    def _given_sender(self, reached: Mapping[str, CopyState]) -> str:
        name = self.request.sender
        outcome = self.result.nodes[name]
        if isinstance(outcome.state, ProvisionError):
            return ""
        if name in self.problems:
            outcome.state = NodeError(f"it cannot send the image: {self.problems[name]}", node=name, remedy=_INSTALL)
            return ""
        if not reached[name].id:
            outcome.state = NodeError(
                f"it does not have the image {self.names.tag}",
                node=name,
                remedy=f"Choose another one: provision image list {self.request.image} shows which nodes have it.",
            )
            return ""
        if self.names.digest not in {"", reached[name].id} and not self._has_digest(name, reached[name].id):
            outcome.state = NodeError(
                f"its image {self.names.tag} has not the digest {self.names.digest}",
                node=name,
                remedy="Choose another node for --from, or another digest.",
            )
            return ""
        outcome.source = "present"
        return name

    def _has_digest(self, name: str, image: str) -> bool:
        state = images.image_states(self.cluster, [name], self.names.pulled)[name]
        return not isinstance(state, ProvisionError) and state.id == image

    def _pull(self, name: str) -> Outcome:
        self.report(name, "pulling from the registry", 0, 0, 0)
        state = images.pull(self.cluster, [name], self.names.pulled)[name]
        if self.names.pulled != self.names.tag and not isinstance(state, ProvisionError):
            state = images.tag(self.cluster, name, self.names.pulled, self.names.tag)
        return Outcome(state, "" if isinstance(state, ProvisionError) else "registry")

    def _load(self, name: str, known: CopyState, archive: Path) -> Outcome:
        from provision.connectors import each

        if known.id == self.archive_id:
            return Outcome(images.ImageState(known.id), "present")
        result = each([self.cluster.node(name)], lambda way: self._load_archive(way, archive))[name]
        if isinstance(result, ProvisionError):
            return Outcome(result)
        return Outcome(images.tag(self.cluster, name, result, self.names.tag), "archive")

    def _load_archive(self, connector: Connector, archive: Path) -> str:
        """Load a tar file of the controller; return the name by which Docker knows the image."""
        import time

        size, sent = archive.stat().st_size, 0
        process = connector.start("exec docker load --quiet")
        process.deadline = time.monotonic() + _LOAD_SECONDS
        try:
            with archive.open("rb") as source:
                while piece := source.read(_PIECE):
                    process.write(piece)
                    sent += len(piece)
                    self.report(connector.name, "loading from the controller", sent, size, 0)
            process.close_stdin()
            parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
            for stream, chunk in process.output():
                parts[stream].append(chunk)
            code = process.wait()
        finally:
            process.close()
        said = {stream: b"".join(chunks).decode(errors="replace").strip() for stream, chunks in parts.items()}
        if code:
            raise NodeError(
                f"{archive} cannot be loaded", node=connector.name, output=said["stderr"], remedy="Check its disk."
            )
        match = re.search(r"Loaded image ID: (sha256:[0-9a-f]{64})", said["stdout"])
        return match[1] if match else self._loaded_name(said["stdout"])

    def _loaded_name(self, output: str) -> str:
        loaded = re.findall(r"Loaded image: (\S+)", output)
        return self.names.tag if self.names.tag in loaded or not loaded else str(loaded[0])

    def _copy(self, sender: str, reached: Mapping[str, CopyState], addresses: Mapping[str, str]) -> None:
        healthy = [name for name in self._healthy(reached) if name != sender]
        fine = {name for name, one in self.result.nodes.items() if not isinstance(one.state, ProvisionError)}
        healthy += [name for name in self.problems if name not in reached and name in fine]
        known = node_states([self.cluster.node(sender)], self.names.tag)[sender] if sender else None
        receivers, others = [], []
        for name in healthy:
            state = reached.get(name)
            if state is not None and known is not None and _is_same(state, known):
                self.result.nodes[name].source = "present"
            elif sender and name not in self.problems:
                receivers.append(name)
            else:
                others.append(name)
        thread = threading.Thread(target=self._pull_plainly, args=(others,), daemon=True)
        thread.start()
        if receivers:
            self.result.sender = sender
            self._pull_plainly(self._receive(sender, receivers, addresses))
        while thread.is_alive():
            thread.join(0.5)

    def _receive(self, sender: str, receivers: Sequence[str], addresses: Mapping[str, str]) -> list[str]:
        """Copy the image between the nodes; return the nodes that have to pull it."""
        part = {name: addresses[name] for name in (sender, *receivers)}
        copy = PeerCopy(self.names.tag, self.names.tag, part, self.request.rate, self.report)
        results: Mapping[str, Received | ProvisionError]
        try:
            results = copy.run(self.cluster.node(sender), [self.cluster.node(name) for name in receivers])
        except ProvisionError as error:
            self.problems |= dict.fromkeys(receivers, f"{sender} cannot send it: {error.message}")
            return list(receivers)
        failed = []
        for name, result in results.items():
            if isinstance(result, Received):
                self.result.nodes[name] = Outcome(images.ImageState(result.id), "peers", received=result.bytes)
            elif isinstance(result, TransferFailed) and result.may_pull and self.request.has_registry:
                self.problems[name] = result.message
                failed.append(name)
            else:
                self.result.nodes[name].state = result
        return failed

    def _pull_plainly(self, names: Sequence[str]) -> None:
        """Pull the image from the registry on nodes that cannot take part, with the reason in the result."""
        if not names:
            return
        if not self.request.has_registry:
            for name in names:
                why = self.problems.get(name, "no other node could send the image")
                self.result.nodes[name] = Outcome(NodeError(why, node=name, remedy=_INSTALL))
            return
        for name in names:
            self.report(name, "pulling from the registry", 0, 0, 0)
        for name, state in images.pull(self.cluster, names, self.names.pulled).items():
            if self.names.pulled != self.names.tag and not isinstance(state, ProvisionError):
                state = images.tag(self.cluster, name, self.names.pulled, self.names.tag)  # noqa: PLW2901
            source = "" if isinstance(state, ProvisionError) else "registry"
            self.result.nodes[name] = Outcome(state, source, self.problems.get(name, ""))
            self.report(name, "done", 0, 0, 0)

    def _add_states(self) -> None:
        """Replace the states by those that Docker reports now."""
        fine = [name for name, one in self.result.nodes.items() if not isinstance(one.state, ProvisionError)]
        if not fine:
            return
        for name, state in images.image_states(self.cluster, fine, self.names.tag).items():
            self.result.nodes[name] = replace(self.result.nodes[name], state=state)


_INSTALL = "Install python3-libtorrent on the node (Enterprise Linux: rb_libtorrent-python3 of EPEL)."


def _is_same(state: CopyState, other: CopyState | ProvisionError) -> bool:
    """Return whether two nodes have the same image; its ID depends on Docker's image store."""
    if isinstance(other, ProvisionError):
        return False
    if state.containerd == other.containerd:
        return bool(state.id) and state.id == other.id
    return bool(state.content) and state.content == other.content


def node_states(nodes: Sequence[Node], image: str) -> dict[str, CopyState | ProvisionError]:
    """Return whether each node can take part, and what it has of the image."""
    from provision.connectors import each
    from provision.connectors.programs import run_program
    from provision.documents import decode_last_line
    from provision.documents.image_copy import LINE_LIMIT, CopyState

    request = json.dumps({"do": "inspect", "image": image}).encode() + b"\n"

    def one(connector: Connector) -> CopyState:
        result = run_program(connector, PROGRAM, stdin=request, timeout=_STATE_SECONDS, limit=4 * LINE_LIMIT)
        try:
            return decode_last_line(result.stdout, CopyState, node=connector.name, what="answer of image-peers")
        except ProvisionError as error:
            error.output = result.last_lines()
            raise

    return each(nodes, one)


def data_addresses(nodes: Sequence[Node]) -> tuple[dict[str, str], dict[str, str]]:
    """Return node -> its address on the data network, and node -> why it has none."""
    from provision.facts import ALL_FACTS, data_address, refused_addresses
    from provision.workflow.survey import probe

    needed = {"addresses", "routes"}
    stated = [node for node in nodes if data_address(node.variables, None)]
    unknown = [node for node in nodes if node not in stated]
    facts = probe(unknown, names=[], without={fact.name for fact in ALL_FACTS} - needed) if unknown else {}
    problems = {name: one.message for name, one in facts.items() if isinstance(one, ProvisionError)}
    known = {name: one for name, one in facts.items() if not isinstance(one, ProvisionError)}
    problems |= refused_addresses(nodes, known)
    addresses: dict[str, str] = {}
    for node in nodes:
        address = data_address(node.variables, known.get(node.name))
        if node.name not in problems and address:
            addresses[node.name] = address
        elif node.name not in problems:
            problems[node.name] = "its address on the data network is unknown; set cluster_data_address"
    return addresses, problems


def archive_id(archive: Path, tag: str) -> str:
    """Return the ID of the image in a tar file of `docker save`.

    Raises:
        UsageError: the file cannot be read, or has several images of which none has the name `tag`.
    """
    try:
        with tarfile.open(archive) as stream:
            member = stream.extractfile("manifest.json")
            entries: list[dict[str, Any]] = json.loads(member.read(_MOST_TABLE_BYTES)) if member else []
            chosen = entries if len(entries) == 1 else [one for one in entries if tag in (one["RepoTags"] or ())]
            (entry,) = chosen
            name = str(entry["Config"]).rpartition("/")[2].partition(".")[0]
    except (OSError, KeyError, TypeError, ValueError, tarfile.TarError) as error:
        raise UsageError(
            f"--archive {archive}: not a tar file of docker save with the image {tag} ({error})",
            remedy=f"Write it on a machine that has the image: docker save -o {shlex.quote(str(archive))} {tag}",
        ) from error
    if not re.fullmatch(r"[0-9a-f]{64}", name):
        raise UsageError(f"--archive {archive}: its manifest.json names no configuration of an image")
    return f"sha256:{name}"
