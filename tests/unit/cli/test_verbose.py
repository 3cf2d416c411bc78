"""``-v``: more details in every verb."""

from __future__ import annotations

import logging

import pytest

from provision.cli import levels, main
from tests.support.help_examples import verbs

HOSTS = "all:\n  hosts:\n    gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}\n"


@pytest.fixture(autouse=True)
def _own_logger(own_level):
    del own_level
    yield
    logger = logging.getLogger("provision")
    logger.handlers = []
    logger.setLevel(logging.NOTSET)


def test_the_list_of_verbs_with_an_own_option_is_complete():
    own = {name for name, command in verbs().items() if any("--verbose" in p.opts for p in command.params)}

    assert own == main.OWN_VERBOSE


@pytest.mark.parametrize("words", [["exec", "-v"], ["-v", "exec"], ["--verbose", "exec"], ["exec", "--verbose"]])
def test_steps_on_the_nodes_are_shown_with_their_times(typed, tmp_path, words):
    """They are on stderr; the text of a command can hold secrets and is not shown."""
    (tmp_path / "hosts.yml").write_text(HOSTS)
    code, out, err = typed(*words, "-i", str(tmp_path / "hosts.yml"), "--", "echo the text")

    assert code == 1
    assert "gpu1: connection: failed after 0." in err
    assert "DEBUG" not in out
    assert "the text" not in err


def test_each_command_on_a_node_is_shown_with_its_time_and_without_its_text(typed, tmp_path):
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    gpu1: {ansible_connection: local}\n")
    code, out, err = typed("exec", "-v", "-i", str(tmp_path / "hosts.yml"), "--", "test abc1 = abc2")

    assert code == 1
    assert "gpu1: command: exit status 1 after 0." in err
    assert "abc1" not in out + err


def test_steps_are_not_shown_by_default(typed, tmp_path):
    (tmp_path / "hosts.yml").write_text(HOSTS)

    assert "DEBUG" not in typed("exec", "-i", str(tmp_path / "hosts.yml"), "--", "true")[2]


@pytest.mark.parametrize("name", sorted(verbs()))
def test_every_verb_accepts_it(name):
    """As its own option, or as that of all verbs, which is removed from its words."""
    verb = name.split()
    words = main._levelled(main.normalise(["-v", *verb]))

    assert words == ([*verb, "-v"] if name in main.OWN_VERBOSE else verb)
    assert (levels._chosen["level"] == "debug") is (name not in main.OWN_VERBOSE)


def test_a_mount_of_a_job_is_not_verbose():
    words = ["submit", "run", "-v", "/a:/b"]

    assert main._levelled(words) == words
    assert main._levelled(["submit", "run", "--verbose"]) == ["submit", "run"]
