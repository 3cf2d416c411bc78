"""From what was typed behind ``provision run`` to what is asked for; nothing here connects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from provision.errors import UsageError
from provision.workflow.job_requests import RankOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from provision.model import Secret
    from provision.profiles import ProfileOptions

__all__ = ["environment", "ranks", "refuse_modes", "seats", "wish"]


def ranks(text: str) -> int:
    """Return a number of ranks as it was typed; ``p`` is what ``-np 4`` leaves of mpirun's flag."""
    import typer

    try:
        return int(text)
    except ValueError:
        more = "; mpirun's -np 4 is -n 4 here" if text == "p" else ""
        raise typer.BadParameter(f"not a number of ranks{more}") from None


def wish(preset: str, fabric: str, *, lightcc: bool, gdr: bool) -> ProfileOptions:
    """Return what is asked for beyond the program; UsageError for words that mean nothing, or not together."""
    from provision.profiles import FABRICS, PRESETS, ProfileOptions

    if preset and preset not in PRESETS:
        raise UsageError(f"--preset {preset}: unknown preset", remedy=f"Choose {', '.join(PRESETS)}.")
    if fabric and fabric not in FABRICS:
        raise UsageError(f"--fabric {fabric}: unknown fabric", remedy=f"Choose {', '.join(FABRICS)}.")
    if preset == "taco" and fabric:
        raise UsageError("--preset taco is for RoCE alone", remedy="Leave --fabric out, or the preset.")
    if lightcc and preset != "taco":
        raise UsageError("--lightcc belongs to --preset taco", remedy="Or use --preset horovod-lightcc.")
    if gdr and preset != "taco":
        raise UsageError(
            "--gdr belongs to --preset taco",
            remedy="Without the preset GPUDirect RDMA is used where the nodes have it; --fabric roce-gdr insists.",
        )
    return ProfileOptions(preset, fabric, lightcc, gdr)


def seats(launcher: str, placement: Path | None, *, own_gpus: bool, gputopology: bool) -> RankOptions:
    """Return what is asked for of the ranks; UsageError for what there is not, or a file that is no placement."""
    from provision.launchers import launcher_names
    from provision.launchers.placement_file import read_placement

    if launcher not in launcher_names():
        raise UsageError(f"--launcher {launcher}: unknown launcher", remedy=f"Choose {', '.join(launcher_names())}.")
    if own_gpus and placement is None and not gputopology:
        raise UsageError(
            "--own-gpus needs a placement to know them by", remedy="Add --placement FILE, or --gputopology."
        )
    if placement is None:
        return RankOptions(launcher, own_gpus=own_gpus)
    try:
        text = placement.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--placement {placement}: it cannot be read: {error}") from error
    return RankOptions(launcher, tuple(read_placement(text)), own_gpus)


def refuse_modes(*, offline: bool, dry_run: bool, explain: bool, as_json: bool) -> None:
    """Raise UsageError when what is asked for cannot be done without nodes, or cannot be JSON."""
    if offline and not (dry_run or explain):
        raise UsageError("--offline starts nothing, for it connects to no node", remedy="Add --dry-run or --explain.")
    if as_json and not explain:
        raise UsageError("--json is for run --explain", remedy="The output of a job is the job's own.")


_OURS = frozenset({"PROVISION_JOB", "PROVISION_LAUNCHER", "PROVISION_NODE", "PROVISION_RANKS"})
"""Variables by which jobs are told from each other, and ranks get their places."""


def environment(words: Sequence[str]) -> dict[str, Secret]:
    """``K=V`` as it stands; ``K`` from this process's environment, so that secrets need not be typed."""
    from provision.commands.shell import is_environment_name
    from provision.model import Secret
    from provision.profiles import check_light

    values: dict[str, Secret] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not is_environment_name(name) or name in _OURS:
            raise UsageError(
                f"--env {name}: not a name of a variable that can be set", remedy="Write --env NAME=VALUE."
            )
        if not given and name not in os.environ:
            raise UsageError(
                f"--env {name}: {name} is not set here", remedy=f"export {name}, or give --env {name}=VALUE"
            )
        values[name] = Secret(value if given else os.environ[name])
    check_light({name: value.reveal() for name, value in values.items()})
    return values
