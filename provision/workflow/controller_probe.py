"""Reads the facts of this machine for `provision doctor`. It creates the state and cache folders, nothing else."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from provision.checks.controller import Agent, ControllerFacts, LabFacts, PrivateFile
from provision.errors import LabError, ProvisionError
from provision.local_files import cache_folder, private_folder, state_folder

DISTRIBUTION = "gpu-provision"
_SECONDS = 30
_PROGRAMS = ("ansible-playbook", "ansible-inventory", "ansible-config")
_CODE = {"git": "git", "rsync": "rsync"}
_NO_FILES = frozenset({"", "prompt", "prompt_ask_vault_pass"})
"""Sources of vault passwords that are no files."""
_VERSION = re.compile(r"\d{1,9}\.\w[\w.+~-]{0,60}")
_NO_AGENT = 2
"""Exit status of ssh-add if no agent answers; 1 means that it has no keys."""
_PORTS = 8
"""Number of local ports that a lab and its forwarded ports use."""


def controller_facts() -> ControllerFacts:
    """Read everything that the checks judge."""
    known_hosts = Path.home() / ".ssh/known_hosts"
    file, keys, invalid = _known_hosts(known_hosts)
    requirements = _requirements()
    missing = next((name for name in _PROGRAMS if not _beside(name).exists()), "")
    ansible, ansible_problem = ("", "") if missing else _ansible()
    vault, vault_problem = _vault()
    folder, data_problem, data_remedy = _data()
    return ControllerFacts(
        python=(sys.version_info[0], sys.version_info[1], sys.version_info[2]),
        python_path=sys.executable,
        packages=None if requirements is None else len(requirements),
        wrong_packages=tuple(_wrong(requirements or ())),
        data_folder=folder,
        data_problem=data_problem,
        data_remedy=data_remedy,
        missing_program=missing,
        ansible=ansible,
        ansible_problem=ansible_problem,
        ssh=_first_line(["ssh", "-V"]),
        agent=_agent(),
        key_folder=str(known_hosts.parent),
        key_files=_key_files(known_hosts.parent),
        known_hosts=file,
        known_keys=keys,
        invalid_lines=invalid,
        vault=vault,
        vault_problem=vault_problem,
        state=_writable(state_folder()),
        cache=_writable(cache_folder()),
        free_bytes=_free(state_folder()),
        port_problem=_port_problem(),
        missing_code_packages=tuple(package for name, package in _CODE.items() if not shutil.which(name)),
        lab=_lab(),
    )


def program_versions() -> dict[str, str]:
    """Return the versions of the programs that verbs start; empty for one that is not installed."""
    lines = {name: _first_line([name, "--version"]) for name in ("git", "rsync", "dockerd", "qemu-system-x86_64")}
    lines["ssh"] = _first_line(["ssh", "-V"])
    matches = {name: _VERSION.search(line) for name, line in lines.items()}
    return {name: match[0] if match else "" for name, match in matches.items()}


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _first_line(words: Sequence[str]) -> str:
    """Return the first line that a program prints; empty if it does not start or fails."""
    done = _run(words)
    lines = (done.stdout + done.stderr).strip().splitlines() if done and done.returncode == 0 else []
    return lines[0][:120] if lines else ""


def _requirements() -> list[str] | None:
    try:
        words = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    return [word for word in words if "extra ==" not in word]


def _wrong(requirements: Sequence[str]) -> Iterator[str]:
    from packaging.requirements import Requirement

    for word in requirements:
        requirement = Requirement(word)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{word} (missing)"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{word} ({version})"


def _data() -> tuple[str, str, str]:
    """Return the folder of the program's files, and what is missing with its remedy."""
    from provision.resources import example_inventory, lock_file, playbooks_folder, roles_folder

    try:
        folders = [roles_folder(), playbooks_folder(), example_inventory(), lock_file()]
    except ProvisionError as error:
        return "", error.message, error.remedy or ""
    return str(folders[0].parent), "", ""


def _beside(program: str) -> Path:
    return Path(sys.executable).parent / program


def _ansible() -> tuple[str, str]:
    """Return the version of ansible-core, or why the program does not start."""
    done = _run([str(_beside("ansible-playbook")), "--version"])
    if done is None or done.returncode:
        return "", (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1] if done else "no answer"
    return done.stdout.partition("[core ")[2].partition("]")[0], ""


