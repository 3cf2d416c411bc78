"""Filters of the role training_container: reports of reduced limits and of failures."""


def training_container_reductions(desired, limits):
    """Return a line for each limit that is reduced to the limit of the node."""
    return [
        f"{name}: reduced from {'unlimited' if int(value) < 0 else value} to {limits[name]}, the limit of this node"
        for name, value in desired.items()
        if limits[name] != int(value)
    ]


def training_container_reason(message, env):
    """Return docker's message without the values of variables, any of which may be a secret."""
    text = str(message or "").strip()
    for value in sorted(map(str, env.values()), key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "(a value of training_container_env)")
    return text or "no reason given"


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "training_container_reason": training_container_reason,
            "training_container_reductions": training_container_reductions,
        }
