"""Inventories with vault, syntax errors and changes: no network, but many runs of Ansible's own programs."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from provision.errors import InventoryError
from provision.inventory import load
from provision.inventory.change import add, remove
from provision.inventory.init import InitRequest, create
from provision.model import Secret
from provision.report.redaction import REMOVED, Redactor
from provision.workflow import local_inventory
from provision.workflow.bundle import known_secrets
from tests.support.command import Provision
from tests.support.person import BLOB, Person

TEMPLATES = """\
all:
  hosts:
    a: {ansible_host: 10.0.0.1}
    b: {ansible_host: 10.0.0.2}
  vars:
    data_net: 10.1.0.0/24
    team: red
    cluster_data_networks: ["{{ data_net }}"]
    cluster_head: "{{ groups['all'] | last }}"
"""


@pytest.fixture
def write(tmp_path: Path):
    """Write files of an inventory folder and return the folder."""

    def _write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / "inventory" / name.replace("__", "/").replace("_yml", ".yml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "inventory"

    return _write


def test_a_syntax_error_is_reported_with_its_line(write):
    """What Ansible cannot parse is never passed over."""
    with pytest.raises(InventoryError, match=r"hosts\.yml:4: not valid YAML"):
        load(write(hosts_yml="gpu_nodes:\n  hosts:\n    a: 1\n   b: 2\n"))


def test_hosts_keep_their_order_and_vault_values_are_secret(write, monkeypatch, tmp_path):
    """The first host of the file is the head; a sudo password from vault is usable and shown nowhere."""
    password = tmp_path / "password"
    password.write_text("vault-password\n")
    ansible_vault = [Path(sys.executable).parent / "ansible-vault", "encrypt_string", "--stdin-name"]
    vault = subprocess.run(
        [*ansible_vault, "ansible_become_password", "--vault-password-file", password],
        input="s3cret",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    common = "ansible_ssh_common_args: -o UserKnownHostsFile={{ inventory_dir }}/k.txt\n"
    folder = write(
        hosts_yml="gpu_nodes:\n  hosts:\n    z:\n    a:\nother: {hosts: {m: }}\n",
        group_vars__all_yml=f"{vault}\n{common}docker_engin_source: x\n",
    )
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))

    cluster = load(folder, become_password=Secret("other"))

    assert [node.name for node in cluster.nodes] == ["z", "a"]
    assert cluster.nodes[0].groups == ("gpu_nodes",)
    assert cluster.nodes[0].connection.become_password == Secret("s3cret")
    assert cluster.nodes[0].connection.known_hosts == folder / "k.txt"
    assert "s3cret" not in repr(cluster)
    assert ["did you mean docker_engine_source?" in warning for warning in cluster.warnings] == [True]


def _encrypted(text: str, password: Path, indent: int) -> str:
    argv = [Path(sys.executable).parent / "ansible-vault", "encrypt_string", "--vault-password-file", password]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=True)
    return f"\n{' ' * indent}".join(line.strip() for line in done.stdout.splitlines())


def test_encrypted_and_templated_secrets_are_removed_from_the_bundle(write, monkeypatch, tmp_path):
    """Secrets that stand encrypted or behind a template in the inventory are removed in every spelling."""
    password = tmp_path / "password"
    password.write_text("vault-password\n")
    folder = write(
        hosts_yml="all: {hosts: {a: , b: {smtp_secret: '{{ relay_secret }}', odd_token: '{{ no | mandatory }}'}}}\n",
        group_vars__all_yml="docker_engine_registry_logins:\n  - registry: r\n    username: bob\n"
        f"    password_secret: {_encrypted('login-pw-1', password, 6)}\n"
        f"relay: {_encrypted('relay-pw-2', password, 2)}\n"
        "relay_secret: 'x{{ relay }}'\nwandb_key: '{{ \"wandb\" }}-3'\n",
    )
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))

    known = known_secrets(load(folder))
    login = base64.b64encode(b"bob:login-pw-1").decode()
    said = f"login-pw-1 {login} relay-pw-2 xrelay-pw-2 wandb-3 done"

    assert {"login-pw-1", "bob:login-pw-1", "relay-pw-2", "xrelay-pw-2", "wandb-3"} <= known
    assert Redactor(known).text(said) == " ".join([REMOVED] * 5) + " done"


def test_a_bundle_without_the_vault_password_is_refused(write, monkeypatch, tmp_path):
    """A secret that cannot be known cannot be removed: the way to give the password is said instead."""
    password = tmp_path / "password"
    password.write_text("vault-password\n")
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE", raising=False)
    secret = f"relay: {_encrypted('relay-pw-2', password, 2)}\n"
    cluster = load(write(hosts_yml="all: {hosts: {a: }}\n", group_vars__all_yml=secret))

    with pytest.raises(InventoryError) as caught:
        known_secrets(cluster)

    assert "ANSIBLE_VAULT_PASSWORD_FILE" in (caught.value.remedy or "")


def test_an_encrypted_connection_variable_without_the_vault_password_has_a_remedy(write, monkeypatch):
    """A connection that hangs on an encrypted value is refused with the way to give the vault password."""
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE", raising=False)
    broken = "ansible_become_password: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"

    with pytest.raises(InventoryError) as caught:
        load(write(hosts_yml="all: {hosts: {a: }}\n", group_vars__all_yml=broken))

    assert "ansible_become_password" in caught.value.message
    assert "vault" in (caught.value.remedy or "")


def test_init_adds_and_removes_hosts_together_with_their_host_keys(tmp_path):
    """init, --add and --remove keep hosts and pinned host keys in step, and what the user wrote stays."""
    keys = tmp_path / "keys"
    keys.write_text(
        "".join(f"10.0.0.{n} ssh-ed25519 {BLOB}\n" for n in (1, 2)) + f"[10.0.0.3]:2222 ssh-ed25519 {BLOB}\n"
    )
    person = Person()
    folder = tmp_path / "inventories"
    path = folder / "cluster"

    def request(*words, user=None):
        return InitRequest(words, user=user, known_hosts=keys, folder=folder)

    made = create(request("a=10.0.0.1", "b=10.0.0.2", user="op"), person)
    (path / "hosts.yml").write_text((path / "hosts.yml").read_text() + "# mine\n")
    grown = add(request("c=10.0.0.3:2222"), person)
    shrunk = remove(request("b"))

    assert [node.name for node in made.cluster.nodes] == ["a", "b"]
    assert made.cluster.nodes[0].connection.user == "op"
    assert made.cluster.nodes[0].connection.known_hosts == path / "known_hosts.txt"
    assert (grown.cluster.node("c").connection.port, grown.cluster.node("c").connection.user) == (2222, "op")
    assert [node.name for node in shrunk.cluster.nodes] == ["a", "c"]
    assert person.seen == ["a", "b", "c"]
    text = (path / "known_hosts.txt").read_text()
    assert [line.split()[0] for line in text.splitlines()] == ["10.0.0.1", "[10.0.0.3]:2222"]
    assert "# mine" in (path / "hosts.yml").read_text()
    assert sorted(p.name for p in folder.iterdir()) == ["cluster"]


def _enabled_here(folder: Path, **asked) -> str:
    """What Ansible makes of training_container_enabled in bootstrap's inventory, by a run that changes nothing."""
    folder.mkdir()
    path = local_inventory(folder, "here", **{"image": None, "variables": None, **asked})
    load(path)
    ansible = Path(sys.executable).parent / "ansible"
    words = ["here", "-i", path, "-m", "debug", "-a", "msg={{ training_container_enabled | bool }}", "-o"]
    return subprocess.run([ansible, *words], capture_output=True, text=True, check=True).stdout


