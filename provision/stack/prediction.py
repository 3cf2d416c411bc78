"""Predict for a kernel that is not installed whether driver, RDMA stack and peer memory will build for it.

Only what can be shown is used: whether the package sources have the kernel's headers, the ranges of kernels that
modules of DKMS declare, and the combinations that are known not to work. Nothing is compiled, so no result says that a
module will build: it says that it will not, that nothing shows that, or that nothing is known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum

from provision.facts import NodeFacts, Unknown
from provision.gdr.compare import at_least, numbers
from provision.gdr.versions import NV_PEER_MEM_NO_KERNEL
from provision.model.reason import Reason, reason
from provision.model.stack import INBOX, Stack, StackPart
from provision.stack.conflicts import conflicts_of
from provision.stack.observed import driver_version, vendor_version

SECONDS = 120.0
"""Time limit of the script: a slow node needs more than a minute to read its package lists."""
MOST_KERNELS = 20
_RELEASE = re.compile(r"[0-9][0-9A-Za-z.+~_-]{0,63}")
_IMAGE = re.compile(r"linux-image-(?:unsigned-)?([0-9][0-9A-Za-z.+~-]{0,63})")
_MOST_TREES = 50
_RDMA = frozenset({"mlnx-ofed-kernel", "mlnx-ofa_kernel", "doca-ofed", "isert", "iser", "srp"})
_PEER_MEMORY = frozenset({"nv_peer_mem", "nvidia-peer-memory"})

_SCRIPT = r"""
export LC_ALL=C
for meta in METAPACKAGES; do
  dpkg-query -W -f '${db:Status-Status}\n' "$meta" 2>/dev/null | grep -qx installed || continue
  apt-cache show --no-all-versions "$meta" 2>/dev/null | sed -n 's/^Depends: /depends=/p'
done
for kernel in KERNELS; do
  if command -v apt-cache >/dev/null; then
    echo "headers=$kernel $(apt-cache policy "linux-headers-$kernel" | sed -n 's/^  Candidate: //p')"
  fi
done
for source in /var/lib/dkms/*/*/source; do
  conf=$source/dkms.conf
  [ -r "$conf" ] || continue
  tree=${source%/source}; version=${tree##*/}; name=${tree%/*}
  echo "tree=${name##*/} $version"
  sed -n -E 's/^[[:space:]]*BUILD_EXCLUSIVE_KERNEL_(MIN|MAX)=["'\'']?([^"'\'']*)["'\'']?.*/\1=\2/p' "$conf"
  only=$(sed -n -E 's/^[[:space:]]*BUILD_EXCLUSIVE_KERNEL=["'\'']?([^"'\'']*)["'\'']?.*/\1/p' "$conf" | tail -n 1)
  [ -n "$only" ] || continue
  case $only in
    *'$'*|*'`'*) echo unclear=yes;;
    *) for kernel in KERNELS; do printf '%s\n' "$kernel" | grep -Eq -- "$only" || echo "excluded=$kernel"; done;;
  esac
done
exit 0
"""


class Forecast(StrEnum):
    """What is known about a build."""

    FAILS = "fails"
    NO_OBSTACLE = "no_obstacle"
    """Nothing is known that would make it fail."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class DkmsRange:
    """The kernels for which DKMS builds a module."""

    name: str
    version: str
    first: str = ""
    last: str = ""
    excluded: frozenset[str] = frozenset()
    """Kernels of the question that its regular expression does not match."""
    unclear: bool = False
    """Whether its regular expression contains variables of the shell."""


@dataclass(frozen=True)
class BuildFacts:
    """What a node says about kernels that it does not have."""

    available: tuple[str, ...] = ()
    """Releases that the metapackages of the installed kernels would install."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Release -> version of its headers in the package sources, empty if they do not have it."""
    trees: tuple[DkmsRange, ...] = ()
    accepted: tuple[str, ...] = ()
    """Names of known conflicts that the stack lock accepts."""


@dataclass(frozen=True)
class Prediction:
    """What is known about one component and one kernel."""

    component: str
    """``driver``, ``rdma`` or ``peer_memory``."""
    version: str
    forecast: Forecast
    reasons: tuple[Reason, ...]


def is_release(text: str) -> bool:
    """Return whether a text can be the release of a kernel."""
    return _RELEASE.fullmatch(text) is not None


def script(kernels: Sequence[str], metapackages: Sequence[str]) -> str:
    """Return the shell script that reads package sources and DKMS's configuration; it changes nothing."""
    return _SCRIPT.replace("METAPACKAGES", shlex.join(metapackages) or "''").replace("KERNELS", shlex.join(kernels))


