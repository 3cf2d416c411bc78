"""The wheel, from `pip install` to a job: in containers with only Python and ssh, as root and as an ordinary user.

Nothing of the checkout is used. The lab with the nodes is created by the wheel too, in a virtual environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from provision import __version__
from tests.integration.conftest import ENGINES
from tests.support.command import ROOT, Provision
from tests.support.engine import engine_host
from tests.support.wheel import build_wheel
from tools import release_smoke
from tools.collection import build

LAB = f"installed{os.getpid()}"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES = ("--key", "--known-hosts", "--registry-ca", "--nvidia-key")
"""Options of ``init`` with a file of the lab."""


class Installed(Provision):
    """The installed command in a virtual environment of this machine."""

    def __init__(self, program: Path, home: Path) -> None:
        super().__init__(home)
        self.program = program
        inherited = ("http_proxy", "https_proxy", "no_proxy", "PROVISION_DEBIAN_MIRROR")
        self.environment = {
            "HOME": str(home),
            "PATH": _PATH,
            "NO_COLOR": "1",
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            **{name: os.environ[name] for name in inherited if name in os.environ},
        }

    def argv(self, *words: str) -> list[str]:
        """The command line of one call."""
        return [str(self.program), *words]


class InContainer(Provision):
    """The installed command in a running container, where the home folder is in the same place as here."""

    def __init__(self, docker: list[str], name: str, home: Path) -> None:
        super().__init__(home)
        self.container = [*docker, "exec", "--workdir", str(home), name]

    def argv(self, *words: str) -> list[str]:
        """The command line of one call."""
        return [*self.container, str(self.folder / "venv/bin/provision"), *words]

    def shell(self, script: str) -> str:
        """Run a shell script in the container and return what it prints."""
        done = subprocess.run([*self.container, "sh", "-euc", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="prov-installed-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def wheel(site: Path) -> Path:
    """The wheel of the working tree, alone in a folder."""
    (site / "dist").mkdir()
    return build_wheel(site / "dist")


@pytest.fixture(scope="module")
def program(site: Path, wheel: Path) -> Path:
    """The command in a clean environment: the locked packages, then the wheel, whose requirements pip finds there."""
    venv = site / "venv"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    locked = ["--require-hashes", "--no-deps", "--no-compile", "-r", str(ROOT / "requirements.lock")]
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet"]
    for words in (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, *locked],
        [*pip, "--no-index", f"{wheel}[lab]"],
    ):
        done = subprocess.run(words, env=environment, cwd=site, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stderr[-3000:]}"
    return venv / "bin/provision"


@pytest.fixture(scope="module")
def host(site: Path, program: Path) -> Installed:
    """The command that creates the lab; built images and the docker engine are shared with every other lab."""
    (site / "host").mkdir()
    return Installed(program, site / "host")


@pytest.fixture(scope="module")
def lab(host: Installed) -> Iterator[Path]:
    """The folder of a lab of two nodes that the installed command creates."""
    folder = host.folder / ".local/state/provision/labs" / LAB
    try:
        host.ok("lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "2", "--machine", "pair")
        ENGINES.add(engine_host(folder))
        yield folder
    finally:
        down = host("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture(scope="module")
def init_words(lab: Path, host: Installed) -> list[str]:
    """The options of `init` for the nodes of the lab."""
    words: list[str] = host.ok("lab", "status", lab.name, "--json").document["init"][2:]
    inventory = yaml.safe_load((lab / "inventory/hosts.yml").read_text(encoding="utf-8"))
    network = inventory["all"]["children"]["gpu_nodes"]["vars"]["cluster_data_networks"][0]
    return [*words, "--data-network", network, "--yes"]


@pytest.fixture(scope="module")
def docker(lab: Path) -> list[str]:
    """The docker command with the lab's engine."""
    return ["docker", "--host", engine_host(lab)]


@pytest.fixture(scope="module")
def release(site: Path, wheel: Path) -> Path:
    """A folder with the wheel, and the locked packages of this version of Python."""
    release_smoke.download(wheel.parent, site / "smoke/release")
    return site / "smoke/release"


@pytest.fixture(scope="module")
def image(docker: list[str], site: Path) -> Iterator[str]:
    """An image with the same version of Python, and ssh."""
    with release_smoke.image(docker, site) as tag:
        yield tag


