"""Code and images that need a credential, from real servers: only the jobs get them, and no one else sees it.

The git server speaks HTTPS on this machine, and OpenSSH on a node; the registry is a second process of the lab's, with
passwords. Everything that runs on this machine and on the nodes is inspected while it runs.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import bcrypt
import pytest

from provision.lab.services import processes
from tests.integration.conftest import LAB
from tests.support import node_shell
from tests.support.command import Provision, eventually
from tests.support.git_server import certificate, commit, git, git_server
from tests.support.watch import Watch

NODES = (f"{LAB}-1", f"{LAB}-2")
USER = "yourname"
WARNING = "the value of GIT_SYNC_PASSWORD is visible in the process list"
SHOWN = ("get NAME -o json", "logs NAME --all")
"""The document has the job's events, too."""
PLACES = "/etc /home /opt /root /run /srv /tmp /var/lib/provision /var/log /var/tmp /var/lib/docker/containers"
OPEN = "/etc /home /opt /root /run /srv /tmp /var"
PROCESSES = "/proc/[0-9]*/cmdline /proc/[0-9]*/environ"
MARKS = "/dev/shm/marks"
FILES = f"grep -rlaFs -f {MARKS} {PLACES}"
JOURNAL = f"journalctl --all --output=export | grep -aFq -f {MARKS} && echo the journal"
STRANGER = "setpriv --reuid=65534 --regid=65534 --clear-groups"
MORE_SECONDS = 0.1
"""For each answer of the server, so that git is seen at work."""


def install(package):
    return f"DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends {package} >/dev/null 2>&1"


PURGE = "apt-get -qq purge -y git git-man >/dev/null 2>&1; ! command -v git"


@dataclass(frozen=True)
class Marker:
    """A password that is nothing else, and what of it must not be found."""

    password: str
    forms: list[str]

    @classmethod
    def of(cls, user):
        password = f"m4rk/{secrets.token_hex(8)}:@r"
        return cls(
            password, [password, quote(password, safe=""), base64.b64encode(f"{user}:{password}".encode()).decode()]
        )

    def in_text(self, text):
        return [form for form in self.forms if form in text]

    def searching(self, *commands):
        """A shell command that looks for it by ``grep -f MARKS``, and in which it does not stand itself."""
        octal = "".join(f"\\{byte:03o}" for byte in "\n".join(self.forms).encode())
        searches = "; ".join(f"{{ {command}; }} || test $? -le 2" for command in commands)
        return f"printf '{octal}\\n' >{MARKS}; {searches}; rm {MARKS}"

    def below(self, *folders):
        """The files of this machine below folders that hold it."""
        files = {path.resolve() for folder in folders for path in Path(folder).rglob("*") if path.is_file()}
        return [path for path in files if any(form.encode() in path.read_bytes() for form in self.forms)]


def submitter(words):
    """Whether a process is the command that was typed; it was given the secret."""
    return words[1:4] == ["-m", "provision", "submit"]


@pytest.fixture(scope="module")
def on_both(jobs):
    """Run a shell command on both nodes at once."""

    def run(command):
        with ThreadPoolExecutor() as pool:
            shells = pool.map(lambda node: node_shell.on_node(jobs.provision, LAB, node, command), NODES)
        return dict(zip(NODES, shells, strict=True))

    return run


@pytest.fixture(scope="module")
def own(jobs, tmp_path_factory):
    """The command with a folder for temporary files of its own, and the environment that is asked for."""
    temporary = tmp_path_factory.mktemp("temporary")

    def made(**environment):
        state = jobs.provision.environment["XDG_STATE_HOME"]
        return Provision(jobs.provision.folder, XDG_STATE_HOME=state, TMPDIR=str(temporary), **environment)

    made.temporary = temporary
    return made


@pytest.fixture(scope="module")
def nodes_with_git(on_both):
    """Install git on both nodes until the end of these tests."""
    on_both(install("git"))
    yield NODES
    on_both(PURGE)


@dataclass(frozen=True)
class Forge:
    """A private repository by HTTPS."""

    url: str
    marker: Marker
    authority: Path
    sha: str

    @property
    def words(self):
        return "--sync-mode=git", f"--sync-source={self.url}", f"--env=GIT_SSL_CAINFO={self.authority}"


