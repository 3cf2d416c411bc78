"""Filters of the role base_system: the nodes' lines in /etc/hosts."""


def base_system_hosts(addresses, names, node, own_name, alias):
    """Return the line of each node. A node without a known address keeps the line that is already in the file.

    The line of the node itself also contains its host name (`alias`) if that differs from its name.
    """
    lines = {}
    for name in names:
        current = node.get("hosts", {}).get(name, "\n")
        if name in addresses:
            more = f" {alias}" if alias and name == own_name and alias not in (name, "localhost") else ""
            lines[name] = f"{addresses[name]} {name}{more}"
        elif "\n" not in current:
            lines[name] = current
    return lines


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {"base_system_hosts": base_system_hosts}
