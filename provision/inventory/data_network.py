"""Data addresses of nodes: their addresses on the data networks."""

from __future__ import annotations

import ipaddress
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.commands.ssh import explain_ssh, ssh_argv
from provision.errors import ConnectionFailed, NodeError, UsageError
from provision.facts.address_claims import Claim, refused_claims
from provision.inventory.hostkeys import Target, in_parallel

_COMMAND = "PATH=$PATH:/usr/sbin:/sbin LC_ALL=C ip -o addr show"
_SECONDS = 60


def checked_networks(texts: Sequence[str]) -> tuple[str, ...]:
    """Return normalized networks; UsageError for invalid ones."""
    networks = []
    for text in texts:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise UsageError(
                f"--data-network '{text}' is not a network", remedy="Write it like --data-network 10.10.0.0/24"
            ) from error
        if network.prefixlen == network.max_prefixlen:
            raise UsageError(f"--data-network '{text}' is one address", remedy="Write it like 10.10.0.0/24")
        networks.append(str(network))
    return tuple(dict.fromkeys(networks))


def data_addresses(
    targets: Sequence[Target], networks: Sequence[str], known_hosts: Path
) -> tuple[dict[str, str], list[str]]:
    """Return each node's first address in the first of `networks` where it has one; only `known_hosts` are trusted.

    Returns:
        Node name to address, and a sentence for every node without an address, or with one of another node.
    """

    def ask(target: Target) -> str:
        return address_in(_addresses(target, known_hosts), networks, target.name)

    accepted_addresses: dict[str, str] = {}
    failures: list[str] = []
    for target, result in zip(targets, in_parallel(ask, targets), strict=True):
        if isinstance(result, str):
            accepted_addresses[target.name] = result
        else:
            failures.append(str(result))
    claims = {
        target.name: Claim(accepted_addresses.get(target.name, ""), "", target.connection.host, networks)
        for target in targets
    }
    refused = refused_claims(claims)
    failures += [f"{name}: its data address is invalid: {reason}" for name, reason in refused.items()]
    return {name: address for name, address in accepted_addresses.items() if name not in refused}, failures


def address_in(text: str, networks: Sequence[str], node: str) -> str:
    """Return a node's address from the output of ``ip -o addr``."""
    here: list[str] = re.findall(r"\sinet6?\s+([0-9a-fA-F.:]+)(?:/\d+|\s+peer)", text)
    for network in networks:
        net = ipaddress.ip_network(network)
        for address in here:
            if ipaddress.ip_address(address) in net:
                return address
    raise NodeError(
        f"it has no address in {' or '.join(networks)}; it has {', '.join(here) or 'none at all'}", node=node
    )


def _addresses(target: Target, known_hosts: Path) -> str:
    connection = replace(target.connection, known_hosts=known_hosts)
    try:
        done = subprocess.run(
            ssh_argv(connection, _COMMAND),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionFailed(f"no answer within {_SECONDS} s", node=target.name) from error
    if done.returncode != 0:
        reason = explain_ssh(done.stderr).last_line or f"'ip addr' ended with exit code {done.returncode}"
        raise ConnectionFailed(f"its addresses could not be read over SSH: {reason}", node=target.name)
    return done.stdout
