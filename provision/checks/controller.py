"""What the controller needs: facts of this machine in, verdicts out. `provision doctor` shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from provision.components.check import Verdict, fail, passed, skip, warn
from provision.model import CheckResult

OLDEST_PYTHON = (3, 11)
LEAST_DISK_BYTES = 1 << 30
_GIB = 1 << 30
_OTHERS_READ, _OTHERS_WRITE, _PROGRAM = 0o044, 0o022, 0o111


@dataclass(frozen=True)
class PrivateFile:
    """A file or folder that only its owner should be able to change."""

    path: str
    mode: int | None = None
    """Permissions; None if it does not exist."""
    problem: str = ""
    """Why it cannot be used."""
    is_folder: bool = False

    @property
    def shown_mode(self) -> str:
        """The mode as chmod has it."""
        return f"{self.mode or 0:04o}"


@dataclass(frozen=True)
class Agent:
    """The SSH agent."""

    socket: str = ""
    answers: bool = False
    keys: int = 0
    program_missing: bool = False
    """Whether ssh-add, which asks the agent, is not installed."""


@dataclass(frozen=True)
class LabFacts:
    """What the lab needs."""

    has_docker_sdk: bool
    docker_host: str
    docker_answers: bool
    engine_problem: str
    """Why the lab cannot start an engine of its own; empty if it can."""
    missing_packages: tuple[str, ...]
    missing_vm_packages: tuple[str, ...]
    qemu: str
    has_kvm: bool


@dataclass(frozen=True)
class ControllerFacts:
    """The controller, as `provision/workflow/controller_probe.py` reads it."""

    python: tuple[int, int, int]
    python_path: str
    packages: int | None
    """Number of requirements; None if the distribution is unknown."""
    wrong_packages: tuple[str, ...]
    data_folder: str
    data_problem: str
    data_remedy: str
    missing_program: str
    ansible: str
    """Version of ansible-core that the program reports."""
    ansible_problem: str
    ssh: str
    agent: Agent
    key_folder: str
    key_files: tuple[str, ...]
    known_hosts: PrivateFile
    known_keys: int
    invalid_lines: tuple[int, ...]
    vault: tuple[PrivateFile, ...]
    vault_problem: str
    state: PrivateFile
    cache: PrivateFile
    free_bytes: int
    port_problem: str
    missing_code_packages: tuple[str, ...]
    lab: LabFacts


def judge_controller(facts: ControllerFacts) -> tuple[CheckResult, ...]:
    """Return the results of all checks."""
    verdicts = {name: judge(facts) for name, judge in CONTROLLER_CHECKS.items()}
    return tuple(CheckResult(name, each.status, each.reason) for name, each in verdicts.items())


def _python(facts: ControllerFacts) -> Verdict:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < OLDEST_PYTHON:
        return fail("controller.python.old", version=version, oldest=".".join(map(str, OLDEST_PYTHON)))
    return passed("controller.python.ok", version=version)


def _packages(facts: ControllerFacts) -> Verdict:
    if facts.packages is None:
        return skip("controller.packages.unknown")
    if facts.wrong_packages:
        return fail("controller.packages.wrong", requirements=facts.wrong_packages)
    return passed("controller.packages.ok", n=facts.packages)


def _files(facts: ControllerFacts) -> Verdict:
    if facts.data_problem:
        return fail("controller.files.missing", cause=facts.data_problem, remedy=facts.data_remedy)
    return passed("controller.files.ok", folder=facts.data_folder)


def _ansible(facts: ControllerFacts) -> Verdict:
    if facts.missing_program:
        return fail("controller.ansible.missing", program=facts.missing_program, python=facts.python_path)
    if facts.ansible_problem:
        return fail("controller.ansible.broken", program="ansible-playbook", cause=facts.ansible_problem)
    return passed("controller.ansible.ok", version=facts.ansible)


def _ssh(facts: ControllerFacts) -> Verdict:
    return passed("controller.ssh.ok", version=facts.ssh) if facts.ssh else fail("controller.ssh.missing")


def _ssh_agent(facts: ControllerFacts) -> Verdict:
    if facts.agent.program_missing:
        return warn("controller.ssh_agent.no_program")
    if facts.agent.socket and not facts.agent.answers:
        return warn("controller.ssh_agent.unreachable", socket=facts.agent.socket)
    if facts.agent.keys:
        return passed("controller.ssh_agent.keys", n=facts.agent.keys)
    if facts.key_files:
        return passed("controller.ssh_agent.files", files=facts.key_files)
    return warn("controller.ssh_agent.none", folder=facts.key_folder)


def _known_hosts(facts: ControllerFacts) -> Verdict:
    file = facts.known_hosts
    if file.mode is None:
        return warn("controller.known_hosts.missing", path=file.path)
    if file.is_folder:
        return fail("controller.known_hosts.folder", path=file.path)
    if file.problem:
        return fail("controller.known_hosts.unreadable", path=file.path, cause=file.problem)
    if file.mode & _OTHERS_WRITE:
        return fail("controller.known_hosts.writable", path=file.path, mode=file.shown_mode)
    if facts.invalid_lines:
        lines = tuple(map(str, facts.invalid_lines))
        return warn("controller.known_hosts.invalid", path=file.path, lines=lines)
    return passed("controller.known_hosts.ok", path=file.path, n=facts.known_keys)


def _vault(facts: ControllerFacts) -> Verdict:
    if facts.vault_problem:
        return fail("controller.vault.settings", cause=facts.vault_problem)
    for file in facts.vault:
        if file.problem:
            return fail("controller.vault.unreadable", path=file.path, cause=file.problem)
        if (file.mode or 0) & _OTHERS_READ and not (file.mode or 0) & _PROGRAM:
            return fail("controller.vault.readable_by_others", path=file.path, mode=file.shown_mode)
    return passed("controller.vault.ok", n=len(facts.vault)) if facts.vault else skip("controller.vault.none")


def _folders(facts: ControllerFacts) -> Verdict:
    for folder in (facts.state, facts.cache):
        if folder.problem:
            return fail("controller.folders.unwritable", path=folder.path, cause=folder.problem)
        if (folder.mode or 0) & _OTHERS_WRITE:
            return fail("controller.folders.writable", path=folder.path, mode=folder.shown_mode)
    return passed("controller.folders.ok", state=facts.state.path, cache=facts.cache.path)


def _disk(facts: ControllerFacts) -> Verdict:
    judge = passed if facts.free_bytes >= LEAST_DISK_BYTES else warn
    code = "controller.disk.ok" if judge is passed else "controller.disk.low"
    return judge(code, free=round(facts.free_bytes / _GIB, 1), path=facts.state.path)


def _ports(facts: ControllerFacts) -> Verdict:
    if facts.port_problem:
        return fail("controller.ports.none", cause=facts.port_problem)
    return passed("controller.ports.ok")


def _code(facts: ControllerFacts) -> Verdict:
    if facts.missing_code_packages:
        return warn("controller.code.missing", packages=facts.missing_code_packages)
    return passed("controller.code.ok")


def _docker(facts: ControllerFacts) -> Verdict:
    lab = facts.lab
    if not lab.has_docker_sdk:
        return warn("controller.docker.no_sdk")
    if lab.docker_answers:
        return passed("controller.docker.ok", host=lab.docker_host)
    if lab.engine_problem:
        return warn("controller.docker.no_engine", host=lab.docker_host, cause=lab.engine_problem)
    return passed("controller.docker.starts")


def _lab_programs(facts: ControllerFacts) -> Verdict:
    if facts.lab.missing_packages:
        return warn("controller.lab_programs.missing", packages=facts.lab.missing_packages)
    return passed("controller.lab_programs.ok")


def _qemu(facts: ControllerFacts) -> Verdict:
    if facts.lab.missing_vm_packages:
        return warn("controller.qemu.missing", packages=facts.lab.missing_vm_packages)
    return passed("controller.qemu.ok", version=facts.lab.qemu)


def _kvm(facts: ControllerFacts) -> Verdict:
    return passed("controller.kvm.ok") if facts.lab.has_kvm else skip("controller.kvm.none")


CONTROLLER_CHECKS: Mapping[str, Callable[[ControllerFacts], Verdict]] = {
    "controller.python": _python,
    "controller.packages": _packages,
    "controller.files": _files,
    "controller.ansible": _ansible,
    "controller.ssh": _ssh,
    "controller.ssh_agent": _ssh_agent,
    "controller.known_hosts": _known_hosts,
    "controller.vault": _vault,
    "controller.folders": _folders,
    "controller.disk": _disk,
    "controller.ports": _ports,
    "controller.code": _code,
    "controller.docker": _docker,
    "controller.lab_programs": _lab_programs,
    "controller.qemu": _qemu,
    "controller.kvm": _kvm,
}
"""Check id -> its function, in the order of reports."""
