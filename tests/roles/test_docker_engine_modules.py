"""The modules of the role docker_engine, with a real daemon.json and replies of dockerd."""

from __future__ import annotations

import importlib
import json
import stat
import subprocess
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
    monkeypatch.setattr(module, "LAST_SETTINGS", str(tmp_path / "written.json"))
    monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda *_args, **_more: None)
    return module


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def apply(config: ModuleType, path: Path, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return run(config, path=str(path), settings=settings, **more)


def test_settings_that_can_contain_secrets_are_readable_by_root_only(config: ModuleType, tmp_path: Path) -> None:
    """The file, its backup and the diff of the module show no value to other users."""
    path = tmp_path / "daemon.json"
    path.write_text('{"debug": true}\n')
    settings = {"log-opts": {"splunk-token": SECRET}}

    result = apply(config, path, settings, private=True)
    again = apply(config, path, settings, private=True)

    assert {name.name: mode(name) for name in tmp_path.iterdir()} == {
        "daemon.json": "0600",
        "daemon.json.provision-previous": "0600",
    }
    assert SECRET not in json.dumps(result["diff"])
    assert (result["changed"], again["changed"]) == (True, False)


@pytest.mark.parametrize("present", [0o600, 0o640, 0o644])
def test_the_mode_of_a_file_is_preserved(config: ModuleType, tmp_path: Path, present: int) -> None:
    """The permissions of a restricted file and of its copy stay restricted."""
    path = tmp_path / "daemon.json"
    path.write_text("{}\n")
    path.chmod(present)

    apply(config, path, {"debug": True})

    assert {mode(path), mode(tmp_path / "daemon.json.provision-previous")} == {f"{present:04o}"}


def test_a_new_file_without_secrets_is_readable(config: ModuleType, tmp_path: Path) -> None:
    """Without secrets, other programs can read the file."""
    apply(config, tmp_path / "daemon.json", {"debug": True})

    assert mode(tmp_path / "daemon.json") == "0644"


def test_an_invalid_file_is_reported_without_its_content(config: ModuleType, tmp_path: Path) -> None:
    """The message contains line and column, not the line itself; only root can read the backup."""
    path = tmp_path / "daemon.json"
    path.write_text(f'{{\n  "token": "{SECRET}",\n  oops {SECRET}\n}}\n')

    result = apply(config, path, {})

    assert "daemon.json: line 3, column 3:" in result["msg"]
    assert SECRET not in json.dumps(result)
    assert [mode(copy) for copy in tmp_path.glob("*.broken-*")] == ["0600"]


def test_the_backup_is_the_last_file_that_docker_loaded(config: ModuleType, tmp_path: Path) -> None:
    """A second change before docker took the first does not replace the last good file."""
    path = tmp_path / "daemon.json"
    path.write_text('{"debug": true}')

    apply(config, path, {"debug": False})
    apply(config, path, {"shutdown-timeout": 3})

    assert (tmp_path / "daemon.json.provision-previous").read_text() == '{"debug": true}'


def test_keys_that_are_no_longer_desired_are_removed(config: ModuleType, tmp_path: Path) -> None:
    """An unchanged key of the last successful run is removed; other keys are preserved."""
    path = tmp_path / "daemon.json"
    path.write_text('{"debug": true, "icc": false}')
    Path(config.LAST_SETTINGS).write_text('{"debug": true}')

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
def test_settings_that_every_dockerd_rejects_are_not_written(
    config: ModuleType, tmp_path: Path, settings: dict[str, Any], part: str
) -> None:
    """If dockerd cannot check a file, settings that no version accepts are refused before the file is written."""
    path = tmp_path / "daemon.json"
    path.write_text("{}")

    result = apply(config, path, settings)

    assert part in result["msg"]
    assert SECRET not in result["msg"]
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "settings", "conflicts"),
    [
        ("--log-driver=journald", {"log-driver": "json-file"}, "log-driver"),
        ("--log-opt max-size=1m", {"log-opts": {"max-size": "2m"}, "debug": True}, "log-opts"),
        ("--insecure-registry r:5000", {"insecure-registries": []}, "insecure-registries"),
        ("-g /srv/docker", {"data-root": "/b"}, "data-root"),
        ("-H tcp://127.0.0.1:2375", {"hosts": []}, "hosts"),
        ("--add-runtime a=b", {"runtimes": {}}, "runtimes"),
        ("-H fd:// --containerd=/run/containerd/containerd.sock", {"log-driver": "json-file"}, ""),
    ],
)
def test_settings_that_the_command_line_of_dockerd_also_has_are_not_written(
    config: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    settings: dict[str, Any],
    conflicts: str,
) -> None:
    """dockerd would stop at a restart, and not start again."""
    dockerd = subprocess.Popen(["sh", "-c", "echo; read answer; exit", *words.split()], stdin=-1, stdout=-1)
    assert dockerd.stdout is not None
    dockerd.stdout.readline()
    monkeypatch.setattr(
        config.AnsibleModule, "get_bin_path", lambda _, name, **_more: name if name == "systemctl" else None
    )
    monkeypatch.setattr(config.AnsibleModule, "run_command", lambda *_: (0, f"MainPID={dockerd.pid}\n", ""))
    path = tmp_path / "daemon.json"
    try:
        result = apply(config, path, settings)
    finally:
        dockerd.communicate()

    assert (f": {conflicts} would be set" in result.get("msg", "")) == bool(conflicts), result
    assert path.exists() != bool(conflicts)


