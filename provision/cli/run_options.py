"""Parse the options of ``provision run``. Nothing here connects to a node."""

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


def ranks(text: str) -> int:
    """Parse a number of ranks; ``p`` is the rest of mpirun's flag ``-np 4``."""
    import typer

    try:
        return int(text)
    except ValueError:
        more = "; mpirun's -np 4 is -n 4 here" if text == "p" else ""
        raise typer.BadParameter(f"not a number of ranks{more}") from None


def profile_options(preset: str, fabric: str, *, lightcc: bool, gdr: bool) -> ProfileOptions:
    """Return the profile options; UsageError for invalid or contradictory ones."""
    from provision.profiles import FABRICS, PRESETS, ProfileOptions

    if preset and preset not in PRESETS:
        raise UsageError(f"--preset {preset}: unknown preset", remedy=f"Choose {', '.join(PRESETS)}.")
    if fabric and fabric not in FABRICS:
        raise UsageError(f"--fabric {fabric}: unknown fabric", remedy=f"Choose {', '.join(FABRICS)}.")
    if preset == "taco" and fabric:
        raise UsageError("--preset taco requires RoCE", remedy="Omit --fabric or the preset.")
    if lightcc and preset != "taco":
        raise UsageError("--lightcc requires --preset taco", remedy="Or use --preset horovod-lightcc.")
    if gdr and preset != "taco":
        raise UsageError(
            "--gdr requires --preset taco",
            remedy="Without the preset GPUDirect RDMA is used where the nodes have it; --fabric roce-gdr requires it.",
        )
    return ProfileOptions(preset, fabric, lightcc, gdr)


def rank_options(launcher: str, placement: Path | None, *, own_gpus: bool, gputopology: bool) -> RankOptions:
    """Return the launcher and placement of the ranks; UsageError for unknown launchers and invalid placements."""
    from provision.launchers import launcher_names
    from provision.launchers.placement_file import read_placement

    if launcher not in launcher_names():
        raise UsageError(f"--launcher {launcher}: unknown launcher", remedy=f"Choose {', '.join(launcher_names())}.")
    if own_gpus and placement is None and not gputopology:
        raise UsageError("--own-gpus requires a placement", remedy="Add --placement FILE, or --gputopology.")
    if placement is None:
        return RankOptions(launcher, own_gpus=own_gpus)
    try:
        text = placement.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--placement {placement}: cannot be read: {error}") from error
    return RankOptions(launcher, tuple(read_placement(text)), own_gpus)


def refuse_modes(*, offline: bool, dry_run: bool, explain: bool, as_json: bool) -> None:
    """Raise UsageError for modes that require nodes, or cannot print JSON."""
    if offline and not (dry_run or explain):
        raise UsageError("--offline connects to no node and cannot start a job", remedy="Add --dry-run or --explain.")
    if as_json and not explain:
        raise UsageError("--json requires run --explain", remedy="Omit --json: the output of a job is its own.")


_OURS = frozenset({"PROVISION_JOB", "PROVISION_LAUNCHER", "PROVISION_NODE", "PROVISION_RANKS"})
"""Variables that identify jobs and assign ranks."""


def environment(words: Sequence[str]) -> dict[str, Secret]:
    """Parse ``K=V``, or ``K`` with the value from this process's environment, so that secrets need not be typed."""
    from provision.commands.shell import is_environment_name
    from provision.model import Secret
    from provision.profiles import check_light

    values: dict[str, Secret] = {}
    for word in words:
        name, given, value = word.partition("=")
        if not is_environment_name(name) or name in _OURS:
            raise UsageError(f"--env {name}: not a valid name of a variable", remedy="Use --env NAME=VALUE.")
        if not given and name not in os.environ:
            raise UsageError(
                f"--env {name}: {name} is not set here", remedy=f"export {name}, or use --env {name}=VALUE"
            )
        values[name] = Secret(value if given else os.environ[name])
    check_light({name: value.reveal() for name, value in values.items()})
    return values
