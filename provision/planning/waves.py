"""In which order nodes are changed, and how many at once: a canary first, never more of a rack than may be missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from provision.components import COMPONENTS
from provision.errors import UsageError
from provision.model import Cluster, Node, Step
from provision.model.plan import StepClass

DISRUPTIVE_WAVES, SAFE_WAVES, AT_ONCE = "1,10%,100%", "1,100%", "100%"
_GROUPS = (("cluster_rack", "cluster_rack_at_once"), ("cluster_leaf", "cluster_leaf_at_once"))
"""What nodes share, and how many of those that share it may be changed at once; 0 is no limit."""


def default_waves(classes: Collection[StepClass], *, provisioned: bool) -> str:
    """Return the sizes of the waves for steps of these classes, on nodes some of which have been provisioned before."""
    if any(step_class is StepClass.NEEDS_REBOOT for step_class in classes):
        return DISRUPTIVE_WAVES
    if not provisioned:
        return AT_ONCE
    return SAFE_WAVES if all(step_class is StepClass.SAFE for step_class in classes) else DISRUPTIVE_WAVES


def wave_sizes(text: str, total: int) -> tuple[int, ...]:
    """Return the sizes of the waves that ``--waves`` asks for; the last one is repeated for whatever is left.

    Args:
        text: numbers of nodes and percentages of all of them, such as ``1,10%,100%``; a wave is never empty.
        total: how many nodes there are to change.

    Raises:
        UsageError: a word is neither.
    """
    sizes: list[int] = []
    for word in text.split(","):
        number = word.strip().removesuffix("%")
        if not number.isdecimal() or int(number) == 0:
            raise UsageError(
                f"--waves {text}: “{word.strip()}” is neither a number of nodes nor a percentage",
                remedy="Examples: --waves 1,10%,100%   --waves 4   --waves 100% (all at once)",
            )
        share = math.ceil(total * int(number) / 100) if word.strip().endswith("%") else int(number)
        sizes.append(max(1, min(share, total)))
    return tuple(sizes)


def waves(nodes: Sequence[Node], sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Return the names of the nodes, wave by wave and in the order of `nodes`.

    No wave has more nodes of one rack or leaf than their ``cluster_rack_at_once`` or ``cluster_leaf_at_once`` says; so
    there can be more waves than `sizes`.
    """
    left = list(nodes)
    made: list[tuple[str, ...]] = []
    while left:
        size = sizes[min(len(made), len(sizes) - 1)]
        taken: list[Node] = []
        used: Counter[tuple[str, str]] = Counter()
        for node in left:
            if len(taken) < size and all(used[group] < most for group, most in _limits(node)):
                taken.append(node)
                used.update(group for group, _ in _limits(node))
        made.append(tuple(node.name for node in taken))
        names = set(made[-1])
        left = [node for node in left if node.name not in names]
    return tuple(made)


def before_others(cluster: Cluster, steps: Mapping[str, Sequence[Step]]) -> tuple[str, ...]:
    """Return the nodes with a step that has to end before any other node is changed; `steps` is node -> its steps."""
    early = {role: component.nodes_before_others(cluster) for role, component in COMPONENTS.items()}
    return tuple(name for name, own in steps.items() if any(name in early[step.role] for step in own))


def canary_wave(cluster: Cluster, steps: Mapping[str, Sequence[Step]]) -> int:
    """Return the number of the wave of the canary: the first one, or the second one behind nodes that come first."""
    return 2 if before_others(cluster, steps) else 1


def _limits(node: Node) -> list[tuple[tuple[str, str], int]]:
    """Return what the node shares with others, and how many of those may be changed at once."""
    limits = []
    for kind, limit in _GROUPS:
        name, most = node.variables.get(kind), node.variables.get(limit)
        if isinstance(name, str) and name and isinstance(most, int) and most > 0:
            limits.append(((kind, name), most))
    return limits


def too_many_failures(failed: int, total: int, most: int | None, *, after_canary: bool) -> bool:
    """Return whether no further wave may begin: by default after one failure up to the canary, later a tenth of all."""
    if most is None:
        most = max(2, math.ceil(total / 10)) if after_canary else 1
    return failed >= most
