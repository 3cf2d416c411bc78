"""How often ``ssh -G`` runs, and that hosts share an answer only if ssh_config treats them alike."""

from __future__ import annotations

import shutil
import stat
import subprocess
import threading

import pytest

from provision.commands.ssh import parse_settings, settings_argv
from provision.connectors.ssh_config import SshConfig
from provision.errors import ConnectionFailed
from provision.model import Connection

HOSTS = [f"gpu{number}" for number in range(1, 6)] + ["10.0.0.1", "10.0.0.2"]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The real ssh, behind a program of the same name that notes each call."""
    real, calls = shutil.which("ssh"), tmp_path / "calls"
    calls.write_text("")
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\nexec {real} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return lambda: calls.read_text().splitlines()


@pytest.fixture
def connection(tmp_path):
    """A connection with an ssh_config of these lines."""

    def make(host: str, text: str | None, **more) -> Connection:
        config = tmp_path / "config"
        if text is not None:
            config.write_text(text)
        return Connection(host, user="root", ssh_args=("-F", str(config) if text is not None else "none"), **more)

    return make


def direct(connection: Connection):
    """What ssh itself answers for this one host."""
    done = subprocess.run(settings_argv(connection), capture_output=True, text=True, check=True)
    return parse_settings(done.stdout)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "# Host a\nUser op\n",
        'Host *\n  SendEnv LANG\n  GlobalKnownHostsFile "/etc/a b"\n',
        "host *\nport=2222\n",
    ],
    ids=["none", "empty", "no stanza", "all hosts", "one word"],
)
def test_hosts_with_the_same_configuration_share_one_ssh_call(asked, connection, text):
    """A thousand nodes need one call, and each gets the same answer as from a call of its own."""
    config = SshConfig()
    answers = {host: config.settings(host, connection(host, text)) for host in HOSTS}
    count = len(asked())

    assert count == 1
    assert answers == {host: direct(connection(host, text)) for host in HOSTS}


@pytest.mark.parametrize(
    "text",
    [
        "Host gpu2\n  Port 2222\n",
        "Host * !gpu2\n  Port 2222\n",
        "Match host gpu2\n  Port 2222\nMatch all\n  Port 22\n",
        'Match exec "test %h = gpu2"\n  Port 2222\n',
        "HostName %h.example\n",
        "IdentityFile ~/.ssh/%n\n",
        "CanonicalizeHostname yes\nCanonicalDomains invalid\n",
    ],
    ids=["host", "negated", "match", "exec", "name", "key", "canonical"],
)
def test_hosts_with_different_configuration_are_evaluated_separately(asked, connection, text):
    """Whatever might mean something else for another host is answered by ssh for each."""
    config = SshConfig()
    answers = {host: config.settings(host, connection(host, text)) for host in HOSTS}
    count = len(asked())

    assert count >= len(HOSTS)
    assert answers == {host: direct(connection(host, text)) for host in HOSTS}


def test_included_files_are_evaluated(asked, connection, tmp_path):
    """ssh itself reports which files it read, so that a Host line in an included one is seen."""
    (tmp_path / "more").write_text("Host gpu2\n  Port 2222\n")
    text = f"Include {tmp_path}/mor?\nHost *\n  User op\n"
    config = SshConfig()

    assert config.settings("a", connection("gpu1", text)).port == 22
    assert config.settings("b", connection("gpu2", text)).port == 2222
    assert len(asked()) > 2


def test_an_ssh_that_does_not_report_its_files_is_called_for_each_host(asked, connection, tmp_path):
    """Where ssh does not say which files it read, each host is asked for."""
    config, words = SshConfig(), ("-q", "-F", str(tmp_path / "config"))
    connection("x", "Host gpu2\n  Port 2222\n")

    assert config.settings("a", Connection("gpu1", ssh_args=words)).port == 22
    assert config.settings("b", Connection("gpu2", ssh_args=words)).port == 2222
    assert len(asked()) > 2


@pytest.mark.parametrize("host", ["GPU1", "::1", "127.1", "0x7f.1", "op@gpu1", "ssh://gpu1:23", "gpu1."])
def test_unusual_host_names_are_evaluated_separately(asked, connection, host):
    """Only plain names and addresses are put into the answer that was given for another."""
    assert SshConfig().settings("a", connection(host, "")) == direct(connection(host, ""))
    assert f"-- {host}" in asked()[-1]


def test_a_jump_host_is_not_its_own_jump_host(asked, connection):
    """ssh refuses that, which the answer for another host does not say."""
    config = SshConfig()
    config.settings("a", connection("gpu1", "", jump="root@gpu2:22"))
    with pytest.raises(ConnectionFailed, match="loop via gpu2"):
        config.settings("b", connection("gpu2", "", jump="root@gpu2:22"))

    assert asked()[-1].endswith("-- gpu2")


def test_concurrent_queries_share_one_ssh_call(asked, connection):
    """The same question of many threads is one."""
    config, answers = SshConfig(), []
    text = "Host gpu9\n  Port 2222\n"

    def ask() -> None:
        answers.append(config.settings("a", connection("gpu1", None)))

    connection("x", text)
    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 20
    assert len(asked()) == 1


def test_an_invalid_configuration_is_an_error_of_each_node(connection):
    """Every node has an error of its own, with its own name."""
    config, failed_nodes = SshConfig(), []
    for host in ("gpu1", "gpu2"):
        with pytest.raises(ConnectionFailed, match=f"configuration for {host}") as caught:
            config.settings(host, connection(host, "NoSuchWord yes\n"))
        failed_nodes.append(caught.value.node)

    assert failed_nodes == ["gpu1", "gpu2"]
