"""Filters of the role platform that other roles use: limits that a node allows, causes of failures, files to remove."""

import re


def platform_node_limits(desired, node_limits):
    """Return limit -> value, at most what the node allows. On both sides -1 is unlimited."""
    limits = {}
    for name, text in desired.items():
        value, most = int(text), int(node_limits.get(name, -1))
        limits[name] = most if most >= 0 and (value < 0 or value > most) else value
    return limits


def platform_first_match(entries, message, default):
    """Return the first entry whose `pattern` is somewhere in a message."""
    return next((item for item in entries if re.search(item["pattern"], message or "", re.IGNORECASE)), default)


def platform_absent_files(paths, **more):
    """Return the files as ones that platform_files removes."""
    return [{"path": path, "state": "absent", **more} for path in paths]


class FilterModule:
    """What Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "platform_absent_files": platform_absent_files,
            "platform_first_match": platform_first_match,
            "platform_node_limits": platform_node_limits,
        }
