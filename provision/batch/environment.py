"""Variables of a job: which of them anybody may see, which are secrets, and which are for fetching code alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from provision.batch.code import is_sync_name, is_sync_secret, short_name
from provision.commands.shell import is_environment_name
from provision.errors import UsageError
from provision.model import Secret
from provision.profiles import check_light

__all__ = ["Environment", "Variable", "sorted_out", "typed", "written"]

IsSecret = Callable[[str, str], bool]
"""Whether a name and its value are a secret's."""

_REVISIONS = ("REV", "REF", "BRANCH")
"""Of git-sync's settings; the first that is given is checked out."""
_DECIDED = ("REPO", "DEST", "ROOT", "ONE_TIME")
"""What --sync-source and the place of the code say already."""


@dataclass(frozen=True)
class Variable:
    """A variable as it was given."""

    name: str
    value: str
    typed: bool = False
    """Its value stood on the command line."""


@dataclass(frozen=True)
class Environment:
    """Variables, sorted out."""

    plain: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, Secret] = field(default_factory=dict)
    sync: Mapping[str, Secret] = field(default_factory=dict)
    """For fetching code alone."""
    sync_options: Mapping[str, str] = field(default_factory=dict)
    """Likewise, and no secret: names of files are not, what is in them may be."""
    revision: str = ""
    notes: tuple[str, ...] = ()


def typed(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[Variable]:
    """Read ``K=V`` as it stands, and ``K`` from `environ`, so that secrets need not be typed.

    Raises:
        UsageError: a name that no variable has, or one that is not set here.
    """
    for word in words:
        name, equals, value = word.partition("=")
        _check(name, "--env")
        if not equals and name not in environ:
            raise UsageError(
                f"--env {name}: {name} is not set here", remedy=f"export {name}, or give --env {name}=VALUE"
            )
        yield Variable(name, value if equals else environ[name], bool(equals))


def written(text: str, where: str, environ: Mapping[str, str]) -> Iterator[Variable]:
    """Read a file of ``K=V`` and ``K`` lines, as docker does: no quotes, ``#`` begins a remark, empty lines are left.

    Raises:
        UsageError: a line that is neither; the line is not shown, for it may be a secret.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        name, equals, value = word.partition("=")
        _check(name, f"{where}:{number}", shown=False)
        if not equals and name not in environ:
            raise UsageError(f"{where}:{number}: {name} is not set here", remedy="Write NAME=VALUE, or export it.")
        yield Variable(name, value if equals else environ[name])


def sorted_out(variables: Sequence[Variable], is_secret: IsSecret) -> Environment:
    """Tell the variables that may be seen from secrets, and from those of git-sync, which the training does not get.

    Later ones of the same name count.

    Raises:
        UsageError: a variable of LightCC that there is not, or with a value that it cannot have.
    """
    last = {variable.name: variable for variable in variables}
    environment = Environment({}, {}, {}, {})
    notes: list[str] = []
    for name, variable in last.items():
        sync = is_sync_name(name)
        hidden = is_sync_secret(name) if sync else is_secret(name, variable.value)
        if hidden and variable.typed and short_name(name) != "USERNAME":
            notes.append(_seen(name))
        if sync and short_name(name) in _DECIDED:
            notes.append(f"{name} is left out: --sync-source says what is fetched, and it lands in WORKDIR/code")
        elif sync and short_name(name) in _REVISIONS:
            continue
        else:
            _kind(environment, sync=sync, hidden=hidden)[name] = Secret(variable.value) if hidden else variable.value
    check_light(environment.plain)
    given = {short_name(name): variable.value for name, variable in last.items() if is_sync_name(name)}
    revision = next((given[name] for name in _REVISIONS if name in given), "")
    return replace(environment, revision=revision, notes=tuple(notes))


def _kind(environment: Environment, *, sync: bool, hidden: bool) -> dict[str, Any]:
    """Return where a variable of this kind is kept."""
    if sync:
        return cast("dict[str, Any]", environment.sync if hidden else environment.sync_options)
    return cast("dict[str, Any]", environment.secret if hidden else environment.plain)


def _seen(name: str) -> str:
    return (
        f"the value of {name} can be seen in this machine's list of processes and in the shell's history; "
        f"export it and give --env {name} alone, or write it into a file for --env-file (chmod 600), "
        "or keep it with `provision secret add`"
    )


def _check(name: str, where: str, *, shown: bool = True) -> None:
    if not is_environment_name(name):
        raise UsageError(f"{where}{f' {name}' if shown else ''}: this is no name of a variable; write NAME=VALUE")
    if name.startswith("PROVISION_"):
        raise UsageError(f"{where}: {name} is a variable that provision sets itself", remedy="Choose another name.")
