"""References of container images."""

from __future__ import annotations

import re

DOCKER_HUB = "docker.io"
_FORM = re.compile(
    r"(([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]+)?/)?"
    r"[a-z0-9]+(([._]|__|-+|/)[a-z0-9]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
"""[HOST[:PORT]/]PATH[:TAG][@DIGEST]; the role training_image uses the same pattern."""


def is_image_reference(text: str) -> bool:
    """Return whether Docker accepts the text as an image reference."""
    return _FORM.fullmatch(text) is not None


def registry_of(reference: str) -> str:
    """Return the registry from which Docker pulls the image."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB
