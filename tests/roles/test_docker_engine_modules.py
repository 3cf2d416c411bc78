"""The modules of the role docker_engine: daemon.json on a real disk, and what dockerd says of it."""

from __future__ import annotations

import importlib
import json
import stat
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.modules import load, run

SECRET = "hunter2"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that writes daemon.json, on a node whose dockerd cannot check it."""
    module = load("docker_engine", "docker_engine_config")
    monkeypatch.setattr(module, "WRITTEN", str(tmp_path / "written.json"))
    monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda *_args, **_more: None)
    return module


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def apply(config: ModuleType, path: Path, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return run(config, path=str(path), settings=settings, **more)


def test_settings_that_may_hold_secrets_are_for_root_alone(config: ModuleType, tmp_path: Path) -> None:
    """A file with the site's own options, its predecessor, and what is told of it show no value to others."""
    path = tmp_path / "daemon.json"
    path.write_text('{"debug": true}\n')
    settings = {"log-opts": {"splunk-token": SECRET}}

    told = apply(config, path, settings, private=True)
    again = apply(config, path, settings, private=True)

    assert {name.name: mode(name) for name in tmp_path.iterdir()} == {
        "daemon.json": "0600",
        "daemon.json.provision-previous": "0600",
    }
    assert SECRET not in json.dumps(told["diff"])
    assert (told["changed"], again["changed"]) == (True, False)


@pytest.mark.parametrize("present", [0o600, 0o640, 0o644])
def test_a_file_keeps_its_mode(config: ModuleType, tmp_path: Path, present: int) -> None:
    """What a site closed stays closed, and so does the copy of it."""
    path = tmp_path / "daemon.json"
    path.write_text("{}\n")
    path.chmod(present)

    apply(config, path, {"debug": True})

    assert {mode(path), mode(tmp_path / "daemon.json.provision-previous")} == {f"{present:04o}"}


def test_a_new_file_without_secrets_is_readable(config: ModuleType, tmp_path: Path) -> None:
    """Where nothing is to be hidden, other programs can read the file as they are used to."""
    apply(config, tmp_path / "daemon.json", {"debug": True})

    assert mode(tmp_path / "daemon.json") == "0644"


def test_a_broken_file_is_named_but_not_quoted(config: ModuleType, tmp_path: Path) -> None:
    """Line and column are told, the line itself is not; the copy beside is for root alone."""
    path = tmp_path / "daemon.json"
    path.write_text(f'{{\n  "token": "{SECRET}",\n  oops {SECRET}\n}}\n')

    told = apply(config, path, {})

    assert "daemon.json: line 3, column 3:" in told["msg"]
    assert SECRET not in json.dumps(told)
    assert [mode(copy) for copy in tmp_path.glob("*.broken-*")] == ["0600"]


def test_the_way_back_is_the_file_that_docker_last_took(config: ModuleType, tmp_path: Path) -> None:
    """A second change before docker took the first does not replace the last good file."""
    path = tmp_path / "daemon.json"
    path.write_text('{"debug": true}')

    apply(config, path, {"debug": False})
    apply(config, path, {"shutdown-timeout": 3})

    assert (tmp_path / "daemon.json.provision-previous").read_text() == '{"debug": true}'


def test_what_is_wanted_no_more_goes(config: ModuleType, tmp_path: Path) -> None:
    """A key that the last good run wrote and nobody changed goes; what others wrote stays."""
    path = tmp_path / "daemon.json"
    path.write_text('{"debug": true, "icc": false}')
    Path(config.WRITTEN).write_text('{"debug": true}')

    apply(config, path, {"live-restore": True})

    assert json.loads(path.read_text()) == {"icc": False, "live-restore": True}


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"registry-mirrors": ["mirror:5000"]}, "mirror:5000 must be http:// or https://"),
        ({"registry-mirrors": ["https://mirror.example.org/v2"]}, "https://mirror.example.org/v2 must be"),
        ({"registry-mirrors": [f"https://me:{SECRET}@mirror.example.org"]}, "https://mirror.example.org must be"),
        ({"registry-mirrors": "https://mirror.example.org"}, "registry-mirrors must be a list of strings"),
        ({"max-concurrent-downloads": "4"}, "max-concurrent-downloads must be a whole number"),
        ({"live-restore": "yes"}, "live-restore must be true or false"),
        ({"log-opts": {"max-file": 3}}, 'max-file must be a string ("3")'),
    ],
)
def test_what_every_dockerd_refuses_is_not_written(
    config: ModuleType, tmp_path: Path, settings: dict[str, Any], part: str
) -> None:
    """Where dockerd cannot check a file, what no version takes is refused before it is written."""
    path = tmp_path / "daemon.json"
    path.write_text("{}")

    told = apply(config, path, settings)

    assert part in told["msg"]
    assert SECRET not in told["msg"]
    assert path.read_text() == "{}"


