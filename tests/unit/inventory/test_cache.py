"""What of an inventory is kept, and what never is; Ansible's answers are counted, not replaced."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from provision.inventory import cache, listing

DOCUMENT = {"_meta": {"hostvars": {"a": {"x": 1}}}, "all": {"hosts": ["a"]}}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """A home and a working folder of this test's own, without any setting of Ansible."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "home")


@pytest.fixture
def inventory(tmp_path) -> Path:
    """A folder with a host and group variables."""
    (tmp_path / "inventory/group_vars").mkdir(parents=True)
    (tmp_path / "inventory/hosts.yml").write_text("all: {hosts: {a: }}\n")
    (tmp_path / "inventory/group_vars/all.yml").write_text("x: 1\n")
    return tmp_path / "inventory"


def folder(tmp_path) -> Path:
    return tmp_path / "cache/provision/inventory"


def test_cached_answers_are_read_and_private(inventory, tmp_path):
    """The same inventory has the same key; folder and file are the operator's alone."""
    key = cache.key_of(inventory)
    cache.write(key, DOCUMENT, "[WARNING]: w")

    assert cache.key_of(inventory) == key
    assert cache.read(key) == (DOCUMENT, "[WARNING]: w")
    assert folder(tmp_path).stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in folder(tmp_path).iterdir()] == [0o600]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "hosts.yml").write_text("all: {hosts: {b: }}\n"),
        lambda path: (path / "group_vars/all.yml").write_text("x: 2\n"),
        lambda path: (path / "group_vars/web.yml").write_text("x: 2\n"),
        lambda path: (path / "group_vars/all.yml").rename(path / "group_vars/other.yml"),
        lambda path: (path / "group_vars/all.yml").unlink(),
        lambda path: [(path / "host_vars").mkdir(), (path / "host_vars/a").write_text("y: 1\n")],
        lambda _: Path("ansible.cfg").write_text("[defaults]\nhash_behaviour = merge\n"),
        lambda _: Path("~/.ansible.cfg").expanduser().write_text("[defaults]\nhash_behaviour = merge\n"),
        lambda _: os.environ.update(ANSIBLE_HASH_BEHAVIOUR="merge"),
    ],
    ids=["hosts", "value", "new file", "renamed", "gone", "host_vars", "ansible.cfg", "own ansible.cfg", "environment"],
)
def test_every_input_of_the_inventory_changes_the_cache_key(inventory, change, monkeypatch):
    """A changed source, setting or variable of the environment is asked of Ansible anew."""
    monkeypatch.setenv("ANSIBLE_HASH_BEHAVIOUR", "replace")
    before = cache.key_of(inventory)
    change(inventory)

    assert before
    assert cache.key_of(inventory) not in (before, None)


def test_variable_folders_beside_an_inventory_file_are_part_of_the_key(inventory):
    """group_vars and host_vars of the file's folder are its sources too."""
    before = cache.key_of(inventory / "hosts.yml")
    (inventory / "group_vars/all.yml").write_text("x: 2\n")

    assert cache.key_of(inventory / "hosts.yml") != before


def _script(path: Path) -> None:
    (path / "more.py").write_text("#!/bin/sh\necho '{}'\n")
    (path / "more.py").chmod(0o755)


def _pipe(path: Path) -> None:
    os.mkfifo(path / "more.yml")


def _plugin_folder(_path: Path) -> None:
    plugins = Path("~/.ansible/plugins/vars").expanduser()
    plugins.mkdir(parents=True)
    (plugins / "mine.py").write_text("")


@pytest.mark.parametrize(
    "spoil",
    [
        _script,
        _pipe,
        _plugin_folder,
        lambda path: (path / "cloud.yml").write_text("plugin: amazon.aws.aws_ec2\n"),
        lambda path: (path / "cloud.json").write_text('{"plugin": "x"}'),
        lambda path: (path / "group_vars/all.yml").write_text("pw: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  61\n"),
        lambda path: (path / "group_vars/vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n61\n"),
        lambda path: (path / "linked").symlink_to("/etc"),
        lambda path: (path / "lost").symlink_to("/nowhere"),
        lambda _: Path("ansible.cfg").write_text("[defaults]\nvars_plugins = ./mine\n"),
        lambda _: Path("ansible.cfg").write_text("[inventory]\nenable_plugins = mine.own\n"),
        lambda _: Path("ansible.cfg").write_text("[defaults]\nfact_caching = jsonfile\n"),
        lambda _: os.environ.update(ANSIBLE_INVENTORY_ENABLED="mine"),
    ],
    ids=[
        "script", "pipe", "folder of plugins", "plugin", "plugin in JSON", "vault value", "vault file", "linked folder",
        "lost link", "vars plugins", "enabled plugins", "kept facts", "environment",
    ],
)  # fmt: skip
def test_an_inventory_with_other_sources_is_never_cached(inventory, spoil, monkeypatch):
    """Programs, plugins, vaults and whatever they bring in are evaluated each time."""
    monkeypatch.setenv("ANSIBLE_INVENTORY_ENABLED", "x")
    monkeypatch.delenv("ANSIBLE_INVENTORY_ENABLED")
    assert cache.key_of(inventory)
    spoil(inventory)

    assert cache.key_of(inventory) is None


