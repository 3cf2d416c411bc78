"""Filters of the role docker_engine: ulimits, their reductions, and certificate files."""


def docker_engine_ulimits(limits):
    """Return the value of default-ulimits in daemon.json."""
    return {name: {"Name": name, "Soft": limit, "Hard": limit} for name, limit in limits.items()}


def docker_engine_reductions(desired, limits):
    """Return a line for each limit that is reduced to the limit of the node."""
    return [
        f"default ulimit {name} reduced from {limit} to {limits[name]}: the node does not allow more"
        for name, limit in desired.items()
        if limits[name] != int(limit)
    ]


def docker_engine_certificates(entries):
    """Return the files of the registries' CA certificates."""
    return [
        {"path": f"/etc/docker/certs.d/{item['registry']}/ca.crt", "content": item["certificate"].strip() + "\n"}
        for item in entries
    ]


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "docker_engine_certificates": docker_engine_certificates,
            "docker_engine_reductions": docker_engine_reductions,
            "docker_engine_ulimits": docker_engine_ulimits,
        }
