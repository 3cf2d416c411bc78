"""Definitions that node programs and the controller both contain are equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.batch.names import attempt_folder
from provision.commands.docker import NO_LOGIN, login_file
from provision.node.jobs import prepare as node_prepare
from provision.node.jobs import records as node_records
from provision.workflow.stored_secrets import server_of_image


def test_a_registry_that_requires_a_credential_is_detected_by_the_same_pattern():
    """So that a job and ``image pull`` give the same remedy."""
    assert node_prepare.NO_LOGIN == NO_LOGIN


def test_node_and_controller_use_the_same_folder_of_an_attempt():
    assert node_records.attempt_folder("mine", 2) == attempt_folder("mine", 2)


@pytest.mark.parametrize(
    "image", ["ubuntu", "me/mine:1", "localhost/mine", "10.1.2.3:5000/a/b@sha256:00", "registry.example.com/a"]
)
def test_node_and_controller_write_the_same_docker_configuration_for_a_registry(image, tmp_path, monkeypatch):
    """With the same server name."""
    monkeypatch.setattr(node_prepare, "RUN", str(tmp_path))
    login = {"server": server_of_image(image), "username": "me", "password": "hunter2"}
    puller = node_prepare.Puller("mine", "n1", {"registry": login})

    settings = Path(puller.login(image), "config.json")

    assert json.loads(settings.read_text()) == json.loads(login_file(**login))
    assert settings.stat().st_mode & 0o077 == 0
