"""Filters of the role base_system: the nodes' lines in /etc/hosts."""


def base_system_hosts(addresses, names, node, own_name, alias):
    """Return node -> its line: of nodes without a known address the line that is in the file already.

    The node's own line has its host name too (`alias`), so that it resolves where it differs.
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
    """What Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {"base_system_hosts": base_system_hosts}
