"""The role training_image: the image by digest, from a registry or an archive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.components.base import Component, NodeState, RoleNeed, Setting, Variables
from provision.components.common import IMAGE_REMEDY, items, text
from provision.facts import NodeFacts, plain
from provision.facts.container import Container
from provision.facts.docker import Image
from provision.model import PreflightCode, Secret
from provision.model.cause import NODES, Cause, CauseKind
from provision.model.image_reference import is_image_reference, registry_of
from provision.model.reason import Wording, reason

_DIGEST = re.compile(r"(sha256:[0-9a-f]{64})?")
_SAME_IMAGE = frozenset(
    {
        NODES,  # the role reads the manifest of an archive once for all nodes
        "platform_package_sets",
        "training_image_enabled",
        "training_image_retries",
        "training_image_retry_delay_seconds",
    }
)
"""Variables of the role that choose no image."""


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    if _may_change(causes, state):
        yield RoleNeed("training_container", reason("training_image.may_change"))


def _may_change(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether an existing container may run on another image than it should after this step."""
    image, container = state.facts.image, state.facts.container
    if any(cause.kind in {CauseKind.CHECK, CauseKind.IMAGE, CauseKind.NEED} for cause in causes):
        return True
    if any(cause.kind is CauseKind.VARIABLE and cause.name not in _SAME_IMAGE for cause in causes):
        return True
    return isinstance(image, Image) and isinstance(container, Container) and image.id != container.image_id


def _settings(variables: Variables, _: NodeFacts) -> Iterator[Setting]:
    reference, digest = text(variables, "training_image_reference"), variables.get("training_image_digest") or ""
    if not reference:
        yield PreflightCode.VARIABLE_MISSING, "training_image_reference", "is not set", IMAGE_REMEDY
    elif plain(reference) and not is_image_reference(reference):
        remedy = "Write it as REGISTRY[:PORT]/PATH:TAG, the path in lower case and without https://."
        problem = f"'{reference}' is not the name of an image"
        yield PreflightCode.VARIABLE_INVALID, "training_image_reference", problem, remedy
    if plain(digest) and not _DIGEST.fullmatch(str(digest)):
        remedy = "Write sha256: and 64 hexadecimal digits, or remove the variable."
        yield PreflightCode.VARIABLE_INVALID, "training_image_digest", f"'{digest}' is not a digest", remedy


def _controller_files(variables: Variables) -> Iterator[tuple[str, str, str]]:
    """Ansible searches several folders for a relative path, so only an absolute one can be checked."""
    archive = text(variables, "training_image_archive")
    if plain(archive) and archive.startswith("/"):
        remedy = "Write it with `docker save -o FILE IMAGE`, or correct training_image_archive."
        yield "training_image_archive", archive, remedy


def _image(variables: Variables, facts: NodeFacts) -> Mapping[str, Any] | None:
    names = (
        "training_image_reference",
        "training_image_digest",
        "training_image_archive",
        "docker_engine_daemon_options",
    )
    if variables.get("training_image_archive") or not all(plain(variables.get(name)) for name in names):
        return None
    reference = str(variables["training_image_reference"])
    digest = str(variables.get("training_image_digest") or "")
    name, _, pinned = reference.partition("@")
    digest = digest or pinned
    if isinstance(facts.image, Image) and (not digest or any(digest in known for known in facts.image.digests)):
        return None
    registry = registry_of(reference)
    certificates = [entry.get("certificate") for entry in _entries(variables, "docker_engine_registry_ca", registry)]
    if not all(map(plain, certificates)):
        return None
    path, _, tag = name.removeprefix(f"{registry}/").partition(":")
    if registry == registry_of("x") and "/" not in path:
        path = f"library/{path}"
    options = variables.get("docker_engine_daemon_options")
    insecure = options.get("insecure-registries") if isinstance(options, Mapping) else None
    mirrors = variables.get("docker_engine_registry_mirrors")
    return {
        "reference": reference,
        "registry": registry,
        "path": path,
        "tag": tag or "latest",
        "digest": digest,
        "ca": next((str(certificate) for certificate in certificates if certificate), ""),
        "login": _login(variables, registry),
        "mirrors": [str(mirror) for mirror in mirrors if plain(mirror)] if isinstance(mirrors, list) else [],
        "insecure": isinstance(insecure, list) and registry in insecure,
    }


def _entries(variables: Variables, name: str, registry: str) -> list[Mapping[str, Any]]:
    return [item for item in items(variables, name) if item.get("registry") == registry]


def _login(variables: Variables, registry: str) -> dict[str, str] | None:
    for item in _entries(variables, "docker_engine_registry_logins", registry):
        if plain(dict(item)):
            password = item.get("password_secret")
            value = password.reveal() if isinstance(password, Secret) else password
            if isinstance(value, str):
                return {"username": str(item.get("username")), "password": value}
    return None


COMPONENT = Component(
    role="training_image",
    stack_components=("image",),
    reasons={"training_image.may_change": Wording("its image may change")},
    after=("docker_engine",),
    waits_with=("docker_engine",),  # a pull may need the new registry settings
    for_jobs=True,
    needs_image=True,
    read_variables=("training_image_digest", "training_image_reference"),
    needs=_needs,
    settings=_settings,
    controller_files=_controller_files,
    image=_image,
)
