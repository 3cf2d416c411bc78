"""Images on nodes: pull, compare and inspect them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.commands.docker import NO_LOGIN, login_file
from provision.errors import NodeError, ProvisionError

if TYPE_CHECKING:
    from provision.facts.image_contents import ImageContents
    from provision.model import Cluster

_PULL_SECONDS = 3600.0
_SECONDS = 180.0
_STATE = "{{.Id}} {{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}-{{end}} {{.Size}}"
_MEGABYTE = 1_000_000
_LOGGED_IN = """\
umask 077
DOCKER_CONFIG=$(mktemp -d /run/provision-pull.XXXXXX) || exit
export DOCKER_CONFIG
trap 'rm -rf "$DOCKER_CONFIG"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$DOCKER_CONFIG/config.json"
"""
"""The credential arrives on standard input, and is in memory while docker pulls."""


@dataclass(frozen=True)
class ImageState:
    """An image on one node."""

    id: str = ""
    """Empty if the node does not have it."""
    digest: str = ""
    """``repository@sha256:...``; empty for an image of Docker's own store that is from no registry."""
    megabytes: int = 0


@dataclass(frozen=True)
class Inspected:
    """The software versions in an image and on its node."""

    image: ImageContents
    host: ImageContents


def pull(cluster: Cluster, names: Sequence[str], image: str) -> dict[str, ImageState | ProvisionError]:
    """Pull an image on nodes in parallel, and return the state of the image on each.

    A stored credential for the image's registry is sent along and removed from the nodes afterwards.
    """
    from provision.workflow.stored_secrets import registry_credential, server_of_image

    word, credential = shlex.quote(image), registry_credential(image)
    login = login_file(**credential).encode() if credential else b""
    script = f"{_LOGGED_IN if login else ''}docker pull --quiet -- {word} >/dev/null && {_inspection(word)}"
    states = _on(cluster, names, script, _PULL_SECONDS, login)
    for state in states.values():
        if isinstance(state, NodeError) and re.search(NO_LOGIN, state.output):
            state.remedy = (
                "Store a credential with access: provision secret add registry "
                f"--server {server_of_image(image)} --username NAME"
            )
    return states


def tag(cluster: Cluster, name: str, image: str, new: str) -> ImageState | ProvisionError:
    """Give an image on one node another name; return its state."""
    script = f"docker tag -- {shlex.quote(image)} {shlex.quote(new)} && {_inspection(shlex.quote(new))}"
    return _on(cluster, [name], script, _SECONDS)[name]


def image_states(cluster: Cluster, names: Sequence[str], image: str) -> dict[str, ImageState | ProvisionError]:
    """Return the state of an image on each node, according to its docker."""
    word = shlex.quote(image)
    script = f"docker version >/dev/null || exit; docker image inspect -- {word} >/dev/null 2>&1 || exit 0; "
    return _on(cluster, names, script + _inspection(word), _SECONDS)


def inspect(cluster: Cluster, name: str, image: str) -> Inspected:
    """Inspect an image on a node in a temporary container without network.

    Raises:
        ProvisionError: the node is unreachable, or the image cannot be started there.
    """
    from provision.connectors import each
    from provision.facts.image_contents import CARDS_SCRIPT, HOST_SCRIPT, IMAGE_SCRIPT, image_contents

    run = f"docker run --rm --network none --entrypoint sh -- {shlex.quote(image)} -c {shlex.quote(IMAGE_SCRIPT)}"
    script = f"{HOST_SCRIPT}{CARDS_SCRIPT}\necho '== image'\n{run}"
    answer = each([cluster.node(name)], lambda way: way.run(script, timeout=_SECONDS))[name]
    if isinstance(answer, ProvisionError):
        raise answer
    if not answer.ok:
        raise NodeError(
            f"{image} cannot be inspected",
            node=name,
            remedy=f"Pull the image first: provision image pull {image}",
            output=answer.last_lines(),
        )
    host, _, inside = answer.stdout.partition("== image\n")
    return Inspected(image_contents(inside), image_contents(host))


def _inspection(word: str) -> str:
    return f"docker image inspect --format {shlex.quote(_STATE)} -- {word}"


def _on(
    cluster: Cluster, names: Sequence[str], script: str, seconds: float, stdin: bytes = b""
) -> dict[str, ImageState | ProvisionError]:
    from provision.connectors import each

    nodes = [node for node in cluster.nodes if not names or node.name in names]
    results = each(nodes, lambda way: way.run(script, stdin=stdin, timeout=seconds))
    states: dict[str, ImageState | ProvisionError] = {}
    for name, one in results.items():
        if isinstance(one, ProvisionError):
            states[name] = one
        elif not one.ok:
            states[name] = NodeError(one.last_lines(1) or "docker failed", node=name, output=one.last_lines())
        else:
            states[name] = _state(one.stdout)
    return states


def _state(text: str) -> ImageState:
    words = text.split()
    if len(words) != 3:  # noqa: PLR2004 - id, digest, size
        return ImageState()
    size = int(words[2]) // _MEGABYTE if words[2].isdecimal() else 0
    return ImageState(words[0], "" if words[1] == "-" else words[1], size)