def parse(text: str) -> BuildFacts:
    """Parse the output of the script; lines of another form are ignored."""
    available: dict[str, None] = {}
    headers: dict[str, str] = {}
    trees: list[DkmsRange] = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "depends":
            available |= dict.fromkeys(match[1] for match in _IMAGE.finditer(value))
        elif key == "headers":
            kernel, _, version = value.partition(" ")
            headers[kernel] = "" if version == "(none)" else version
        elif key == "tree" and len(trees) < _MOST_TREES:
            name, _, version = value.partition(" ")
            trees.append(DkmsRange(name, version))
        elif trees:
            trees[-1] = _with_line(trees[-1], key, value)
    return BuildFacts(tuple(available)[:MOST_KERNELS], headers, tuple(trees))


def _with_line(tree: DkmsRange, key: str, value: str) -> DkmsRange:
    if key == "MIN":
        return replace(tree, first=value)
    if key == "MAX":
        return replace(tree, last=value)
    if key == "excluded":
        return replace(tree, excluded=tree.excluded | {value})
    return replace(tree, unclear=True) if key == "unclear" else tree


def new_kernels(build: BuildFacts, facts: NodeFacts) -> tuple[str, ...]:
    """Return the available kernels that are not installed."""
    installed = () if isinstance(facts.kernels, Unknown) else tuple(kernel.release for kernel in facts.kernels)
    return tuple(kernel for kernel in build.available if kernel not in installed)


def predict(kernel: str, facts: NodeFacts, build: BuildFacts) -> tuple[Prediction, ...]:
    """Return what is known about each component that the node has, for a kernel that it does not have."""
    results: list[Prediction] = []
    driver = driver_version(facts)
    trees = tuple(tree for tree in build.trees if _is_driver(tree.name))
    if driver or trees:
        version = driver or trees[0].version
        results.append(_of_modules("driver", version, kernel, build, trees))
        results.append(replace(results[-1], component="peer_memory"))
    own = _named(build, _PEER_MEMORY)
    if own:
        results = [one for one in results if one.component != "peer_memory"]
        results.append(_of_modules("peer_memory", own[0].version, kernel, build, own))
    if not isinstance(facts.rdma, Unknown):
        results.append(_of_rdma(vendor_version(facts.rdma.ofed), kernel, build))
    return tuple(results)


def _named(build: BuildFacts, names: AbstractSet[str]) -> tuple[DkmsRange, ...]:
    return tuple(tree for tree in build.trees if tree.name in names)


def _is_driver(name: str) -> bool:
    """Return whether a tree of DKMS is the driver: ``nvidia``, ``nvidia-current-open``, ``nvidia-srv``."""
    return name.startswith("nvidia") and name not in _PEER_MEMORY and not name.startswith("nvidia-fs")


def _of_rdma(version: str, kernel: str, build: BuildFacts) -> Prediction:
    if version == INBOX:
        return Prediction("rdma", version, Forecast.NO_OBSTACLE, (reason("stack.check.inbox", kernel=kernel),))
    return _of_modules("rdma", version, kernel, build, _named(build, _RDMA))


def _of_modules(component: str, version: str, kernel: str, build: BuildFacts, trees: Sequence[DkmsRange]) -> Prediction:
    parts = {"kernel": StackPart(kernel), component: StackPart(version)}
    stack = Stack("", "", parts, accepted=build.accepted)
    obstacles = [*conflicts_of(stack), *_obstacles(component, kernel, build, trees)]
    if obstacles:
        return Prediction(component, version, Forecast.FAILS, tuple(obstacles))
    doubts = tuple(_doubts(kernel, build, trees))
    if doubts:
        return Prediction(component, version, Forecast.UNKNOWN, doubts)
    return Prediction(component, version, Forecast.NO_OBSTACLE, (reason("stack.check.no_obstacle", kernel=kernel),))


def _obstacles(component: str, kernel: str, build: BuildFacts, trees: Sequence[DkmsRange]) -> Iterator[Reason]:
    if trees and build.headers.get(kernel) == "":
        yield reason("stack.check.no_headers", kernel=kernel)
    for tree in trees:
        if kernel in tree.excluded or not _is_within(kernel, tree):
            first, last = tree.first or "any", tree.last or "any"
            yield reason("stack.check.excluded", name=tree.name, version=tree.version, first=first, last=last)
    if component == "peer_memory" and trees and at_least(kernel, NV_PEER_MEM_NO_KERNEL):
        yield reason("stack.check.nv_peer_mem", kernel=kernel, first=NV_PEER_MEM_NO_KERNEL)


def _is_within(kernel: str, tree: DkmsRange) -> bool:
    """Return whether DKMS builds the module for the kernel: it compares as text, so 6.13.0 is after 6.13."""
    first, last, own = numbers(tree.first), numbers(tree.last), numbers(kernel)
    return first <= own and (not last or own <= last)


def _doubts(kernel: str, build: BuildFacts, trees: Sequence[DkmsRange]) -> Iterator[Reason]:
    if not trees:
        yield reason("stack.check.no_dkms", kernel=kernel)
    elif kernel not in build.headers:
        yield reason("stack.check.headers_unknown", kernel=kernel)
    for tree in trees:
        if tree.unclear:
            yield reason("stack.check.unclear", name=tree.name, version=tree.version)
