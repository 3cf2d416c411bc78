"""The launcher's command line for a job: every setting with its reason, from the request and the probed networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.commands.mpirun_words import TypedLine
from provision.errors import LaunchError
from provision.jobs.preflight import Container
from provision.jobs.rank_assignment import placed_variables, rank_plan
from provision.jobs.rank_environment import LAUNCHER_WORDS, VARIABLES, RankPlan, rank_variables
from provision.jobs.request import JobRequest, networks_of
from provision.launchers import LAUNCHERS, HostEntry, Launch, Launcher, Reach, fitted, launcher_of
from provision.model import Setting
from provision.profiles import (
    NodeNetwork,
    data_subnets,
    fabric_settings,
    overridden,
    taco_parameters,
    taco_variables,
)

_USR_BIN = ("/usr/bin/mpirun", "/usr/local/bin/mpirun", "/bin/mpirun")


@dataclass(frozen=True)
class Line:
    """A command line, and what has to stand in the launcher's environment beside it."""

    program: str
    settings: tuple[Setting, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Set where the launcher starts; ranks get of it what the settings name."""
    launcher: Launcher

    @property
    def needs_python(self) -> bool:
        """Whether the ranks are started by way of python3."""
        return self.command[: len(LAUNCHER_WORDS)] == LAUNCHER_WORDS

    @property
    def argv(self) -> list[str]:
        """The words."""
        return self.launcher.argv(self.program, self.settings, self.command)


def launch_line(request: JobRequest, container: Container, ranks: int, used: Sequence[HostEntry]) -> Line:
    """Return the line that starts `ranks` ranks on the nodes `used`; `container` is the head node's.

    Raises:
        LaunchError: what is asked for is a line of another MPI than that of the container.
    """
    if not container.launcher.reads_lines and (request.line is not None or request.profile.preset == "taco"):
        label = next(launcher.label for launcher in LAUNCHERS.values() if launcher.reads_lines)
        raise LaunchError(
            f"the container has {container.label}, and "
            + ("your own mpirun line" if request.line else "the preset taco")
            + f" is taken for one of {label}",
            remedy="Give the program alone: then the line is written for the MPI that there is.",
        )
    program = request.mpirun or ("mpirun" if container.mpirun in _USR_BIN else container.mpirun)
    if request.line is not None:
        return _typed(request, request.line, container, ranks, used)
    if request.profile.preset == "taco":
        return _taco(request, container, ranks, used, program)
    names = ["PATH", *(["LD_LIBRARY_PATH"] if container.library_path else [])]
    own = [name for name in request.environment if name not in names]
    variables = overridden(placed_variables(_variables(request, used), request.placement), own)
    plan = rank_plan(request, fitted(used, ranks), variables)
    per_node = launcher_of(request.launcher).per_node
    launch = Launch(
        version=container.version,
        ranks=len(used) if per_node else ranks,
        hostfile=request.hostfile,
        command=_command(request, plan),
        job=request.job,
        networks=networks_of(request.entries, request.networks),
        interfaces=request.interfaces,
        subnets=_subnets(request, used),
        root=container.root,
        environment=tuple(names),
        variables=(*variables, *(_CARRIED if plan else ())),
        workdir=request.directory,
        per_node=per_node,
        program=program,
    )
    carried = rank_variables(plan) if plan else {}
    made = container.launcher.command_line(launch)
    return Line(program, made.settings, launch.command, {**carried, **made.environment}, container.launcher)


_CARRIED = tuple(
    Setting("-x", name, None, "provision", "gives each rank what its node and its place ask for") for name in VARIABLES
)


def _command(request: JobRequest, plan: RankPlan | None) -> tuple[str, ...]:
    if plan is None:
        return request.command
    return (*LAUNCHER_WORDS, *(request.command if launcher_of(request.launcher).shell_line else request.program))


def _variables(request: JobRequest, used: Sequence[HostEntry]) -> tuple[Setting, ...]:
    """Return the settings of NCCL, which a job without GPUs does not use."""
    networks = [request.node_networks[entry.name] for entry in used if entry.name in request.node_networks]
    if not any(entry.kind == "gpu" for entry in used):
        return ()
    return fabric_settings(networks, request.profile.fabric, request.profile.preset)


def _taco(request: JobRequest, container: Container, ranks: int, used: Sequence[HostEntry], program: str) -> Line:
    networks = _known(request, used)
    alone = [entry.name for entry in used] == [request.head]
    variables = overridden(taco_variables(networks, ranks, request.profile), request.environment)
    if not container.library_path and "LD_LIBRARY_PATH" not in request.environment:
        variables = tuple(setting for setting in variables if setting.name != "LD_LIBRARY_PATH")
    launch = Launch(
        container.version, ranks, request.command, root=container.root, variables=variables, program=program
    )
    hosts = () if alone else tuple((entry.name, entry.slots) for entry in used)
    settings = container.launcher.typed_settings(launch, hosts, taco_parameters(networks, ranks), "preset taco")
    if request.directory is not None:
        folder = Setting("--wdir", "", request.directory, "--workdir", "where every rank starts")
        settings = (*settings, folder)
    environment = container.launcher.environment(Reach(job=request.job))
    return Line(program, settings, request.command, environment, container.launcher)


def _typed(request: JobRequest, line: TypedLine, container: Container, ranks: int, used: Sequence[HostEntry]) -> Line:
    """The user's line as it is, and before its flags what it needs to reach the nodes and does not say."""
    ours = []
    if container.root and not line.has("allow-run-as-root"):
        ours.append(Setting("--allow-run-as-root", "", None, "provision", "the container's user is root"))
    if not line.names_hosts:
        ours.append(Setting("--hostfile", "", request.hostfile, "provision", "your command names no hosts"))
    if not line.counts_ranks:
        ours.append(Setting("-np", "", str(ranks), "provision", "your command does not say how many"))
    own = [name for name in request.environment if name not in line.variables]
    named = [Setting("-x", name, None, "--env", "given by you") for name in own]
    folder = [Setting("--wdir", "", request.directory, "--workdir", "where every rank starts")]
    settings = (*ours, *(folder if request.directory else []), *line.settings, *named)
    environment = container.launcher.environment(_reach(request, line, used))
    return Line(line.program, settings, line.command, environment, container.launcher)


def _reach(request: JobRequest, line: TypedLine, used: Sequence[HostEntry]) -> Reach:
    """Return how nodes are reached; interfaces only where the line names none, as the line has precedence."""
    if any(parameter.name.endswith(("_if_include", "_if_exclude")) for parameter in line.parameters):
        return Reach(job=request.job)
    return Reach(job=request.job, interfaces=request.interfaces, subnets=_subnets(request, used))


def _subnets(request: JobRequest, used: Sequence[HostEntry]) -> tuple[str, ...]:
    return data_subnets((request.head, *(entry.name for entry in used)), request.node_networks)


def _known(request: JobRequest, used: Sequence[HostEntry]) -> list[NodeNetwork]:
    missing = [entry.name for entry in used if entry.name not in request.node_networks]
    if missing:
        raise LaunchError(f"the network of {', '.join(missing)} is not known", remedy="Run: provision verify")
    return [request.node_networks[entry.name] for entry in used]