def _agent() -> Agent:
    place = os.environ.get("SSH_AUTH_SOCK", "")
    if place and not shutil.which("ssh-add"):
        return Agent(place, program_missing=True)
    done = _run(["ssh-add", "-l"]) if place else None
    if done is None or done.returncode >= _NO_AGENT:
        return Agent(place)
    return Agent(place, answers=True, keys=len(done.stdout.splitlines()) if done.returncode == 0 else 0)


def _key_files(folder: Path) -> tuple[str, ...]:
    """Return the private keys; none if the account cannot enter the folder."""
    try:
        return tuple(str(path) for path in sorted(folder.glob("id_*")) if _is_private_key(path))
    except OSError:
        return ()


def _is_private_key(path: Path) -> bool:
    return path.suffix not in {".pub", ".bak", ".old"} and path.is_file()


def _known_hosts(path: Path) -> tuple[PrivateFile, int, tuple[int, ...]]:
    from provision.connectors.known_hosts import review

    file = _private(path)
    if path.is_dir():
        return replace(file, is_folder=True), 0, ()
    if file.mode is None or file.problem:
        return file, 0, ()
    return file, *review(path)


def _private(path: Path) -> PrivateFile:
    """Return the mode of a file that is read."""
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError as error:
        return PrivateFile(str(path), problem=str(error.strerror))
    except OSError as error:
        return PrivateFile(str(path), 0, str(error.strerror))
    return PrivateFile(str(path), mode, "" if os.access(path, os.R_OK) else "permission denied")


def _vault() -> tuple[tuple[PrivateFile, ...], str]:
    """Return the password files of the operator's Ansible settings, or why the settings cannot be read."""
    from provision.inventory.settings import reading_environment

    try:
        settings = reading_environment()
    except ProvisionError as error:
        return (), error.message
    words = settings.get("ANSIBLE_VAULT_IDENTITY_LIST", "").split(",")
    sources = {word.rpartition("@")[2].strip() for word in [settings.get("ANSIBLE_VAULT_PASSWORD_FILE", ""), *words]}
    return tuple(_private(Path(name).expanduser()) for name in sorted(sources - _NO_FILES)), ""


def _writable(path: Path) -> PrivateFile:
    """Create a folder if it is missing, and return whether it can be written."""
    try:
        if not path.exists():
            private_folder(path)
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        return PrivateFile(str(path), problem=str(error.strerror))
    return PrivateFile(str(path), mode, "" if os.access(path, os.W_OK | os.X_OK) else "permission denied")


def _free(path: Path) -> int:
    """Return the free space of the file system of a folder, or of the nearest parent that this account can reach."""
    for folder in (path, *path.parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return 0


def _port_problem() -> str:
    sockets: list[socket.socket] = []
    try:
        for _ in range(_PORTS):
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(one)
            one.bind(("127.0.0.1", 0))
            one.listen()
    except OSError as error:
        return str(error.strerror)
    finally:
        for one in sockets:
            one.close()
    return ""


def _lab() -> LabFacts:
    from provision.connectors.container import answers
    from provision.lab import engine_process, vm, vm_image
    from provision.lab.services import registry, repository, rpm_repository

    containers = {
        **repository.PROGRAMS,
        **rpm_repository.PROGRAMS,
        registry.PROGRAM: registry.PROGRAM,
        "mmdebstrap": "mmdebstrap",
    }
    containers |= {"dpkg-deb": "dpkg", "git": "git", "ssh-keygen": "openssh-client", "iptables": "iptables"}
    has_sdk = find_spec("docker") is not None
    try:
        host = engine_process.engine_host() if has_sdk else ""
        problem = engine_process.start_problem()
    except LabError as error:
        host, problem = "", error.message
    return LabFacts(
        has_docker_sdk=has_sdk,
        docker_host=host,
        docker_answers=bool(host) and answers(host),
        engine_problem=problem,
        missing_packages=_packages_of(vm_image.missing_programs(containers)),
        missing_vm_packages=_packages_of(vm_image.missing_programs({**vm.PROGRAMS, **vm_image.PROGRAMS})),
        qemu=_first_line(["qemu-system-x86_64", "--version"]),
        has_kvm=os.access("/dev/kvm", os.R_OK | os.W_OK),
    )


def _packages_of(programs: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(set(programs.values())))
