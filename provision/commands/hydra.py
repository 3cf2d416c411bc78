"""The command line of Hydra, which starts the ranks of MPICH and of Intel MPI; nothing is executed here."""

from __future__ import annotations

from collections.abc import Iterable

from provision.commands.mpirun import Launch
from provision.model import Setting

__all__ = ["HYDRA", "hydra_argv", "hydra_name", "hydra_reach", "hydra_settings"]

HYDRA = {"mpich": "MPICH", "intelmpi": "Intel MPI"}
"""What it belongs to, by the name of the host file's dialect."""
_FIRST_WORDS = {"HYDRA build details": "mpich", "Intel(R) MPI Library": "intelmpi"}
_OURS = "provision"
_LAST = ("env", "PROVISION_LAST=")
"""``-genvlist`` loses the last variable of the launcher's environment, whichever that is (MPICH 4.0): one of no use."""


def hydra_name(text: str) -> str:
    """Return a key of ``HYDRA`` for what ``mpirun --version`` prints first; empty when it is another launcher."""
    return next((name for words, name in _FIRST_WORDS.items() if text.startswith(words)), "")


def hydra_settings(launch: Launch, name: str) -> tuple[Setting, ...]:
    """Return every flag and variable of the command line, each with its reason; `name` is a key of ``HYDRA``."""
    found = [
        _flag("-launcher", "ssh", "logins between containers, with their own keys"),
        _flag("-f", launch.hostfile, "the nodes that can take ranks, with their slots"),
        _flag("-n", str(launch.ranks), "ranks that were asked for, else one for each slot"),
        _flag("-prepend-rank", None, "each line is told with its rank"),
    ]
    if launch.per_node:
        found.append(_flag("-ppn", "1", "one process on each node, which starts the others itself"))
    if launch.workdir is not None:
        found.append(_flag("-wdir", launch.workdir, "--workdir, or the folder of --sync"))
    if name == "intelmpi":
        found.append(Setting("-x", "I_MPI_PIN", "0", _OURS, "ranks start threads, which may not share one core"))
    found.append(
        Setting("-x", "PROVISION_JOB", None, _OURS, "marks the processes of the job, so that all can be ended")
    )
    found += [Setting("-x", one, None, _OURS, "as it is in the head node's container") for one in launch.environment]
    return (*found, *launch.variables)


def hydra_argv(program: str, settings: Iterable[Setting], command: Iterable[str]) -> list[str]:
    """Return the whole command line.

    Ranks get the variables that are named and no others: those of the head node's container are not theirs.
    """
    settings = list(settings)
    words = [word for setting in settings if not setting.is_variable for word in setting.words()]
    variables = [setting for setting in settings if setting.is_variable and not setting.nodes]
    stated = [word for one in variables if one.value is not None for word in ("-genv", one.name, one.value)]
    named = ",".join(one.name for one in variables if one.value is None)
    return [*_LAST, program, *words, "-genvlist", named, *stated, *command]


def hydra_reach(ssh_config: str = "/etc/provision/ssh/ssh_config") -> dict[str, str]:
    """Return what must stand in the launcher's own environment, so that it logs in with the containers' keys."""
    words = f"-F {ssh_config}"
    return {"HYDRA_LAUNCHER_EXTRA_ARGS": words, "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": words}


def _flag(flag: str, value: str | None, reason: str) -> Setting:
    return Setting(flag, "", value, _OURS, reason)
