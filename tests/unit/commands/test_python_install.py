"""Installing python3 on a node without it: the script runs here, with stand-ins for the package manager."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from provision.commands.python_install import install_script
from provision.facts import proxies

TOOLS = ("cat", "chmod", "grep", "mktemp", "rm", "sed", "setsid", "sh", "tail")
PROXY = "http://me:pa55word@proxy:3128"
LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 612 (apt-get)"
INSTALLS = """case "$*" in *" install python3") printf '#!/bin/sh\\n' >$BIN/python3; chmod +x $BIN/python3 ;; esac
"""


@pytest.fixture
def node(tmp_path):
    """A PATH with the tools of a node, and stand-ins that log their calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name))
    stand_in(folder, "sleep", "")
    stand_in(folder, "dpkg", "")
    stand_in(folder, "apt-get", INSTALLS)
    (tmp_path / "tmp").mkdir()
    return folder


def stand_in(folder: Path, name: str, body: str) -> None:
    """Write a program that logs its call."""
    text = f'#!{folder}/sh\nBIN={folder}; LOG={folder.parent}/calls; echo {name} "$@" >>$LOG\n{body}'
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def start(node: Path, script: str, **options: object) -> subprocess.Popen[str]:
    """Run a script as on a node."""
    environment = {"PATH": str(node), "TMPDIR": str(node.parent / "tmp")}
    return subprocess.Popen(["sh", "-c", script], env=environment, text=True, stderr=subprocess.PIPE, **options)


def run(node: Path, script: str) -> tuple[int, str]:
    """Return the exit code and the messages of a script."""
    with start(node, script) as process:
        return process.wait(timeout=60), process.stderr.read()


def calls(node: Path) -> list[str]:
    """Return program and last arguments of each call, without those of `sleep`."""
    lines = (node.parent / "calls").read_text().splitlines()
    return [line for line in lines if not line.startswith("sleep")]


def steps(node: Path) -> list[str]:
    """Return what apt and dpkg were called for."""
    names = ("--configure", "update", "--fix-broken", "install")
    return [next(name for name in names if name in line.split()) for line in calls(node)]


def test_an_interrupted_transaction_is_finished_first(node):
    """What a lost connection or a power cut left half configured would make every installation fail."""
    code, _ = run(node, install_script({}))

    assert code == 0
    assert steps(node) == ["--configure", "update", "install"]
    assert list((node.parent / "tmp").iterdir()) == []


def test_it_waits_for_the_lock_of_the_package_lists(node):
    """On a fresh boot apt-daily holds it; `DPkg::Lock::Timeout` does not apply to `apt-get update`."""
    busy = f'case "$*" in *update) [ "$(grep -c update $LOG)" -gt 3 ] || {{ echo "{LOCKED}" >&2; exit 100; }} ;; esac\n'
    stand_in(node, "apt-get", busy + INSTALLS)
    code, _ = run(node, install_script({}))

    assert code == 0
    assert steps(node) == ["--configure", *["update"] * 4, "install"]


def test_a_lock_that_is_never_released_is_reported(node):
    """After 300 seconds, with the process that holds it."""
    stand_in(node, "apt-get", f"echo '{LOCKED}' >&2; exit 100\n")
    code, messages = run(node, install_script({}))

    assert code != 0
    assert "held by process 612" in messages
    naps = [line for line in (node.parent / "calls").read_text().splitlines() if line.startswith("sleep")]
    assert len(naps) == 100


def test_existing_lists_are_used_if_the_update_fails(node):
    """A node whose mirror is down can still have the package in its cache."""
    stand_in(node, "apt-get", 'case "$*" in *update) exit 100 ;; esac\n' + INSTALLS)
    code, _ = run(node, install_script({}))

    assert code == 0


def test_the_end_of_the_output_is_reported(node):
    """And python3 that is missing afterwards is a failure."""
    stand_in(node, "apt-get", "echo 'E: Unable to locate package python3'; exit 100\n")
    code, messages = run(node, install_script({}))

    assert code != 0
    assert "Unable to locate package python3" in messages