def test_what_dockerd_takes_is_not_refused(config: ModuleType, tmp_path: Path) -> None:
    """Mirrors with port and closing slash, numbers and lists of the right kind pass."""
    settings = {"registry-mirrors": ["http://mirror:5000/", "https://10.0.0.1"], "max-concurrent-downloads": 4}

    assert apply(config, tmp_path / "daemon.json", settings)["changed"] is True


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            (
                'level=error msg="Error reconfiguring the daemon: invalid mirror: unsupported scheme '
                '\\"mirror\\" in \\"mirror:5000\\""'
            ),
            'Error reconfiguring the daemon: invalid mirror: unsupported scheme "mirror" in "mirror:5000"',
        ),
        (
            (
                'level=error msg="unable to configure the Docker daemon with file d.json: the '
                "following directives don't match any configuration option: nonsense\""
            ),
            (
                "unable to configure the Docker daemon with file d.json: the following directives don't match any "
                "configuration option: nonsense"
            ),
        ),
        (
            'level=error msg="Error reloading configuration" error="invalid mirror"',
            "Error reloading configuration: invalid mirror",
        ),
        ('level=error msg="Handler for GET /images returned error: no such image"', ""),
        ('time="2026-11-21T15:31:42Z" level=info msg="Reloaded configuration: {}"', ""),
    ],
)
def test_a_refused_reload_is_known_by_what_dockerd_logs(line: str, reason: str) -> None:
    """`systemctl reload` succeeds whatever dockerd thinks of its settings; dockerd's own words tell."""
    service = load("docker_engine", "docker_engine_service")

    assert service.refusal(["Got signal to reload configuration", line]) == reason


def test_what_is_noted_is_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What of the settings is ours can contain secrets: nobody else reads it."""
    service = load("docker_engine", "docker_engine_service")
    monkeypatch.setattr(service, "WRITTEN", str(tmp_path / "provision" / "written.json"))
    docker = object.__new__(service.Docker)
    docker.config, docker.module = str(tmp_path / "daemon.json"), SimpleNamespace(params={"written": {"token": SECRET}})

    docker.settle()

    assert mode(tmp_path / "provision" / "written.json") == "0600"


NVIDIA = {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}}


@pytest.mark.parametrize(
    "there",
    [
        {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}},
        {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
    ],
)
def test_a_runtime_that_others_configured_is_not_said_again(
    config: ModuleType, tmp_path: Path, there: dict[str, Any]
) -> None:
    """By its path, or as nvidia-ctk writes it: the file stays as it is, and nothing of it is ours."""
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({"runtimes": there, "default-runtime": "nvidia"}))

    told = apply(config, path, {**NVIDIA, "live-restore": False})

    assert (told["changed"], told["ours"]) == (False, {})
    assert json.loads(path.read_text())["runtimes"] == there


def test_a_runtime_with_other_arguments_or_another_program_is_written(config: ModuleType, tmp_path: Path) -> None:
    """So is one that was ours before, in whatever words."""
    path = tmp_path / "daemon.json"
    path.write_text('{"runtimes": {"nvidia": {"path": "/opt/other"}, "kata": {"path": "kata"}}}')
    wanted = {"nvidia": NVIDIA["runtimes"]["nvidia"], "kata": {"path": "kata", "runtimeArgs": ["-v"]}}

    told = apply(config, path, {"runtimes": wanted, "live-restore": True})

    assert told["ours"] == {"runtimes": wanted, "live-restore": True}
    assert json.loads(path.read_text()) == told["ours"]


def test_without_anything_to_say_no_file_is_made(config: ModuleType, tmp_path: Path) -> None:
    """Docker does without one."""
    assert apply(config, tmp_path / "daemon.json", {"live-restore": False})["changed"] is False
    assert not (tmp_path / "daemon.json").exists()


@pytest.fixture
def site(config: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ours does with a docker that others started long ago, and whose settings and programs are newer."""
    service = load("docker_engine", "docker_engine_service")
    state = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=1\n"
    monkeypatch.setattr(service.AnsibleModule, "run_command", lambda *_args, **_more: (0, state, ""))
    monkeypatch.setattr(service.Docker, "_start_time", lambda _: 1000.0)
    monkeypatch.setattr(service, "running_jobs", list)
    for name in ("MARK", "WRITTEN"):
        monkeypatch.setattr(service, name, str(tmp_path / name))
    programs = [tmp_path / "dockerd"]
    programs[0].touch()
    path = tmp_path / "daemon.json"
    path.write_text('{"log-driver": "local"}')

    def act(settings: dict[str, Any]) -> str:
        written = apply(config, path, settings)["settings"]
        more = {"programs": list(map(str, programs)), "unit_files": [str(tmp_path / "90-proxy.conf")]}
        return str(run(service, check=True, config=str(path), settings=written, **more)["action"])

    return act


def test_docker_of_others_is_not_restarted_for_what_they_changed(site: Any) -> None:
    """Nobody knows why it was not restarted then; it serves."""
    assert site({"log-driver": "local", "live-restore": False}) == "none"


@pytest.mark.parametrize(("settings", "action"), [(NVIDIA, "reload"), ({"log-driver": "json-file"}, "restart")])
def test_docker_of_others_takes_ours_as_gently_as_it_can(site: Any, settings: dict[str, Any], action: str) -> None:
    """What it can reread is no reason to restart it, and a run that was cut short is finished by the next one."""
    assert [site(settings), site(settings)] == [action, action]


def test_docker_of_others_is_restarted_for_a_program_that_came_with_us(site: Any) -> None:
    """Docker looks for the NVIDIA hook once, when it starts."""
    origin = importlib.import_module("ansible.module_utils.platform_origin")
    origin.note("packages", "transaction 0", {})
    origin.put_json(origin.place("packages", "transaction 0") + ".ours", {"installed": ["nvidia-container-toolkit"]})

    assert site({"log-driver": "local"}) == "restart"
