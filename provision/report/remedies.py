"""Remedies for frequent failures: by the reason code of a module, or by a pattern in the message."""

from __future__ import annotations

import re

from provision.documents.text import last_lines
from provision.report.kernel_remedies import KERNEL_REMEDIES
from provision.report.package_remedies import REMEDIES
from provision.report.rescue_remedies import RESCUE_REMEDIES

_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"No space left on device", "The node's disk is full: free space (df -h, docker system df) and apply again."),
    (r"certificate has expired|is not yet valid|is not valid yet|Release file .* is expired",
     "A certificate or package list is not valid at the time of the node's clock: check the clock (`date -u`)."),
    (r"certificate signed by unknown authority|certificate verify failed|x509:",
     "The registry's certificate is not trusted on the node: set its CA in docker_engine_registry_ca."),
    (r"manifest unknown|not found: manifest|name unknown|repository .{1,300} not found",
     "The registry does not have this image: check training_image_reference and push the image."),
    (r"unauthorized|authentication required|denied: ",
     "The registry requires a login: set docker_engine_registry_logins (with the password in a vault)."),
    ((r"connection refused.{0,300}(?:v2|registry)|dial tcp .{0,300}(?:refused|timeout|no route)"
      r"|registry.{0,300}(?:refused|timed out)"),
     "The registry does not answer the node: check that it runs and that the node can reach it."),
    (r"Missing sudo password|sudo: a password is required|Incorrect sudo password",
     "sudo requires a password: add --ask-become-pass, or store ansible_become_password in a vault."),
    (r"is not in the sudoers file|not allowed to execute",
     "The login user has no sudo rights on the node: grant them, or set another ansible_user."),
    (r"Temporary failure (?:in name resolution|resolving)|Could not resolve",
     "The node cannot resolve names: check its DNS, or set cluster_http_proxy."),
    (r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
     "SSH ignores a private key that other users can read: run chmod 600 on the file in the output."),
    (r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
     "The node's host key has changed. If the node was reinstalled, run: provision init NODE --replace-key"),
    (r"Permission denied \(", "The node does not accept the SSH key: check ansible_user and the key file."),
    (r"connection to the node was lost|Connection timed out|No route to host|Connection refused|closed by remote",
     "Check that the node is up and reachable, then apply again; it continues with the remaining steps."),
)  # fmt: skip

BY_CODE = {**REMEDIES, **RESCUE_REMEDIES, **KERNEL_REMEDIES}
"""Remedies of the failures that modules report with a reason code."""


def remedy_for(*texts: str, code: str = "") -> str | None:
    """Return the remedy for a failure with these texts, or None. The reason code of the module counts first.

    The end of each text is searched line by line, because texts from nodes can be long.
    """
    if code in BY_CODE and code != "packages.failed":
        return BY_CODE[code]
    lines = last_lines(*texts)
    for pattern, remedy in _REMEDIES:
        if any(re.search(pattern, line, re.IGNORECASE) for line in lines):
            return remedy
    return BY_CODE.get(code)