def test_proxies_of_the_inventory_are_used(node):
    """Their password appears on no command line."""
    stand_in(node, "apt-get", 'echo "$http_proxy $https_proxy $no_proxy" >>$BIN/../proxies\n' + INSTALLS)
    variables = {"cluster_http_proxy": PROXY, "cluster_no_proxy": "10.0.0.0/8"}
    script = install_script(proxies(variables))
    environment = {"PATH": str(node), "TMPDIR": str(node.parent / "tmp")}
    subprocess.run(["sh"], input=script, env=environment, text=True, check=True, capture_output=True)

    seen = set((node.parent / "proxies").read_text().splitlines())
    assert seen == {f"{PROXY} {PROXY} 10.0.0.0/8"}
    assert "pa55word" not in (node.parent / "calls").read_text()


def test_it_continues_when_the_connection_is_lost(node):
    """The end of the session and of its pipes would otherwise end dpkg in the middle of its work."""
    begun, go, done = (node.parent / name for name in ("begun", "go", "done"))
    for path in (begun, go, done):
        os.mkfifo(path)
    body = f"""case "$*" in *" install python3")
    echo begun >{begun}
    read -r line <{go}
    for number in 1 2 3 4; do echo Unpacking...; echo Unpacking... >&2; done
    echo done >{done}
esac
"""
    stand_in(node, "apt-get", body)
    process = start(node, install_script({}), stdout=subprocess.PIPE, start_new_session=True)
    assert begun.read_text() == "begun\n"
    process.stdout.close()
    process.stderr.close()
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=60)
    go.write_text("go\n")

    assert done.read_text() == "done\n"


def test_a_node_without_a_known_package_manager_is_reported(node):
    """Its operator has to install python3."""
    (node / "apt-get").unlink()
    code, messages = run(node, install_script({}))

    assert code == 1
    assert "no package manager is supported" in messages


SITE = {
    "name": "site",
    "uris": ["https://me:pa55word@mirror.example/centos/7.9/$basearch"],
    "suites": (),
    "components": (),
    "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ$PWD`x`\n-----END PGP PUBLIC KEY BLOCK-----",
}


def test_yum_uses_only_the_repositories_of_the_site(node):
    """Those of CentOS 7.6 have no python3 and do not answer. The files are removed again."""
    (node / "apt-get").unlink()
    copies = node.parent / "copies"
    copies.mkdir()
    copy = f'cat 0.repo >{copies}/repo; cat 0.key >{copies}/key; echo "$PWD" >{copies}/folder\n'
    stand_in(node, "yum", copy + INSTALLS)
    code, messages = run(node, install_script({}, [SITE]))
    folder, repository = (copies / "folder").read_text().strip(), (copies / "repo").read_text()

    assert code == 0, messages
    assert "baseurl=https://mirror.example/centos/7.9/$basearch\n" in repository
    assert f"gpgcheck=1\nrepo_gpgcheck=0\ngpgkey=file://{folder}/0.key\nusername=me\n" in repository
    assert (copies / "key").read_text().strip() == SITE["key"]
    assert calls(node) == [f"yum -q -y --setopt=reposdir={folder} install python3"]
    assert "pa55word" not in messages
    assert list((node.parent / "tmp").iterdir()) == []


def test_yum_uses_the_repositories_of_the_node_without_others(node):
    """As dnf does."""
    (node / "apt-get").unlink()
    stand_in(node, "yum", INSTALLS)

    assert run(node, install_script({}))[0] == 0
    assert calls(node) == ["yum -q -y install python3"]


def test_a_repository_without_any_check_of_signatures_is_refused():
    """Before the script reaches a node."""
    with pytest.raises(ValueError, match="nothing is verified"):
        install_script({}, [{**SITE, "gpgcheck": False}])
