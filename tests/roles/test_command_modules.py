"""The modules that run programs and wait, under the oldest Python of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.interpreters import OLDEST
from tests.support.light_modules import light, run_light


def run(module: str, *, check: bool = False, **arguments: Any) -> tuple[int, dict[str, Any]]:
    """Run a module as a node does."""
    return run_light(OLDEST, light.light_program(module, arguments), check=check)


def test_a_program_gets_its_input_and_returns_its_output() -> None:
    code, answer = run("platform_command", argv=["sh", "-c", "cat; echo wrong >&2"], stdin="one\ntwo")

    assert code == 0
    assert answer == {"changed": True, "rc": 0, "stdout": "one\ntwo", "stderr": "wrong"}


def test_a_failed_program_is_a_failed_task_with_its_output() -> None:
    code, answer = run("platform_command", argv=["sh", "-c", "echo why >&2; exit 3"])

    assert (code, answer["failed"], answer["rc"], answer["stderr"]) == (1, True, 3, "why")
    assert answer["msg"] == "non-zero return code"


@pytest.mark.parametrize("module", ["platform_command", "container_ssh_service"])
def test_check_mode_runs_nothing(tmp_path: Path, module: str) -> None:
    """The task is skipped, as with Ansible's own modules."""
    arguments: dict[str, dict[str, Any]] = {
        "platform_command": {"argv": ["touch", str(tmp_path / "file")]},
        "container_ssh_service": {"container": "c", "address": "127.0.0.1", "port": 1, "timeout": 60},
    }
    code, answer = run(module, check=True, **arguments[module])

    assert (code, answer["skipped"]) == (0, True)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def server() -> Iterator[int]:
    """A port on which a server answers each connection as OpenSSH does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `docker` that records its arguments and its input, and fails for the container `stopped`."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/docker"
    program.write_text(
        f'#!/bin/sh\n{{ echo "$*"; cat; }} >>{tmp_path}/calls\n'
        'case "$*" in *stopped*) echo "is not running" >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path / "calls"


def test_sshd_that_answers_is_reloaded_only_if_its_settings_changed(docker: Path, server: int) -> None:
    place: dict[str, Any] = {"container": "c", "address": "127.0.0.1", "port": server, "timeout": 5}
    unchanged = run("container_ssh_service", **place)
    assert not docker.exists()
    changed = run("container_ssh_service", reload_script="kill -HUP 1", **place)

    assert [(code, answer["changed"]) for code, answer in (unchanged, changed)] == [(0, False), (0, True)]
    assert docker.read_text() == "exec --user 0 --interactive c sh -s\nkill -HUP 1\n"


@pytest.mark.usefixtures("docker")
def test_sshd_that_does_not_answer_is_named() -> None:
    """With the port, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, answer = run("container_ssh_service", container="c", address="127.0.0.1", port=port, timeout=0)
    refused = run("container_ssh_service", container="stopped", reload_script=":", address="x", port=1, timeout=0)

    assert code == refused[0] == 1
    assert f"does not answer on 127.0.0.1 port {port}. Read `docker logs c`" in answer["msg"]
    assert "sshd in the container stopped does not read its settings (is not running)" in refused[1]["msg"]