@pytest.mark.parametrize(
    "variables",
    [
        {"ansible_become_password": "plain"},
        {"ansible_become_password": {"__ansible_vault": "$ANSIBLE"}},
        {"docker_engine_registry_logins": [{"password_secret": "x"}]},
        {"note": "-----BEGIN PRIVATE KEY-----"},
        {"anything": "$ANSIBLE_VAULT;1.1"},
    ],
)
def test_secrets_are_never_cached(inventory, tmp_path, variables):
    """Not even one that stands in plain text in the inventory: it would outlive it here."""
    cache.write(cache.key_of(inventory), {"_meta": {"hostvars": {"a": variables}}}, "")

    assert not folder(tmp_path).exists()


def test_the_path_of_a_key_can_be_cached(inventory):
    """Which file holds the key may be kept."""
    key = cache.key_of(inventory)
    cache.write(key, {"_meta": {"hostvars": {"a": {"ansible_ssh_private_key_file": "~/.ssh/id"}}}}, "")

    assert cache.read(key)


def _written(inventory: Path, tmp_path: Path) -> tuple[str, Path]:
    key = cache.key_of(inventory)
    cache.write(key, DOCUMENT, "")
    return key, folder(tmp_path) / f"{key}.json"


def _forge(file: Path) -> None:
    digest, _, text = file.read_text().partition("\n")
    file.write_text(digest + "\n" + text.replace('"a"', '"b"'))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_bytes(b"\xff\n\xff"),
        lambda file: file.write_text(""),
        lambda file: file.chmod(0o644),
        lambda file: file.parent.chmod(0o755),
        lambda file: [file.rename(file.parent / "real"), file.symlink_to("real")],
        lambda file: [file.unlink(), os.mkfifo(file, 0o600)],
        _forge,
    ],
    ids=["cut", "garbage", "empty", "readable by others", "open folder", "link", "pipe", "changed"],
)
def test_an_untrusted_cache_file_is_ignored(inventory, tmp_path, spoil):
    """Broken, changed or open to others: Ansible is asked as if there were none."""
    key, file = _written(inventory, tmp_path)
    assert cache.read(key)
    spoil(file)

    assert cache.read(key) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_cache_file_of_another_user_is_ignored(inventory, tmp_path):
    """Files of other users are not trusted."""
    key, file = _written(inventory, tmp_path)
    os.chown(file, 12345, -1)

    assert cache.read(key) is None


def test_only_the_newest_fifty_are_cached(inventory, tmp_path):
    """The cache does not grow for ever; what was read last stays."""
    key, first = _written(inventory, tmp_path)
    for number in range(60):
        file = folder(tmp_path) / f"{number}.json"
        file.write_text("x")
        os.utime(file, (number, number))
    cache.read(key)
    cache.write("other", DOCUMENT, "")
    left = list(folder(tmp_path).iterdir())

    assert len(left) == 50
    assert first in left


def test_an_unwritable_cache_is_no_error(inventory, tmp_path, monkeypatch):
    """A read-only home costs time, nothing else."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.write(cache.key_of(inventory), DOCUMENT, "")

    assert cache.read("x") is None


def test_the_cache_file_contains_its_format_version(inventory, tmp_path):
    """Another version's file is not misread."""
    key, file = _written(inventory, tmp_path)
    text = json.dumps({"format": 0, "document": DOCUMENT, "stderr": ""})

    file.write_text(hashlib.sha256(text.encode()).hexdigest() + "\n" + text)

    assert cache.read(key) is None


def test_an_unchanged_inventory_is_evaluated_once(inventory, monkeypatch):
    """The second reading starts no program and says the same, warnings among it."""
    asked = []

    def ask(path: Path) -> tuple[dict, str]:
        asked.append(path)
        return DOCUMENT, "[WARNING]: odd\n"

    monkeypatch.setattr(listing, "_ask", ask)
    first, second = listing.list_inventory(inventory), listing.list_inventory(inventory)
    (inventory / "group_vars/all.yml").write_text("x: 2\n")
    listing.list_inventory(inventory)

    assert first == second
    assert first.warnings == ("odd",)
    assert len(asked) == 2


def test_an_inventory_that_changes_while_it_is_read_is_not_cached(inventory, monkeypatch):
    """What was read of two states is not taken for either."""

    def ask(path: Path) -> tuple[dict, str]:
        (path / "group_vars/all.yml").write_text(f"x: {len(asked)}\n")
        asked.append(path)
        return DOCUMENT, ""

    asked: list[Path] = []
    monkeypatch.setattr(listing, "_ask", ask)
    key = cache.key_of(inventory)
    listing.list_inventory(inventory)

    assert cache.read(key) is None
    assert cache.read(cache.key_of(inventory)) is None
