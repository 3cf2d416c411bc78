"""Secrets of an inventory are where they have to be, and nowhere else: not on a command line, in a log or a report."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import LAB
from tests.support.command import Done, Provision

PROGRAM = r"""
import json, os, stat, subprocess, sys, time

marks = {name: bytes.fromhex(mark) for name, mark in json.loads(sys.argv[2]).items()}
seen = set()


def report(name, where):
    if (name, where) not in seen:
        seen.add((name, where))
        print(json.dumps({"secret": name, "where": where}), flush=True)


def content(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def watch(stop, seconds):
    own, end, programs = os.readlink("/proc/self/ns/pid"), time.monotonic() + seconds, set()
    while time.monotonic() < end and not os.path.exists(stop):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink("/proc/%s/ns/pid" % pid) != own:
                    continue  # of a container: its environment is where the secret has to be
            except OSError:
                continue
            program = content("/proc/%s/comm" % pid).decode(errors="replace").strip()
            programs.add(program)
            for what in ("cmdline", "environ"):
                text = content("/proc/%s/%s" % (pid, what))
                for name, mark in marks.items():
                    if mark in text:
                        report(name, "%s of the program %s" % (what, program))
        time.sleep(0.2)
    print(json.dumps({"programs": sorted(programs)}), flush=True)


def search(tops, left_out):
    for top in tops:
        for folder, below, names in os.walk(top):
            below[:] = [name for name in below if os.path.join(folder, name) not in left_out]
            for path in (os.path.join(folder, name) for name in names):
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                if not stat.S_ISREG(status.st_mode) or status.st_size > 2**26:
                    continue
                text = content(path)
                for name, mark in marks.items():
                    if mark in text:
                        report(name, "%s (mode %04o)" % (path, stat.S_IMODE(status.st_mode)))
    journal = subprocess.run(["journalctl", "--all", "--output=export"], stdout=subprocess.PIPE, check=True).stdout
    for name, mark in marks.items():
        if mark in journal:
            report(name, "the journal")
    print(json.dumps({"journal": len(journal)}), flush=True)


{"watch": watch, "search": search}[sys.argv[1]](*json.loads(sys.argv[3]))
"""
"""Runs on a node. It is given the secrets in hexadecimal digits, so that it does not find itself."""

STOP = "/root/stop-watching"
PLACES = ["/etc", "/opt", "/root", "/run", "/srv", "/tmp", "/usr/local", "/var/lib/provision", "/var/log", "/var/tmp"]
ENGINES_OWN = ["/run/containerd", "/run/docker"]
"""What docker and containerd keep of a running container, its environment among it; root's alone."""
LOGIN = "/root/.docker/config.json (mode 0600)"
"""Docker itself keeps the logins to registries there, in base64; root's alone."""
SSHD = "/var/lib/provision/container_ssh/sshd_config (mode 0644)"
"""The container's sshd gives its variables to those who log in; on the node only root comes to the file."""
LONGEST_SECONDS = 1800
MOST_BYTES = 2**26


@dataclass(frozen=True)
class Secrets:
    """The secrets of one inventory, by what they are for; random, so that nothing else is taken for them."""

    container: str
    registry: str
    sudo: str
    vault: str

    def marks(self) -> dict[str, bytes]:
        """Every form in which they would be found; docker keeps a login in base64."""
        marks = {name: value.encode() for name, value in vars(self).items()}
        return {**marks, "login": base64.b64encode(f"bob:{self.registry}".encode())}


@dataclass
class Site:
    """An inventory with secrets, and the command that reads it."""

    command: Provision
    inventory: str
    marks: dict[str, bytes]
    said: list[tuple[str, Done]]

    def run(self, *words: str) -> Done:
        """Run one verb on it; what it says is kept."""
        done = self.command(*words, "-i", self.inventory)
        self.said.append((f"provision {' '.join(words)}", done))
        return done

    def ok(self, *words: str) -> Done:
        """Run one verb that has to succeed."""
        done = self.run(*words)
        assert done.code == 0, f"provision {' '.join(words)}: {done}"
        return done


def encrypted(name: str, value: str, password_file: Path) -> str:
    """Return a variable as ``ansible-vault`` writes it; the value goes in by a pipe, not by an argument."""
    words = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt_string", "--stdin-name", name]
    done = subprocess.run(
        [*words, "--vault-password-file", str(password_file)], input=value, capture_output=True, text=True, check=True
    )
    return f"{done.stdout}\n"


@pytest.fixture
def site(provision: Provision, own_inventory, on_node, cluster: dict, tmp_path: Path) -> Iterator[Site]:
    """The lab's nodes with an inventory whose secrets are in vault; restores the lab afterwards."""
    values = Secrets(*(f"{word}{secrets.token_hex(12)}" for word in ("container", "registry", "sudo", "vault")))
    folder = own_inventory("secrets")
    password_file = tmp_path / "vault-password"
    password_file.write_text(values.vault + "\n")
    password_file.chmod(0o600)
    variables = folder / "group_vars/all.yml"
    image = str(yaml.safe_load(variables.read_text())["training_image_reference"])
    registry = image.partition("/")[0]
    given = {"site_word": values.container, "site_login": values.registry, "ansible_become_password": values.sudo}
    vault = "".join(encrypted(name, value, password_file) for name, value in given.items())
    wanted = {
        "training_container_env": {"WORD_OF_TEST": "{{ site_word }}"},
        "docker_engine_registry_logins": [
            {"registry": registry, "username": "bob", "password_secret": "{{ site_login }}"}
        ],
    }
    variables.write_text(f"{variables.read_text()}\n{yaml.safe_dump(wanted)}\n{vault}")
    assert not any(value in variables.read_text() for value in given.values()), "the inventory itself is not encrypted"
    temporary = provision.folder / "t"
    temporary.mkdir(exist_ok=True)
    own = {
        "XDG_STATE_HOME": provision.environment["XDG_STATE_HOME"],
        "XDG_CACHE_HOME": str(provision.folder / "cache"),
        "TMPDIR": str(temporary),
        "ANSIBLE_VAULT_PASSWORD_FILE": str(password_file),
        "SECRETS_TEST": secrets.token_hex(8),
    }
    yield Site(Provision(provision.folder, **own), str(folder), values.marks(), [])
    for node in cluster["nodes"]:
        on_node(node["name"], f"touch {STOP}; sleep 1; docker logout {shlex.quote(registry)}; rm -f {STOP}")
    provision.ok("apply", "--lab", LAB, "--yes")


def on_the_node(site: Site, mode: str, *arguments: object) -> str:
    """Return the shell command that runs our program on a node."""
    marks = {name: mark.hex() for name, mark in site.marks.items()}
    return shlex.join(["python3", "-c", PROGRAM, mode, json.dumps(marks), json.dumps(arguments)])


def lines_of(text: str) -> list[dict]:
    """The program's answers; anything else, a greeting of the node, is passed over."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextmanager
def nodes_watched(site: Site, provision: Provision, on_node, names: list[str]) -> Iterator[dict[str, list[dict]]]:
    """Inspect all programs of the nodes five times a second; the answers are available at the end."""
    answers: dict[str, list[dict]] = {}
    command = on_the_node(site, "watch", STOP, LONGEST_SECONDS)
    watching = {name: provision.start("lab", "ssh", LAB, name, "--", command) for name in names}
    try:
        yield answers
    finally:
        for name, process in watching.items():
            on_node(name, f"touch {STOP}")
            out, _ = process.communicate(timeout=120)
            on_node(name, f"rm -f {STOP}")
            answers[name] = lines_of(out)


@contextmanager
def this_machine_watched(site: Site) -> Iterator[tuple[set[tuple[str, str]], set[str]]]:
    """Inspect all programs that our commands start here, known by a variable that they inherit."""
    leaks: set[tuple[str, str]] = set()
    programs: set[str] = set()
    mine = f"SECRETS_TEST={site.command.environment['SECRETS_TEST']}".encode()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    environment = (folder / "environ").read_bytes()
                    if mine not in environment.split(b"\0"):
                        continue
                    command = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                programs.add(command.replace(b"\0", b" ").decode(errors="replace"))
                for what, text in (("arguments", command), ("environment", environment)):
                    leaks.update(
                        (name, f"{what} of a program here") for name, mark in site.marks.items() if mark in text
                    )

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield leaks, programs
    finally:
        over.set()
        thread.join()


def held_here(site: Site, *tops: Path) -> list[tuple[str, str]]:
    """Return which files below folders of this machine hold a secret."""
    matches: list[tuple[str, str]] = []
    for path in (path for top in tops for path in top.rglob("*")):
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
                continue
            content = path.read_bytes()
        except OSError:
            continue
        matches += [(name, str(path)) for name, mark in site.marks.items() if mark in content]
    return matches


def held_in_bundle(site: Site, file: Path) -> list[tuple[str, str]]:
    """Return which files of a support bundle hold a secret; the archive itself is compressed."""
    matches: list[tuple[str, str]] = []
    with tarfile.open(file) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        assert members, "the support bundle is empty, so that it proves nothing"
        for member in members:
            stream = archive.extractfile(member)
            assert stream is not None, member.name
            content = stream.read()
            matches += [
                (name, f"support bundle: {member.name}") for name, mark in site.marks.items() if mark in content
            ]
    return matches


def may_be_there(secret: str, where: str) -> bool:
    """Whether a secret has to be at this place of a node."""
    return (secret, where) in {("login", LOGIN), ("container", SSHD)}


@pytest.mark.long
def test_secrets_of_an_inventory_are_stored_only_where_required(
    site: Site, provision: Provision, cluster: dict, on_node
) -> None:
    """Through plan, a saved plan, apply, an apply that fails, history, verify and a support bundle.

    A secret has to be in the container's environment (and so in what docker keeps below /var/lib/docker and in
    /run), and docker's own file of logins has to hold a login. All the other places are searched.
    """
    names = [node["name"] for node in cluster["nodes"]]
    for name in names:
        on_node(name, f"rm -f {STOP}")
    bundle, saved = provision.folder / "secrets.tar.gz", provision.folder / "secrets.json"
    with (
        this_machine_watched(site) as (leaks, programs),
        nodes_watched(site, provision, on_node, names) as answers,
    ):
        site.ok("plan", "--json")
        site.ok("plan", "--out", str(saved))
        site.ok("apply", "--plan", str(saved), "--json")
        refusing = Path(site.inventory) / "host_vars"
        refusing.mkdir(exist_ok=True)
        logins = [{"registry": "127.0.0.1:9", "username": "bob", "password_secret": "{{ site_login }}"}]
        (refusing / f"{names[0]}.yml").write_text(yaml.safe_dump({"docker_engine_registry_logins": logins}))
        failed = site.run("apply", "--yes")
        (refusing / f"{names[0]}.yml").unlink()
        site.ok("apply", "--yes")
        site.ok("history", "--json")
        site.ok("history", "--nodes", "--json")
        site.ok("history", "--nodes")
        site.run("verify", "--json")
        site.run("support-bundle", "--output", str(bundle))

    # First that all of it took place: a secret that went nowhere leaks nowhere.
    assert failed.code == 1, f"nothing answers at 127.0.0.1:9, so that login should have failed: {failed}"
    words = " ".join((failed.out + failed.err).split())
    assert "registry 127.0.0.1:9: cannot log in as bob" in words, f"the failure has no cause: {failed}"
    marks = site.marks
    for name in names:
        inside = on_node(name, "docker exec provision-training env; cat /root/.docker/config.json")
        assert marks["container"].decode() in inside, f"{name}: the container was not given its variable: {inside}"
        assert marks["login"].decode() in inside, f"{name}: docker was not logged in: {inside}"
        said = answers[name]
        watched = next((item["programs"] for item in said if "programs" in item), [])
        assert any(re.match(r"python3|sshd|dockerd", program) for program in watched), f"{name}: not watched: {said}"
    assert any("ansible" in program for program in programs), f"Ansible was not seen at work here: {programs}"

    # Then that nothing else has it.
    readable = [
        *leaks,
        *((item["secret"], item["where"]) for said in answers.values() for item in said if "secret" in item),
    ]
    assert readable == [], f"while it ran, anybody on the machine could read: {readable}"
    spoken = [
        (name, words)
        for words, done in site.said
        for name, mark in marks.items()
        if mark.decode() in done.out + done.err
    ]
    assert spoken == [], f"said on the terminal: {spoken}"
    folders = [provision.folder, Path(os.environ.get("ANSIBLE_HOME") or Path.home() / ".ansible")]
    stored = held_here(site, *folders)
    assert stored == [], f"kept on this machine (state, cache, saved plan, temporary files): {stored}"
    assert bundle.is_file(), f"there is no support bundle: {site.said[-1]}"
    assert held_in_bundle(site, bundle) == [], "a support bundle is for others to read"
    for name in names:
        assert on_node(name, "stat -c %a /var/lib/provision").strip() == "700", (
            f"{name}: others come to sshd's settings"
        )
        said = lines_of(on_node(name, on_the_node(site, "search", PLACES, ENGINES_OWN)))
        assert any(item.get("journal") for item in said), f"{name}: the journal was not searched: {said}"
        left = [item for item in said if "secret" in item and not may_be_there(item["secret"], item["where"])]
        assert left == [], f"{name}: {left}"