@contextmanager
def clean_container(docker: list[str], image: str, release: Path, home: Path, *limits: str) -> Iterator[InContainer]:
    """Install the wheel with pip in a container that reaches the lab, and give the command there."""
    name, environment = f"provision-{home.name}-{LAB}", ["--env", f"HOME={home}", "--env", "NO_COLOR=1"]
    volumes = [f"--volume={home}:{home}", f"--volume={release}:/release:ro"]
    words = [*docker, "run", "--detach", "--init", "--name", name, "--network=host", *volumes, *environment, *limits]
    subprocess.run([*words, image, "sleep", "infinity"], check=True, stdout=subprocess.DEVNULL)
    try:
        command = InContainer(docker, name, home)
        command.shell(
            "python3 -m venv ~/venv && ~/venv/bin/python -m pip install --quiet --no-compile --no-index"
            " --find-links /release/wheels /release/gpu_provision-*.whl"
            " && ~/venv/bin/python -m compileall -qq -x 'ansible_collections/(?!ansible/|community/docker/)' ~/venv/lib"
            " && chmod -R a-w ~/venv"
        )
        yield command
    finally:
        subprocess.run([*docker, "rm", "--force", name], check=True, stdout=subprocess.DEVNULL)


def own_files(init_words: list[str], home: Path, user: int) -> list[str]:
    """Copy the lab's keys into a home folder, and return the options of `init` with the copies."""
    words = list(init_words)
    for index in (words.index(option) + 1 for option in _FILES):
        words[index] = shutil.copy(words[index], str(home))
        os.chown(words[index], user, user)
    os.chown(home, user, user)
    return words


def whole_way(command: InContainer, words: list[str], node: int) -> None:
    """Write an inventory of one node, apply it, run a job there, and plan again."""
    hosts = [word for word in words if word.startswith(f"{LAB}-")]
    others = [word for word in words if word not in hosts]
    command.ok("init", hosts[node], *others)
    applied = command.ok("apply", "--yes", "--json").document
    assert [entry["status"] for entry in applied["nodes"]] == ["changed"]
    assert command.ok("verify", "--json").document["ok"]
    assert "right: the sum" in command.ok("run", "--", "provision-smoke").out
    assert command("plan", "--exit-code").code == 0


def test_the_version_is_printed(host: Installed) -> None:
    """That of the wheel; a build outside git knows no commit."""
    assert host.ok("--version").out == f"provision {__version__}\n"


@pytest.mark.slow
def test_root_installs_sets_up_a_node_and_runs_a_job(
    docker: list[str], image: str, release: Path, site: Path, init_words: list[str]
) -> None:
    """From `pip install` to the job, and the second plan is empty."""
    home = site / "root"
    home.mkdir()
    with clean_container(docker, image, release, home) as command:
        whole_way(command, own_files(init_words, home, 0), 0)


def test_an_ordinary_user_installs_sets_up_a_node_and_runs_a_job(
    docker: list[str], image: str, release: Path, site: Path, init_words: list[str]
) -> None:
    """The same without any right: only the home folder and /tmp can be written, and nothing stays in /tmp."""
    home, user = site / "user", 65534
    home.mkdir()
    words = own_files(init_words, home, user)
    limits = [f"--user={user}:{user}", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"]
    with clean_container(docker, image, release, home, *limits, "--tmpfs=/tmp") as command:
        whole_way(command, words, 1)

        assert command.shell(f"find /tmp -xdev -user {user} -not -path {home}") == ""


@pytest.mark.slow
def test_a_role_runs_from_the_collection(program: Path, host: Installed, init_words: list[str], site: Path) -> None:
    """Ansible alone restores a file that the role manages, with modules and filters of the installed collection."""
    archive = build(site)
    environment = {**host.environment, "ANSIBLE_COLLECTIONS_PATH": str(site / "collections")}
    inventory = host.ok("lab", "status", LAB, "--json").document["inventory"]
    limits = "/etc/security/limits.d/90-provision.conf"
    node = next(word for word in init_words if word.startswith(f"{LAB}-")).partition("=")[0]
    remove = host.ok("lab", "ssh", LAB, node, "--", f"rm {limits}; ls /etc/security/limits.d").out
    assert limits not in remove
    for words in (
        ["ansible-galaxy", "collection", "install", "--offline", str(archive)],
        ["ansible-playbook", "-i", inventory, "provision.cluster.nodes", "--tags", "base_system", "--limit", node],
    ):
        argv = [str(program.with_name(words[0])), *words[1:]]
        done = subprocess.run(
            argv, cwd=host.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    assert "memlock" in host.ok("lab", "ssh", LAB, node, "--", f"cat {limits}").out