def test_settings_that_dockerd_accepts_are_written(config: ModuleType, tmp_path: Path) -> None:
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
def test_a_failed_reload_is_detected_in_the_log_of_dockerd(line: str, reason: str) -> None:
    """`systemctl reload` succeeds even if dockerd rejects its settings; only its log shows that."""
    service = load("docker_engine", "docker_engine_service")

    assert service.refusal_reason(["Got signal to reload configuration", line]) == reason


def test_recorded_settings_are_readable_by_root_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of managed keys contains settings."""
    service = load("docker_engine", "docker_engine_service")
    monkeypatch.setattr(service, "LAST_SETTINGS", str(tmp_path / "provision" / "written.json"))
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
def test_a_runtime_that_is_already_configured_is_not_added(
    config: ModuleType, tmp_path: Path, there: dict[str, Any]
) -> None:
    """With its path, or in the form of nvidia-ctk: the file is unchanged, and no key of it is managed."""
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({"runtimes": there, "default-runtime": "nvidia"}))

    result = apply(config, path, {**NVIDIA, "live-restore": False})

    assert (result["changed"], result["managed"]) == (False, {})
    assert json.loads(path.read_text())["runtimes"] == there


def test_a_runtime_with_different_arguments_or_program_is_written(config: ModuleType, tmp_path: Path) -> None:
    """The same holds for a runtime that the role wrote in another form."""
    path = tmp_path / "daemon.json"
    path.write_text('{"runtimes": {"nvidia": {"path": "/opt/other"}, "kata": {"path": "kata"}}}')
    wanted = {"nvidia": NVIDIA["runtimes"]["nvidia"], "kata": {"path": "kata", "runtimeArgs": ["-v"]}}

    result = apply(config, path, {"runtimes": wanted, "live-restore": True})

    assert result["managed"] == {"runtimes": wanted, "live-restore": True}
    assert json.loads(path.read_text()) == result["managed"]


def test_no_file_is_created_without_settings(config: ModuleType, tmp_path: Path) -> None:
    """Docker does without one."""
    assert apply(config, tmp_path / "daemon.json", {"live-restore": False})["changed"] is False
    assert not (tmp_path / "daemon.json").exists()


@pytest.fixture
def site(config: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the action for a pre-existing docker whose settings and programs are newer than its start."""
    service = load("docker_engine", "docker_engine_service")
    state = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=1\n"
    monkeypatch.setattr(service.AnsibleModule, "run_command", lambda *_args, **_more: (0, state, ""))
    monkeypatch.setattr(service.Docker, "_start_time", lambda _: 1000.0)
    monkeypatch.setattr(service, "running_jobs", list)
    for name in ("START_RECORD", "LAST_SETTINGS"):
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


def test_pre_existing_docker_is_not_restarted_for_changes_by_others(site: Any) -> None:
    """The reason why it was not restarted is unknown."""
    assert site({"log-driver": "local", "live-restore": False}) == "none"


@pytest.mark.parametrize(("settings", "action"), [(NVIDIA, "reload"), ({"log-driver": "json-file"}, "restart")])
def test_pre_existing_docker_reloads_our_settings_without_a_restart_if_possible(
    site: Any, settings: dict[str, Any], action: str
) -> None:
    """Reloadable settings require no restart, and a run completes an earlier, interrupted run."""
    assert [site(settings), site(settings)] == [action, action]


FEATURE = {"features": {"containerd-snapshotter": True}}


@pytest.mark.parametrize(
    ("before", "after", "stopped"),
    [
        ({}, FEATURE, True),
        ({"data-root": "/raid"}, {}, True),
        (FEATURE, {**FEATURE, "log-driver": "local"}, False),
        ({"features": {"buildkit": True}}, {"features": {"buildkit": False}}, False),
    ],
)
def test_containers_are_stopped_before_docker_loses_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    after: dict[str, Any],
    stopped: bool,  # noqa: FBT001
) -> None:
    """With another image store, docker does not know its containers; with live-restore they would run on."""
    service = load("docker_engine", "docker_engine_service")
    commands: list[list[str]] = []

    def answer(words: list[str]) -> tuple[int, str, str]:
        commands.append(words)
        return 0, "c1\nc2\n" if words[1] == "ps" else "", ""

    docker = object.__new__(service.Docker)
    docker.config, docker.enabled, docker.needs_daemon_reload = str(tmp_path / "daemon.json"), True, False
    docker.module = SimpleNamespace(params={"settings": after}, run_command=answer)
    monkeypatch.setattr(docker, "running_settings", lambda: before)
    monkeypatch.setattr(docker, "_record_start", lambda: None)

    docker.perform("restart")

    ends = [["docker", "ps", "--quiet"], ["docker", "stop", "c1", "c2"]] if stopped else []
    assert commands == [
        *ends,
        ["systemctl", "reset-failed", "docker.service", "docker.socket"],
        ["systemctl", "restart", "docker.service"],
    ]


def test_another_image_store_requires_a_restart(site: Any) -> None:
    """A reload confirms the setting, and the engine goes on with the store that it has."""
    assert site({"log-driver": "local", **FEATURE}) == "restart"


def test_pre_existing_docker_is_restarted_for_a_newly_installed_hook(site: Any) -> None:
    """Docker searches the NVIDIA hook only when it starts."""
    origin = importlib.import_module("ansible.module_utils.platform_origin")
    origin.record("packages", "transaction 0", {})
    origin.write_private_json(
        origin.record_path("packages", "transaction 0") + ".ours", {"installed": ["nvidia-container-toolkit"]}
    )

    assert site({"log-driver": "local"}) == "restart"
