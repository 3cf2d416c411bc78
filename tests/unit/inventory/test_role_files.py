"""What is kept of the roles' files: it is used, and never where a file has changed."""

from __future__ import annotations

import os
import time

import pytest

from provision.inventory import role_files

OLD = time.time() - 60


@pytest.fixture
def roles(tmp_path, monkeypatch):
    """Two roles whose files have not been touched for a minute, as far as their mtime says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(role_files, "_last", None)
    monkeypatch.setattr(role_files, "_SETTLED_NS", 0)  # a file's ctime cannot be set back
    for role in ("platform", "web"):
        write(tmp_path / "roles" / role / "tasks/main.yml", "- debug: {msg: web_port}\n")
        write(tmp_path / "roles" / role / "defaults/main.yml", f"{role}_port: 80\n")
        write(tmp_path / "roles" / role / "README.md", "words\n")
    return tmp_path / "roles"


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (OLD, OLD))


def everything(roles, monkeypatch):
    """As another process would see it."""
    monkeypatch.setattr(role_files, "_last", None)
    return role_files.argument_specs(roles), role_files.defaults(roles), role_files.code_of_roles(roles)


def test_cached_documents_match_the_files(roles, monkeypatch):
    """A second process reads no role, and knows the same of them."""
    first = everything(roles, monkeypatch)
    monkeypatch.setattr(role_files, "_made", None)

    assert everything(roles, monkeypatch) == first
    assert first[1] == {"platform_port": 80, "web_port": 80}
    assert "web_port" in first[2]["web"][1]


@pytest.mark.parametrize(
    ("name", "text"),
    [("web/defaults/main.yml", "web_port: 81\n"), ("web/files/new", "x"), ("platform/tasks/main.yml", "- debug:\n")],
    ids=["same size and mtime", "new file", "shared role"],
)
def test_a_changed_file_changes_the_role(roles, monkeypatch, name, text):
    """Whatever is written, also where size and mtime stay: the role is another one."""
    before = everything(roles, monkeypatch)
    write(roles / name, text)
    after = everything(roles, monkeypatch)

    assert after[2]["web"][0] != before[2]["web"][0]
    assert after[2]["web"][0] == role_files._made(roles)["code"]["web"][0]


def test_recently_written_files_are_not_cached(roles, monkeypatch):
    """A file may be written again within the clock's resolution; nothing is kept until it is older."""
    monkeypatch.setattr(role_files, "_SETTLED_NS", 10**12)
    everything(roles, monkeypatch)

    assert not (roles.parent / "cache").exists()


def test_files_without_effect_on_nodes_are_ignored(roles, monkeypatch):
    """A README is no part of a role's code."""
    before = everything(roles, monkeypatch)
    write(roles / "web/README.md", "other words\n")

    assert everything(roles, monkeypatch) == before