@pytest.fixture(scope="module")
def forge(jobs, nodes_with_git, tmp_path_factory):
    """The server, on this machine's address in the lab's network."""
    assert nodes_with_git
    folder = tmp_path_factory.mktemp("forge")
    project = folder / "mnist.git"
    project.mkdir()
    git(project, "init", "-q")
    sha = commit(project, "train.txt", "private code\n")
    address = jobs.image.partition(":")[0]
    pem, authority = certificate(folder, address)
    marker = Marker.of(USER)
    with git_server(folder, USER, marker.password, pem, lambda: time.sleep(MORE_SECONDS), address) as server:
        yield Forge(f"{server}/mnist.git", marker, authority, sha)


def here(jobs):
    """The folders in which the command works and keeps what it keeps."""
    return jobs.provision.folder, jobs.provision.environment["XDG_STATE_HOME"]


def hidden(jobs, on_both, marker, names, *said):
    """Check that ended jobs have left nothing of a secret: not in output, in files or in journals."""
    texts = [jobs.ok(*words.replace("NAME", name).split()).out for name in names for words in SHOWN]
    assert [text for text in (*said, *texts, jobs.ok("list", "-o", "json").out) if marker.in_text(text)] == []
    assert on_both(marker.searching(FILES, JOURNAL)) == dict.fromkeys(NODES, "")


@pytest.mark.row(24)
def test_private_code_with_a_password_on_the_command_line_works_with_a_warning(jobs, forge, own, on_both):
    """The password stands on the command line; beside that it is nowhere, while the job runs and afterwards."""
    typed = (f"--env=GIT_SYNC_USERNAME={USER}", f"--env=GIT_SYNC_PASSWORD={forge.marker.password}")
    line = "env; cat /root/code/mnist/train.txt; until [ -e /tmp/end ]; do sleep 1.5; done"
    words = ("--workers=2", "--spread", "--loglevel=info", *forge.words, *typed, line)
    with Watch(forge.marker.forms, 0.02, submitter) as watch:
        submitted = own().ok("submit", "pytorch", "--lab", LAB, "--name=private", f"--image={jobs.image}", *words)
        jobs.until("private", "RUNNING")
        containers = on_both("docker inspect $(docker ps -q --filter label=provision.job=private)")
        strangers = on_both(forge.marker.searching(f"{STRANGER} grep -rlaFs -f {MARKS} {OPEN} {PROCESSES}"))
        on_both("docker exec $(docker ps -q --filter label=provision.job=private) touch /tmp/end")
        jobs.until("private", "SUCCEEDED")

    assert submitted.err.count(WARNING) == 1
    assert jobs.get("private")["codeSHA"] == forge.sha
    for instance in ("private-master-0", "private-worker-0"):
        seen = jobs.logs("private", instance)
        assert "private code" in seen
        assert not any(line.startswith("GIT_SYNC") for line in seen)
    assert any("git fetch" in program for program in watch.there), "git was seen at work on a node"
    assert any("sleep 1.5" in program for program in watch.there), "the training was seen"
    assert watch.leaks == set()
    assert strangers == dict.fromkeys(NODES, "")
    assert [len(json.loads(text)) for text in containers.values()] == [1, 1]
    hidden(jobs, on_both, forge.marker, ["private"], submitted.err, submitted.out, *containers.values())
    assert forge.marker.below(*here(jobs)) == []
    assert list(own.temporary.iterdir()) == []


