"""What to do about failures that are seen often: a pattern in the message, and a sentence."""

from __future__ import annotations

import re

from provision.documents.text import last_lines

__all__ = ["remedy_for"]

_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"No space left on device", "The node's disk is full: free space (df -h, docker system df) and apply again."),
    (
        r"dpkg was interrupted|dpkg --configure -a",
        "A package installation was cut off on the node: run `dpkg --configure -a` there, then apply again.",
    ),
    (
        r"(lock-frontend|dpkg.{0,200}lock|Could not get lock|lock is held)",
        "Another package manager is at work on the node: wait for it, or end it, and apply again.",
    ),
    (r"certificate has expired|is not yet valid|is not valid yet|Release file .* is expired",
     "By the node's clock a certificate or a package list is out of its dates: see whether it is right (`date -u`)."),
    (r"certificate signed by unknown authority|certificate verify failed|x509:",
     "The registry's certificate is not trusted on the node: give its CA in docker_engine_registry_ca."),
    (r"manifest unknown|not found: manifest|name unknown|repository .{1,300} not found",
     "The registry has no such image: check training_image_reference and push the image."),
    (r"unauthorized|authentication required|denied: ",
     "The registry wants a login: set docker_engine_registry_logins (password in a vault)."),
    ((r"connection refused.{0,300}(?:v2|registry)|dial tcp .{0,300}(?:refused|timeout|no route)"
      r"|registry.{0,300}(?:refused|timed out)"),
     "The registry does not answer from the node: check that it runs and that the node may reach it."),
    (r"Missing sudo password|sudo: a password is required|Incorrect sudo password",
     "sudo asks for a password: add --ask-become-pass, or put ansible_become_password into a vault."),
    (r"is not in the sudoers file|not allowed to execute",
     "The login user has no sudo rights on the node: give it them, or use another ansible_user."),
    (r"Temporary failure (?:in name resolution|resolving)|Could not resolve",
     "The node cannot resolve names: check its DNS, or set cluster_http_proxy."),
    (r"Unable to locate package|No package matching",
     "The node's repositories lack the package: check its apt sources and platform_extra_repositories."),
    (r"NO_PUBKEY|is not signed|signatures? (?:couldn't be verified|were invalid)",
     "A repository's signature is not trusted: give its key in platform_extra_repositories."),
    (r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
     "SSH ignores a private key that other users may read: run chmod 600 on the file that the output names."),
    (r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
     "The node's host key is not the recorded one. If it was reinstalled, run: provision init NODE --replace-key"),
    (r"Permission denied \(", "The node does not accept the key: check ansible_user and the key file."),
    (r"connection to the node was lost|Connection timed out|No route to host|Connection refused|closed by remote",
     "See whether the node is up and reachable, then apply again: it takes up what is left."),
)  # fmt: skip


def remedy_for(*texts: str) -> str | None:
    """Return what to do about a failure with these texts, None when nothing better than the texts is known.

    The end of each text is searched, line by line: texts of nodes can be long.
    """
    lines = last_lines(*texts)
    for pattern, remedy in _REMEDIES:
        if any(re.search(pattern, line, re.IGNORECASE) for line in lines):
            return remedy
    return None
