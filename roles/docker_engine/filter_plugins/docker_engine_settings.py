"""Filters of the role docker_engine: limits within those of the node, and the files of certificates."""

from __future__ import annotations


def docker_engine_ulimits(desired, node_limits):
    """Return docker's default-ulimits; docker cannot give a container more than the node allows."""
    limits = {name: _allowed(int(most), int(node_limits.get(name, -1))) for name, most in desired.items()}
    return {name: {"Name": name, "Soft": most, "Hard": most} for name, most in limits.items()}


def docker_engine_reductions(desired, node_limits):
    """Return a line for each limit that the node cuts."""
    limits = docker_engine_ulimits(desired, node_limits)
    return [
        f"default ulimit {name} cut from {most} to {limits[name]['Hard']}: the node does not allow more"
        for name, most in desired.items()
        if limits[name]["Hard"] != int(most)
    ]


def docker_engine_certificates(entries):
    """Return the files of the registries' CA certificates."""
    return [
        {"path": f"/etc/docker/certs.d/{item['registry']}/ca.crt", "content": item["certificate"].strip() + "\n"}
        for item in entries
    ]


def _allowed(desired, most):
    """Both may be -1, which is unlimited."""
    return most if most != -1 and (desired == -1 or desired > most) else desired


class FilterModule:
    """What Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "docker_engine_certificates": docker_engine_certificates,
            "docker_engine_reductions": docker_engine_reductions,
            "docker_engine_ulimits": docker_engine_ulimits,
        }