@pytest.mark.row(24)
@pytest.mark.slow
def test_credentials_from_environment_file_or_store_work_without_a_warning(jobs, forge, own, on_both, tmp_path):
    """From the environment (and kept for a job that others let start), from a file, and by `secret add`."""
    password, server = forge.marker.password, forge.url.split("/")[2]
    file = tmp_path / "login.env"
    file.write_text(f"GIT_SYNC_USERNAME={USER}\nGIT_SYNC_PASSWORD={password}\n")
    file.chmod(0o600)
    exported = own(GIT_SYNC_PASSWORD=password, GIT_SYNC_USERNAME=USER)
    names = ("--env=GIT_SYNC_USERNAME", "--env=GIT_SYNC_PASSWORD")
    options = ("--server", server, "--username", USER)

    def submit(command, name, *words):
        line = "env; cat /root/code/mnist/train.txt"
        words = ("run", "--lab", LAB, f"--name={name}", f"--image={jobs.image}", *forge.words, *words, line)
        return command.ok("submit", *words).err

    with Watch(forge.marker.forms, 0.02, submitter) as watch:
        said = [submit(exported, "held", "--hold", *names)]
        waiting = on_both(forge.marker.searching(FILES))
        strangers = on_both(forge.marker.searching(f"{STRANGER} grep -rlaFs -f {MARKS} {OPEN} {PROCESSES}"))
        said += [jobs.ok("queue release", "held").err, submit(own(), "filed", f"--env-file={file}")]
        done = own()("secret", "set", "git", *options, stdin=f"{password}\n")
        said += [done.err + done.out, own().ok("secret", "list").out, submit(own(), "kept")]
        for name in ("held", "filed", "kept"):
            jobs.until(name, "SUCCEEDED")

    assert done.code == 0, str(done)
    assert not any("WARN" in text for text in said)
    assert (waiting[NODES[0]].split(), waiting[NODES[1]]) == (["/var/lib/provision/jobs/held/secrets.json"], "")
    assert strangers == dict.fromkeys(NODES, "")
    for name in ("held", "filed", "kept"):
        assert "private code" in jobs.logs(name)
        assert not any(line.startswith("GIT_SYNC") for line in jobs.logs(name))
    assert watch.leaks == set()
    hidden(jobs, on_both, forge.marker, ["held", "filed", "kept"], *said)
    (file,) = forge.marker.below(*here(jobs))
    assert (file.parent.name, file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (
        "secrets",
        0o600,
        0o700,
    )
    own().ok("secret", "rm", "git", "--server", server)
    assert forge.marker.below(*here(jobs)) == []


@pytest.mark.row(24)
def test_a_rejected_password_is_reported_without_being_printed(jobs, forge, own, on_both):
    """The job has failed, and neither what is said nor what is recorded of it has the password."""
    wrong = Marker.of(USER)
    submitted = own(GIT_SYNC_PASSWORD=wrong.password)(
        "submit", "run", "--lab", LAB, "--name=wrong", f"--image={jobs.image}", *forge.words,
        f"--env=GIT_SYNC_USERNAME={USER}", "--env=GIT_SYNC_PASSWORD", "true",
    )  # fmt: skip

    assert submitted.code == 1, str(submitted)
    assert NODES[0] in submitted.err
    assert "the server requires credentials, or rejects these" in submitted.err
    assert "provision secret add git" in submitted.err
    failed = jobs.get("wrong")
    assert (failed["status"], "rejects these" in failed["reason"]) == ("FAILED", True)
    hidden(jobs, on_both, wrong, ["wrong"], submitted.err, submitted.out)


ACCOUNT = """set -e
useradd --create-home --password '*' --shell "$(command -v git-shell)" git
install -d -m 700 /home/git/.ssh /home/git/digits
echo '{key}' >/home/git/.ssh/authorized_keys
cd /home/git/digits
git init -q
echo 'private digits' >train.txt
git add train.txt
git -c user.name=T -c user.email=t@example.com commit -qm train
chown -R git: /home/git
"""


@pytest.fixture
def ssh_forge(cluster, nodes_with_git, on_node, tmp_path):
    """A private repository by OpenSSH on the second node; the files of a key that opens it and of one that does not."""
    assert nodes_with_git
    keys = [tmp_path / "key", tmp_path / "other"]
    for key in keys:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True)
    on_node(NODES[1], ACCOUNT.format(key=Path(f"{keys[0]}.pub").read_text().strip()))
    yield f"git@{cluster['nodes'][1]['address']}:digits", *keys
    on_node(NODES[1], "userdel --remove git")


