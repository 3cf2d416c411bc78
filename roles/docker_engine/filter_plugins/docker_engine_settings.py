"""Filters of the role docker_engine: limits within those of the node, and the files of certificates."""


def docker_engine_ulimits(limits):
    """Return docker's default-ulimits."""
    return {name: {"Name": name, "Soft": most, "Hard": most} for name, most in limits.items()}


def docker_engine_reductions(desired, limits):
    """Return a line for each limit that the node cuts."""
    return [
        f"default ulimit {name} cut from {most} to {limits[name]}: the node does not allow more"
        for name, most in desired.items()
        if limits[name] != int(most)
    ]


def docker_engine_certificates(entries):
    """Return the files of the registries' CA certificates."""
    return [
        {"path": f"/etc/docker/certs.d/{item['registry']}/ca.crt", "content": item["certificate"].strip() + "\n"}
        for item in entries
    ]


class FilterModule:
    """What Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "docker_engine_certificates": docker_engine_certificates,
            "docker_engine_reductions": docker_engine_reductions,
            "docker_engine_ulimits": docker_engine_ulimits,
        }
