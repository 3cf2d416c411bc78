"""Differences between two stacks, and between a node and the lock: which role fixes them, or why none can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provision.commands.rdma_stack import is_vendor
from provision.components import COMPONENTS, SHARED
from provision.components.common import is_on, package_manager
from provision.facts import NodeFacts, Unknown, plain
from provision.gdr.observed import has_gpus
from provision.model.reason import Reason, reason
from provision.model.stack import INBOX, STACK_COMPONENTS, Stack
from provision.stack.conflicts import conflicts_of
from provision.stack.observed import ENGINES, image_digests, stack_of, unknown_components

OWNERS: Mapping[str, str] = {part: role for role, owner in COMPONENTS.items() for part in owner.stack_components}
"""Component -> the role that brings it to the lock. Those without a role are only reported, and their packages held."""
_OF_GPUS = frozenset({"driver", "fabric_manager", "toolkit"})
Variables = Mapping[str, Any]


@dataclass(frozen=True)
class Deviation:
    """A component of a node that differs from the lock."""

    component: str
    why: Reason
    role: str = ""
    """The role that fixes it; empty if none does."""
    refused: bool = False
    """Whether the node is refused, because it cannot be brought to the lock."""


@dataclass(frozen=True)
class Difference:
    """A component or package that differs between two stacks."""

    component: str
    package: str
    """Empty for the version of the component itself."""
    a: str
    """Empty if A does not have it."""
    b: str


def differences(a: Stack, b: Stack) -> tuple[Difference, ...]:
    """Return what differs between two stacks, in the order of the components."""
    pairs = [(name, getattr(a, name), getattr(b, name)) for name in ("system", "architecture")]
    results = [Difference(name, "", mine, other) for name, mine, other in pairs if mine != other]
    for component in STACK_COMPONENTS:
        if a.version(component) != b.version(component):
            results.append(Difference(component, "", a.version(component), b.version(component)))
        mine, other = a.packages(component), b.packages(component)
        results += [
            Difference(component, name, mine.get(name, ""), other.get(name, ""))
            for name in sorted({*mine, *other})
            if mine.get(name) != other.get(name)
        ]
    return tuple(results)


def deviations(lock: Stack, variables: Variables, facts: NodeFacts) -> tuple[Deviation, ...]:
    """Return the differences of a node from the lock; a component whose facts are unknown is not judged."""
    seen = stack_of(facts)
    if isinstance(seen, Unknown):
        return ()
    for name in ("system", "architecture"):
        current, locked = getattr(seen, name), getattr(lock, name)
        if current != locked:
            why = reason("stack.other_system", component=name, current=current, locked=locked)
            return (Deviation(name, why, refused=True),)
    lock = replace(lock, parts={name: part for name, part in lock.parts.items() if _concerns(name, seen, facts)})
    if lock.version("image") in image_digests(facts):
        seen = replace(seen, parts={**seen.parts, "image": lock.parts["image"]})
    conflict = next(conflicts_of(_with_kernel(lock, seen)), None)
    if conflict is not None:
        return (Deviation(str(conflict.params.get("older", "fabric_manager")), conflict, refused=True),)
    results = tuple(one for component in lock.parts for one in _JUDGES[component](lock, seen, variables))
    return results if holds_versions(facts) else tuple(map(_refused, results))


def holds_versions(facts: NodeFacts) -> bool:
    """Return whether the roles can install exact versions on the node, and hold them: with apt."""
    return package_manager(facts) == "apt"


def _refused(deviation: Deviation) -> Deviation:
    """Return a deviation of packages as one that no role fixes."""
    if not deviation.role or deviation.component == "image":
        return deviation
    return Deviation(deviation.component, reason("stack.only_apt", cause=deviation.why), refused=True)


def _with_kernel(lock: Stack, seen: Stack) -> Stack:
    """Return the lock with the kernel that the node runs: this is what the locked modules would be built for."""
    kernel = {name: part for name, part in seen.parts.items() if name == "kernel"}
    return replace(lock, parts={**lock.parts, **kernel})


def _concerns(component: str, seen: Stack, facts: NodeFacts) -> bool:
    """Return whether a component of the lock is compared on the node: it is known, and the node can have it."""
    if component in unknown_components(facts) or (component in _OF_GPUS and not has_gpus(facts)):
        return False
    has_switches = not isinstance(facts.nvidia_driver, Unknown) and bool(facts.nvidia_driver.switches)
    return component != "fabric_manager" or has_switches or component in seen.parts


def _kernel(lock: Stack, seen: Stack, _: Variables) -> Iterator[Deviation]:
    current, locked = seen.version("kernel"), lock.version("kernel")
    if current and current != locked:
        yield Deviation("kernel", reason("stack.kernel", current=current, locked=locked))


def _headers(lock: Stack, seen: Stack, _: Variables) -> Iterator[Deviation]:
    """Headers of another kernel than the locked one say nothing: the kernel itself is reported."""
    if seen.version("kernel") != lock.version("kernel") or seen.version("headers") == lock.version("headers"):
        return
    name = next(iter(lock.packages("headers")), "headers")
    current, locked = seen.version("headers"), lock.version("headers")
    yield Deviation("headers", reason("stack.headers", package=name, current=current or "not installed", locked=locked))


def _rdma(lock: Stack, seen: Stack, variables: Variables) -> Iterator[Deviation]:
    current, locked = seen.version("rdma"), lock.version("rdma")
    if current and current != locked:
        code = {locked: "stack.rdma_vendor", current: "stack.rdma_inbox"}.get(INBOX, "stack.rdma_other")
        is_requested = current == INBOX and is_vendor(variables.get("rdma_stack_source"))
        yield Deviation("rdma", reason(code, current=current, locked=locked), refused=not is_requested)
    elif locked == INBOX:
        yield from _packages("rdma", lock, seen, variables)


def _driver(lock: Stack, seen: Stack, variables: Variables) -> Iterator[Deviation]:
    given, locked = variables.get("nvidia_driver_version") or "", lock.version("driver")
    if given and plain(given) and str(given) != locked:
        yield _contradiction("driver", "nvidia_driver_version", given, locked)
    else:
        yield from _packages("driver", lock, seen, variables)


def _docker(lock: Stack, seen: Stack, variables: Variables) -> Iterator[Deviation]:
    locked, current = _engine(lock), _engine(seen)
    if locked and current and locked != current:
        why = reason("stack.other_package", component="docker", current=current, locked=locked)
        yield Deviation("docker", why, refused=True)
    else:
        yield from _packages("docker", lock, seen, variables)


def _engine(stack: Stack) -> str:
    return next((name for name in ENGINES if name in stack.packages("docker")), "")


def _image(lock: Stack, seen: Stack, variables: Variables) -> Iterator[Deviation]:
    given, locked = variables.get("training_image_digest") or "", lock.version("image")
    reference = variables.get("training_image_reference")
    if not _is_enabled(variables, OWNERS["image"]) or not reference:
        return
    if given and plain(given) and given != locked:
        yield _contradiction("image", "training_image_digest", given, locked)
    elif seen.version("image") != locked and variables.get("training_image_archive"):
        yield Deviation(
            "image", reason("stack.image_archive", current=seen.version("image"), locked=locked), refused=True
        )
    elif seen.version("image") != locked:
        why = reason("stack.image", current=seen.version("image") or "none", locked=locked)
        yield Deviation("image", why, OWNERS["image"])


def _contradiction(component: str, variable: str, given: object, locked: str) -> Deviation:
    why = reason("stack.contradiction", component=component, variable=variable, given=str(given), locked=locked)
    return Deviation(component, why, refused=True)


def _packages(component: str, lock: Stack, seen: Stack, variables: Variables) -> Iterator[Deviation]:
    """Yield the difference of a component that consists of packages, and the role that installs them."""
    role = OWNERS[component]
    if not _is_enabled(variables, role):
        return
    wanted, current = lock.packages(component), seen.packages(component)
    other = [
        reason("stack.package", name=name, current=current[name], locked=version)
        for name, version in wanted.items()
        if name in current and current[name] != version
    ]
    is_other = seen.version(component) != lock.version(component)
    if not other and not is_other:
        return
    version, locked = seen.version(component) or "not installed", lock.version(component)
    if variables.get(f"{role}_source") == "present":
        code, extra = "stack.not_managed", {"variable": f"{role}_source"}
    elif not _is_enabled(variables, SHARED.role):
        code, extra = "stack.not_managed", {"variable": f"{SHARED.role}_enabled"}
    elif not wanted:
        code, extra = "stack.no_packages", {}
    else:
        why = reason("stack.differs", component=component, current=version, locked=locked, packages=other)
        yield Deviation(component, why, role)
        return
    why = reason(code, component=component, current=version, locked=locked, packages=other, **extra)
    yield Deviation(component, why, refused=True)


def _is_enabled(variables: Variables, role: str) -> bool:
    return is_on(variables, f"{role}_enabled")


def _of(component: str) -> Callable[[Stack, Stack, Variables], Iterator[Deviation]]:
    return lambda lock, seen, variables: _packages(component, lock, seen, variables)


_JUDGES: Mapping[str, Callable[[Stack, Stack, Variables], Iterator[Deviation]]] = {
    "kernel": _kernel,
    "headers": _headers,
    "rdma": _rdma,
    "driver": _driver,
    "fabric_manager": _of("fabric_manager"),
    "toolkit": _of("toolkit"),
    "docker": _docker,
    "image": _image,
}


def locked_packages(lock: Stack) -> dict[str, dict[str, str]]:
    """Return role -> package -> version. Packages without a role, such as headers of the kernel, are only held."""
    packages: dict[str, dict[str, str]] = {}
    for component in lock.parts:
        role = OWNERS.get(component, "")
        if lock.packages(component):
            packages.setdefault(role, {}).update(lock.packages(component))
    return packages
