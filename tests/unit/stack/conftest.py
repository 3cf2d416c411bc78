"""Stacks of a healthy node, and locks of them; tests change one component at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

from provision.facts import NodeFacts
from provision.facts.docker import Image
from provision.model.stack import Stack, StackPart
from provision.stack.observed import stack_of
from tests.unit.checks.conftest import healthy

DIGEST, OTHER_DIGEST = (f"sha256:{letter * 64}" for letter in "ab")
KERNEL = "6.1.0-28-amd64"
PACKAGES = {
    "docker.io": "20.10.24+dfsg1-1",
    "containerd": "1.6.20~ds1-1",
    "runc": "1.1.5+ds1-1",
    "nvidia-container-toolkit": "1.17.8-1",
    "libnvidia-container1": "1.17.8-1",
    "rdma-core": "44.0-2",
    "libibverbs1": "44.0-2",
    f"linux-headers-{KERNEL}": "6.1.119-1",
    "nvidia-kernel-dkms": "550.90-1",
    "libcuda1": "550.90-1",
    "nvidia-fabricmanager-550": "550.90-1",
    "bash": "5.2",
}
VARIABLES = {
    "nvidia_driver_source": "distribution",
    "docker_engine_source": "distribution",
    "rdma_stack_source": "distribution",
    "training_image_reference": "r:5000/t:1",
}


def facts_with(changes: dict[str, str | None] | None = None, /, **facts: Any) -> NodeFacts:
    """Facts of a node with the packages; None removes one."""
    named = {name: version for name, version in {**PACKAGES, **(changes or {})}.items() if version is not None}
    base = healthy()
    system = dataclasses.replace(base.system, kernel=KERNEL, package_manager="apt-get")
    image = Image("sha256:11", (f"r:5000/t@{DIGEST}",), ("r:5000/t:1",))
    return dataclasses.replace(base, **{"packages": named, "system": system, "image": image, **facts})


def lock_of(facts: NodeFacts | None = None, **parts: StackPart | None) -> Stack:
    """Return the stack of a node as a lock; None removes a component."""
    stack = stack_of(facts or facts_with(), "gpu1")
    assert isinstance(stack, Stack)
    return dataclasses.replace(
        stack, parts={name: part for name, part in {**stack.parts, **parts}.items() if part is not None}
    )
