"""A job takes along what only the submitter's machine has: keys, kept logins, files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provision.batch.submission import Here, read_words, submission
from provision.errors import UsageError
from provision.jobs.engines.base import Secrets
from provision.model import Secret
from provision.model.job import JobSpec
from provision.workflow.job_inputs import collect_job_inputs
from provision.workflow.stored_secrets import Credential, store


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def taken(*words: str, image: str = "registry.example.com/team/train:1") -> tuple[JobSpec, Secrets]:
    """The request of a command line."""
    line = ["run", "--name=a", f"--image={image}", *words, "x"]
    return collect_job_inputs(submission(read_words(line), Here("/home/me")))


def store_credential(kind: str, server: str, word: str) -> None:
    store(Credential(kind, server, "robot", Secret(word)))


GIT = ("--sync-mode=git", "--sync-source=https://git.example.com/o/r.git")


def test_the_content_of_a_key_is_sent_without_its_file_name(tmp_path: Path) -> None:
    """Another machine may start the job; the key is in no spec."""
    (tmp_path / "key").write_text("PRIVATE\n")
    (tmp_path / "hosts").write_text("git.example.com ssh-ed25519 AAAA\n")
    files = [f"--env=GIT_SYNC_SSH_KEY_FILE={tmp_path}/key", f"--env=GIT_SYNC_SSH_KNOWN_HOSTS_FILE={tmp_path}/hosts"]
    spec, secrets = taken("--sync-mode=git", "--sync-source=git@git.example.com:o/r.git", *files)

    assert spec.sync is not None
    assert spec.sync.options == {"GIT_SYNC_SSH_KNOWN_HOSTS": "git.example.com ssh-ed25519 AAAA\n"}
    assert secrets.sync == {"GIT_SYNC_SSH_KEY": "PRIVATE\n"}
    assert "PRIVATE" not in repr((spec, secrets))


@pytest.mark.row(24)
def test_a_stored_credential_goes_only_to_its_git_server_and_options_override_it() -> None:
    store_credential("git", "git.example.com", "t0ken")

    assert taken(*GIT)[1].sync == {"GIT_SYNC_USERNAME": "robot", "GIT_SYNC_PASSWORD": "t0ken"}
    assert taken("--sync-mode=git", "--sync-source=https://other.example.com/o/r.git")[1].sync == {}
    assert taken(*GIT, "--env=GIT_SYNC_PASSWORD=mine")[1].sync == {"GIT_SYNC_PASSWORD": "mine"}


@pytest.mark.row(24)
def test_credentials_of_the_code_server_are_removed_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job's own secret stays: an inventory's plugin may need it, too."""
    for name in ("GIT_SYNC_PASSWORD", "API_TOKEN"):
        monkeypatch.setenv(name, "marker")
    words = ["run", "--name=a", "--image=i", *GIT, "--env=GIT_SYNC_PASSWORD", "--env=API_TOKEN", "x"]
    _, secrets = collect_job_inputs(submission(read_words(words), Here("/home/me", os.environ)))

    assert secrets.sync["GIT_SYNC_PASSWORD"] == "marker"
    assert ("GIT_SYNC_PASSWORD" in os.environ, "API_TOKEN" in os.environ) == (False, True)


@pytest.mark.parametrize(
    ("setting", "said"),
    [("GIT_SYNC_SSH_KEY_FILE=/none", "cannot be read"), ("GIT_SYNC_WEBHOOK_URL=x", "is not supported")],
)
def test_input_that_would_fail_on_nodes_is_refused_on_the_controller(setting: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        taken(*GIT, f"--env={setting}")


def test_a_stored_registry_credential_is_used_for_the_registry_of_the_image() -> None:
    """With or without --image-pull-secret; without one that is kept nothing is sent."""
    assert taken()[1].registry == {}
    store_credential("registry", "registry.example.com", "pw")

    expected = {"username": "robot", "password": "pw", "server": "registry.example.com"}
    assert taken()[1].registry == taken("--image-pull-secret=registry.example.com")[1].registry == expected
    assert taken(image="other.example.com/train")[1].registry == {}


def test_missing_or_unrelated_registry_credentials_are_refused() -> None:
    """With the command that keeps one."""
    with pytest.raises(UsageError, match="kept under this name") as refused:
        taken("--image-pull-secret=registry.example.com")
    assert "provision secret add registry --server registry.example.com" in str(refused.value.remedy)
    store_credential("registry", "registry.example.com", "pw")
    with pytest.raises(UsageError, match="its own server alone"):
        taken("--image-pull-secret=registry.example.com", image="docker.io/team/train")


def test_a_config_file_is_read_on_the_controller_and_not_part_of_the_spec(tmp_path: Path) -> None:
    """Whatever its mode: its contents travel as secrets do."""
    (tmp_path / "c.bin").write_bytes(b"pa\xffss\r\n")
    spec, secrets = taken(f"--config-file={tmp_path}/c.bin:/etc/c")

    assert secrets.files["/etc/c"].encode("utf-8", "surrogateescape") == b"pa\xffss\r\n"
    assert json.loads(json.dumps(secrets.files)) == secrets.files
    assert "ss" not in repr(secrets)
    assert spec.config_files == (f"{tmp_path}/c.bin:/etc/c",)


def test_a_missing_or_too_large_config_file_is_refused(tmp_path: Path) -> None:
    """With the way for what is large."""
    (tmp_path / "big").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        taken(f"--config-file={tmp_path}/big")
    with pytest.raises(UsageError, match="No such file"):
        taken(f"--config-file={tmp_path}/none")
