"""What `init` asks, what it does with the answers, and how it changes the settings of an existing inventory."""

from __future__ import annotations

import io
import json
import socket

import pytest
import yaml

from provision.cli import common, init_questions
from provision.cli.init_questions import SiteOptions, site_settings
from provision.inventory import init as inventory_init
from provision.inventory import load
from provision.inventory.hostkeys import HostKey
from provision.inventory.trust import KeySource, PinnedKey
from tests.support.person import BLOB

PRIVATE = "registry.example.com:5000/team/train:1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in an empty folder, without what belongs to a person."""
    monkeypatch.chdir(tmp_path)
    for name in ("SSH_AUTH_SOCK", "PROVISION_INVENTORY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    return tmp_path


@pytest.fixture
def answers(monkeypatch):
    """Sit at a terminal and type these lines."""

    def give(*lines):
        for module in (common, init_questions):
            monkeypatch.setattr(module, "interactive", lambda: True)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return give


@pytest.fixture
def site(folder, typed):
    """Write an inventory of a node on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (folder / "keys").write_text(f"[127.0.0.1]:{port} ssh-ed25519 {BLOB}\n")
    code, out, err = typed(
        "init", f"gpu1=127.0.0.1:{port}", "--name", "site", "--user", "root", "--known-hosts", "keys", "--json"
    )
    assert code == 0, err
    return folder / "inventories/site", json.loads(out), err


def test_a_failed_login_is_reported_and_the_inventory_is_written(site):
    path, document, err = site
    login = document["nodes"][0]["login"]

    assert path.is_dir()
    assert "warning: gpu1: no login: 127.0.0.1 refuses connections" in err
    assert "  hint: is sshd running there" in err
    assert login["ok"] is False
    assert login["error"]["message"].startswith("127.0.0.1 refuses connections")


def test_failed_logins_with_one_cause_are_one_warning(folder, typed):
    """Addresses alone differ."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (folder / "keys").write_text("".join(f"[127.0.0.{n}]:{port} ssh-ed25519 {BLOB}\n" for n in (1, 2, 3)))
    words = ("--user", "root", "--known-hosts", "keys", "--port", str(port))
    code, _, err = typed("init", "gpu[1-3]=127.0.0.[1-3]", *words)

    assert code == 0
    assert err.count("no login") == 1
    assert "warning: gpu1, gpu2, gpu3: no login: 127.0.0.1 refuses connections" in err
    assert "(the message of gpu1)" in err


@pytest.mark.parametrize(
    ("image", "asked"), [(PRIVATE, True), ("ghcr.io/team/train:1", False), ("team/train:1", False)]
)
@pytest.mark.usefixtures("folder")
def test_a_private_registry_prompts_for_its_ca(answers, capsys, image, asked):
    answers(image, *(["nothere.pem", "ca.pem"] if asked else []), "none")
    options = SiteOptions()
    settings = site_settings(options, yes=False)
    err = capsys.readouterr().err

    assert ("CA certificate of registry.example.com:5000" in err) is asked
    assert bool(settings.registry_ca) is asked
    assert options.words() == " ".join(
        [f"--image {image}", *(["--registry-ca ca.pem"] if asked else []), "--nvidia-repository none"]
    )


def test_options_replace_questions(folder, answers, capsys):
    answers()
    site_settings(SiteOptions(PRIVATE, folder / "ca.pem", "none"), yes=False)

    assert capsys.readouterr().err == ""


def test_a_refused_summary_prints_the_answers_as_a_command_line(folder, typed, answers, monkeypatch):
    """Typed once is enough."""
    monkeypatch.setattr(
        inventory_init,
        "keys_from_network",
        lambda targets: [PinnedKey(target, HostKey("ssh-ed25519", BLOB), KeySource.NEW) for target in targets],
    )
    answers(PRIVATE, "ca.pem", "none", "n")
    code, _, err = typed("init", "gpu[1-2]=10.0.0.[1-2]", "--user", "root")

    assert code == 2
    assert not (folder / "inventories").exists()
    assert (
        "To repeat this with your answers:\n"
        f"  provision init 'gpu[1-2]=10.0.0.[1-2]' --user root --image {PRIVATE} --registry-ca ca.pem "
        "--nvidia-repository none\n"
    ) in err


def test_only_given_settings_of_an_existing_inventory_are_changed(site, typed):
    """All else in the file stays as it is, also comments; the same again changes nothing."""
    path, _, _ = site
    file = path / "group_vars/all.yml"
    file.write_text(file.read_text() + "# mine\ncluster_slots: 4\n")
    before = yaml.safe_load(file.read_text())
    words = ("init", "--name", "site", "--image", PRIVATE, "--registry-ca", "ca.pem")

    refused = typed(*words)
    assert refused[0] == 2
    assert yaml.safe_load(file.read_text()) == before
    assert "    old: (not set)\n    new: registry.example.com:5000/team/train:1\n" in refused[2]

    code, out, _ = typed(*words, "--yes", "--json")
    after = yaml.safe_load(file.read_text())
    assert code == 0
    assert json.loads(out)["changed"] == ["training_image_reference", "docker_engine_registry_ca"]
    assert {key: value for key, value in after.items() if key not in json.loads(out)["changed"]} == before
    assert after["docker_engine_registry_ca"][0]["registry"] == "registry.example.com:5000"
    assert "# mine\n" in file.read_text()
    assert "TODO" not in file.read_text()
    assert "unchanged" in typed(*words)[2]


def test_a_ca_is_added_to_those_of_other_registries(site, typed, folder):
    path, _, _ = site
    typed("init", "--image", PRIVATE, "--registry-ca", "ca.pem", "--yes")
    typed("init", "--image", "other.example.com/x:1", "--registry-ca", "ca.pem", "--yes")
    variables = load(path).nodes[0].variables

    assert [entry["registry"] for entry in variables["docker_engine_registry_ca"]] == [
        "registry.example.com:5000",
        "other.example.com",
    ]
    assert typed("init", "--registry-ca", "ca.pem", "--name", "site")[0] == 0
    assert folder.is_dir()


@pytest.mark.usefixtures("site")
def test_hosts_that_are_not_in_the_inventory_are_not_added_by_a_change(typed):
    code, _, err = typed("init", "gpu[1-2]", "--name", "site", "--image", PRIVATE)

    assert code == 2
    assert "has no host gpu2" in err
    assert "--add" in err


def test_a_value_set_elsewhere_is_reported_and_nothing_is_written(site, typed):
    path, _, _ = site
    (path / "host_vars").mkdir()
    (path / "host_vars/gpu1.yml").write_text("training_image_reference: other/x:1\n")
    before = (path / "group_vars/all.yml").read_text()
    code, _, err = typed("init", "--image", PRIVATE, "--yes")

    assert code == 2
    assert "host_vars/gpu1.yml:1: training_image_reference is also set here, for gpu1" in err
    assert (path / "group_vars/all.yml").read_text() == before


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ((), "HOST: no node is named", "provision init 'gpu[1-8]' --user root"),
        (("--add",), "HOST: no node is named for --add", "provision init gpu9 --add"),
        (("gpu1", "--add", "--image", "x/y"), "--add and --image exclude each other", "provision init --image x/y"),
    ],
)
def test_an_invalid_command_line_gets_the_valid_one(folder, typed, words, problem, remedy):
    code, _, err = typed("init", *words)

    assert (code, folder.is_dir()) == (2, True)
    assert err.startswith(f"error: {problem}\n")
    assert remedy in err