def test_bootstrap_starts_a_container_if_an_image_is_configured(tmp_path):
    """By the option or by a variables file; without an image the container roles are off, and the file can say so."""
    named, off = tmp_path / "named.yml", tmp_path / "off.yml"
    named.write_text("training_image_reference: team/train:1\n")
    off.write_text("training_image_reference: team/train:1\ntraining_container_enabled: false\n")

    assert '"msg": false' in _enabled_here(tmp_path / "1")
    assert '"msg": true' in _enabled_here(tmp_path / "2", image="team/train:1")
    assert '"msg": true' in _enabled_here(tmp_path / "3", variables=named)
    assert '"msg": false' in _enabled_here(tmp_path / "4", variables=off)


def test_bootstrap_reports_the_line_of_an_invalid_variable(tmp_path):
    """The file that the user wrote is named, and nothing is changed."""
    (tmp_path / "site.yml").write_text("---\ndocker_engine_data_roots: /x\n")

    done = Provision(tmp_path)("bootstrap", "--vars", "site.yml", "--yes")

    assert done.code == 2
    assert "error: site.yml:2: docker_engine_data_roots: unknown variable: no role has it" in done.err


def test_templates_are_rendered_in_variables_that_provision_reads(write):
    """A job gets the network and not its name in braces: the simple ones are filled in here, the rest by Ansible."""
    cluster = load(write(hosts_yml=TEMPLATES))

    assert [node.variables["cluster_data_networks"] for node in cluster.nodes] == [["10.1.0.0/24"]] * 2
    assert [node.variables["cluster_head"] for node in cluster.nodes] == ["b"] * 2


def test_templates_that_need_node_facts_are_left_to_ansible(write):
    """The roles can make it, and nothing else is lost by it."""
    address = "{{ ansible_facts.eth9.ipv4.address }}"
    text = TEMPLATES.replace("\"{{ groups['all'] | last }}\"", f'a\n    cluster_data_address: "{address}"')
    node = load(write(hosts_yml=text)).nodes[0]

    assert node.variables["cluster_data_address"] == address
    assert node.variables["cluster_data_networks"] == ["10.1.0.0/24"]