@pytest.mark.row(24)
def test_private_code_over_ssh_by_a_key(jobs, ssh_forge, ssh_files, on_both):
    """By GIT_SYNC_SSH and files of this machine; the key is in no place that others see, and another one is refused."""
    source, key, other = ssh_forge
    marker = Marker("", [key.read_text().splitlines()[3]])
    words = ("--sync-mode=git", f"--sync-source={source}", "--env=GIT_SYNC_SSH=true")
    words += (f"--env=GIT_SYNC_SSH_KNOWN_HOSTS_FILE={ssh_files / 'known_hosts'}",)
    line = "env; cat /root/code/digits/train.txt"
    with Watch(marker.forms, 0.02) as watch:
        submitted = jobs.submit("run", "digits", *words, f"--env=GIT_SSH_KEY_FILE={key}", "--wait", line)
    refused = jobs.submit("run", "closed", *words, f"--env=GIT_SSH_KEY_FILE={other}", "true", code=1)

    seen = jobs.logs("digits")
    assert "private digits" in seen
    assert not any(line.startswith("GIT_") for line in seen)
    assert watch.leaks == set()
    hidden(jobs, on_both, marker, ["digits"], submitted.err)
    assert marker.below(*here(jobs)) == []
    assert NODES[0] in refused.err
    assert "the server requires credentials, or rejects these" in refused.err
    assert "GIT_SYNC_SSH_KEY_FILE" in refused.err


ROBOT = "robot"


@pytest.fixture
def registry(jobs, ssh_files, on_both, tmp_path):
    """The lab's images by a second registry, which asks for a password: its ``HOST:PORT``, and the password."""
    marker, services = Marker.of(ROBOT), ssh_files / "services"
    passwords = tmp_path / "passwords"
    passwords.write_text(f"{ROBOT}:{bcrypt.hashpw(marker.password.encode(), bcrypt.gensalt(5)).decode()}\n")
    known, _, image = jobs.image.partition("/")
    address = known.partition(":")[0]
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
    config = json.loads((services / f"registry-{address}.yml").read_text())
    config["http"]["addr"] = f"{address}:{port}"
    config["auth"] = {"htpasswd": {"realm": "lab", "path": str(passwords)}}
    (tmp_path / "registry.yml").write_text(json.dumps(config))
    server = subprocess.Popen(["docker-registry", "serve", tmp_path / "registry.yml"], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: processes.answers(address, port), seconds=20, what="the registry answers")
        on_both(f"cp -r /etc/docker/certs.d/{known} /etc/docker/certs.d/{address}:{port}")
        yield f"{address}:{port}", image, marker
    finally:
        server.terminate()
        server.wait()
        on_both(f"rm -r /etc/docker/certs.d/{address}:{port}; docker image rm -f {address}:{port}/{image} >/dev/null")


@pytest.mark.row(24, 47)
def test_an_image_of_a_private_registry_requires_a_stored_credential(jobs, registry, own, on_both):
    """Without or with a wrong credential the error names node, cause and remedy; with it jobs and `image pull` work."""
    server, image, marker = registry
    words = ("run", "--lab", LAB, f"--image={server}/{image}", "--workers=2", "--spread", "env")
    wrong = Marker.of(ROBOT)

    def login(password):
        return own()("secret", "set", "registry", "--server", server, "--username", ROBOT, stdin=f"{password}\n")

    without = own()("submit", *words[:3], "--name=without", *words[3:])
    unpulled = jobs("image pull", f"{server}/{image}")
    login(wrong.password)
    refused = own()("submit", *words[:3], "--name=refused", *words[3:])
    with Watch(marker.forms, 0.02) as watch:
        login(marker.password)
        submitted = own().ok("submit", *words[:3], "--name=pulled", *words[3:])
        jobs.until("pulled", "SUCCEEDED")
        pulled = jobs("image pull", f"{server}/{image}", "--json")

    for failed in (without, unpulled, refused):
        assert failed.code == 1, str(failed)
        assert any(node in failed.out + failed.err for node in NODES)
        assert f"provision secret add registry --server {server}" in failed.err
    assert pulled.document["same"], str(pulled)
    assert len(pulled.document["nodes"]) == len(NODES)
    assert any("docker --config" in program for program in watch.there), "docker was seen at work on a node"
    assert watch.leaks == set()
    said = [done.err + done.out for done in (submitted, pulled)]
    hidden(jobs, on_both, marker, ["pulled"], *said, *jobs.logs("pulled"))
    hidden(jobs, on_both, wrong, ["refused"], refused.err + refused.out)
    own().ok("secret", "rm", "registry", "--server", server)
    assert marker.below(*here(jobs)) == []
