"""Filters of the role platform for all roles: limits of a node, causes of failures, files to remove."""

import re


def platform_node_limits(desired, node_limits):
    """Return limit -> value, reduced to the limit of the node. -1 is unlimited."""
    limits = {}
    for name, text in desired.items():
        value, maximum = int(text), int(node_limits.get(name, -1))
        limits[name] = maximum if maximum >= 0 and (value < 0 or value > maximum) else value
    return limits


def platform_first_match(entries, message, default):
    """Return the first entry whose `pattern` matches in a message."""
    return next((item for item in entries if re.search(item["pattern"], message or "", re.IGNORECASE)), default)


def platform_absent_files(paths, **more):
    """Return entries for platform_files that remove these files."""
    return [{"path": path, "state": "absent", **more} for path in paths]


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "platform_absent_files": platform_absent_files,
            "platform_first_match": platform_first_match,
            "platform_node_limits": platform_node_limits,
        }
