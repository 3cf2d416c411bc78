"""Environment variables of a job: visible ones, secrets, and those for fetching code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from provision.batch.code import is_sync_name, is_sync_secret, short_name
from provision.commands.shell import is_environment_name
from provision.errors import UsageError
from provision.model import Secret
from provision.profiles import check_light

IsSecret = Callable[[str, str], bool]
"""Whether a variable with this name and value is secret."""

_REVISIONS = ("REV", "REF", "BRANCH")
"""Settings of git-sync; the first one that is set is checked out."""
_DECIDED = ("REPO", "DEST", "ROOT", "ONE_TIME")
"""Settings of git-sync that --sync-source and the location of the code replace."""


@dataclass(frozen=True)
class Variable:
    """An environment variable and its origin."""

    name: str
    value: str
    is_argument: bool = False
    """Whether its value was on the command line."""


@dataclass(frozen=True)
class Environment:
    """Environment variables by their use."""

    plain: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, Secret] = field(default_factory=dict)
    sync: Mapping[str, Secret] = field(default_factory=dict)
    """Secrets for fetching code."""
    sync_options: Mapping[str, str] = field(default_factory=dict)
    """Other settings for fetching code; names of files are not secret, their contents may be."""
    revision: str = ""
    notes: tuple[str, ...] = ()


def parse_arguments(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[Variable]:
    """Parse ``K=V``, and ``K`` with its value in `environ`, so that command lines need not contain secrets.

    Raises:
        UsageError: an invalid name, or one that is not set.
    """
    for word in words:
        name, equals, value = word.partition("=")
        _check(name, "--env")
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: {name} is not set", remedy=f"Export {name}, or write --env {name}=VALUE.")
        yield Variable(name, value if equals else environ[name], bool(equals))


def parse_file(text: str, where: str, environ: Mapping[str, str]) -> Iterator[Variable]:
    """Parse a file of ``K=V`` and ``K`` lines in docker's format: no quotes, ``#`` starts a comment line.

    Raises:
        UsageError: an invalid line; it is not shown, because it may be a secret.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        name, equals, value = word.partition("=")
        _check(name, f"{where}:{number}", shown=False)
        if not equals and name not in environ:
            raise UsageError(f"{where}:{number}: {name} is not set", remedy="Write NAME=VALUE, or export it.")
        yield Variable(name, value if equals else environ[name])


def classify(variables: Sequence[Variable], is_secret: IsSecret) -> Environment:
    """Classify variables as visible, secret, or settings of git-sync, which the training does not get.

    Later variables replace earlier ones of the same name.

    Raises:
        UsageError: an unknown variable of LightCC, or an invalid value of one.
    """
    last = {variable.name: variable for variable in variables}
    environment = Environment({}, {}, {}, {})
    notes: list[str] = []
    for name, variable in last.items():
        sync = is_sync_name(name)
        hidden = is_sync_secret(name) if sync else is_secret(name, variable.value)
        if hidden and variable.is_argument and short_name(name) != "USERNAME":
            notes.append(_visibility_warning(name))
        if sync and short_name(name) in _DECIDED:
            notes.append(f"{name} is not used: --sync-source is fetched into WORKDIR/code")
        elif sync and short_name(name) in _REVISIONS:
            continue
        else:
            _kind(environment, sync=sync, hidden=hidden)[name] = Secret(variable.value) if hidden else variable.value
    check_light(environment.plain)
    given = {short_name(name): variable.value for name, variable in last.items() if is_sync_name(name)}
    revision = next((given[name] for name in _REVISIONS if name in given), "")
    return replace(environment, revision=revision, notes=tuple(notes))


def _kind(environment: Environment, *, sync: bool, hidden: bool) -> dict[str, Any]:
    """Return the mapping for a variable of this kind."""
    if sync:
        return cast("dict[str, Any]", environment.sync if hidden else environment.sync_options)
    return cast("dict[str, Any]", environment.secret if hidden else environment.plain)


def _visibility_warning(name: str) -> str:
    return (
        f"the value of {name} is visible in the process list and in the history of the shell; "
        f"export it and write --env {name}, or write it into a file for --env-file (chmod 600), "
        "or store it with `provision secret add`"
    )


def _check(name: str, where: str, *, shown: bool = True) -> None:
    if not is_environment_name(name):
        raise UsageError(f"{where}{f' {name}' if shown else ''}: invalid name of a variable; write NAME=VALUE")
    if name.startswith("PROVISION_"):
        raise UsageError(f"{where}: {name} is a variable that provision sets", remedy="Choose another name.")
