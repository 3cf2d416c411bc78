"""Variables of a job: which of them anybody may see, which are secrets, and which are for fetching code alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from provision.commands.shell import is_environment_name
from provision.errors import UsageError
from provision.model import Secret
from provision.profiles import check_light

__all__ = ["Environment", "Variable", "sorted_out", "typed", "written"]

IsSecret = Callable[[str, str], bool]
"""Whether a name and its value are a secret's."""

_SYNC = "GIT_SYNC_"
_SYNC_SECRETS = ("GIT_SYNC_USERNAME", "GIT_SYNC_PASSWORD")
_REVISIONS = ("GIT_SYNC_REV", "GIT_SYNC_REF", "GIT_SYNC_BRANCH")
"""The first that is given is checked out."""
_DECIDED = ("GIT_SYNC_REPO", "GIT_SYNC_DEST", "GIT_SYNC_ROOT", "GIT_SYNC_ONE_TIME")
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
    plain: dict[str, str] = {}
    secret: dict[str, Secret] = {}
    sync: dict[str, Secret] = {}
    options: dict[str, str] = {}
    notes: list[str] = []
    for name, variable in last.items():
        hidden = name in _SYNC_SECRETS or is_secret(name, variable.value)
        if hidden and variable.typed and name != "GIT_SYNC_USERNAME":
            notes.append(_seen(name))
        if name.startswith(_SYNC):
            if name in _DECIDED:
                notes.append(f"{name} is left out: --sync-source says what is fetched, and it lands in WORKDIR/code")
            elif hidden:
                sync[name] = Secret(variable.value)
            elif name not in _REVISIONS:
                options[name] = variable.value
        elif hidden:
            secret[name] = Secret(variable.value)
        else:
            plain[name] = variable.value
    check_light(plain)
    revision = next((last[name].value for name in _REVISIONS if name in last), "")
    return Environment(plain, secret, sync, options, revision, tuple(notes))


def _seen(name: str) -> str:
    return (
        f"the value of {name} can be seen in this machine's list of processes and in the shell's history; "
        f"export it and give --env {name} alone, or write it into a file for --env-file (chmod 600), "
        "or keep it with `provision secret set`"
    )


def _check(name: str, where: str, *, shown: bool = True) -> None:
    if not is_environment_name(name):
        raise UsageError(f"{where}{f' {name}' if shown else ''}: this is no name of a variable; write NAME=VALUE")
    if name.startswith("PROVISION_"):
        raise UsageError(f"{where}: {name} is a variable that provision sets itself", remedy="Choose another name.")
