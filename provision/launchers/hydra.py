"""Hydra, which starts the ranks of MPICH and of Intel MPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from provision.launchers.base import CommandLine, HostEntry, Launch, Launcher, Reach
from provision.model import Setting

_OURS = "provision"
_FILE_NAME = "machinefile"
_LAST = ("env", "PROVISION_LAST=")
"""``-genvlist`` loses the last variable of the launcher's environment, whichever that is (MPICH 4.0): one of no use."""


def _host_file(entries: Sequence[HostEntry]) -> str:
    """Return a line ``NAME:N`` for each entry; hosts are filled in this order."""
    return "".join(f"{entry.name}:{entry.slots}\n" for entry in entries)


def _identify(first_words: str, text: str) -> int | None:
    return 0 if text.startswith(first_words) else None


def _command_line(more: Sequence[Setting], launch: Launch) -> CommandLine:
    """Return the command line; `more` are the variables of one MPI library alone."""
    settings = [
        _flag("-launcher", "ssh", "logins between containers, with their own keys"),
        _flag("-f", launch.hostfile, "the nodes that can take ranks, with their slots"),
        _flag("-n", str(launch.ranks), "ranks that were asked for, else one for each slot"),
        _flag("-prepend-rank", None, "each line begins with its rank"),
    ]
    if launch.per_node:
        settings.append(_flag("-ppn", "1", "one process on each node, which starts the others itself"))
    if launch.workdir is not None:
        settings.append(_flag("-wdir", launch.workdir, "--workdir, or the folder of --sync"))
    settings += more
    settings.append(_variable("PROVISION_JOB", None, "marks the processes of the job, so that all can be ended"))
    settings += [_variable(name, None, "as it is in the head node's container") for name in launch.environment]
    return CommandLine((*settings, *launch.variables), _login(launch.ssh_config))


def _argv(program: str, settings: Iterable[Setting], command: Iterable[str]) -> list[str]:
    """Return the words. Ranks get the variables that are named and no others of the head node's container."""
    settings = list(settings)
    words = [word for setting in settings if not setting.is_variable for word in setting.words()]
    variables = [setting for setting in settings if setting.is_variable and not setting.nodes]
    stated = [word for one in variables if one.value is not None for word in ("-genv", one.name, one.value)]
    named = ",".join(one.name for one in variables if one.value is None)
    return [*_LAST, program, *words, "-genvlist", named, *stated, *command]


def _login(ssh_config: str) -> dict[str, str]:
    words = f"-F {ssh_config}"
    return {"HYDRA_LAUNCHER_EXTRA_ARGS": words, "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": words}


def _environment(reach: Reach) -> dict[str, str]:
    file = f"{reach.folder}/{_FILE_NAME}"
    login = _login(reach.ssh_config)
    return {
        "HYDRA_HOST_FILE": file,
        "HYDRA_LAUNCHER_EXTRA_ARGS": login.pop("HYDRA_LAUNCHER_EXTRA_ARGS"),
        "I_MPI_HYDRA_HOST_FILE": file,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        **login,
    }


def _flag(flag: str, value: str | None, reason: str) -> Setting:
    return Setting(flag, "", value, _OURS, reason)


def _variable(name: str, value: str | None, reason: str) -> Setting:
    return Setting("-x", name, value, _OURS, reason)


_UNPINNED = _variable("I_MPI_PIN", "0", "ranks start threads, which may not share one core")

LAUNCHERS = tuple(
    Launcher(
        name,
        order=order,
        label=label,
        host_file=_host_file,
        file_name=_FILE_NAME,
        identify=partial(_identify, first_words),
        command_line=partial(_command_line, more),
        argv=_argv,
        environment=_environment,
    )
    for order, name, label, first_words, more in (
        (2, "mpich", "MPICH", "HYDRA build details", ()),
        (3, "intelmpi", "Intel MPI", "Intel(R) MPI Library", (_UNPINNED,)),
    )
)
