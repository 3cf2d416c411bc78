"""Firewall changes of a Docker engine, and their removal."""

from __future__ import annotations

from provision.lab.engine_traces import chains_and_rules, undo_commands

BEFORE = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:SITE - [0:0]
-A FORWARD -s 10.0.0.0/8 -j SITE
COMMIT
"""
NOW = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:SITE - [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o br-0123456789ab -j DOCKER
-A FORWARD -s 10.0.0.0/8 -j SITE
-A FORWARD -s 10.9.0.0/16 -m comment --comment "two words" -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
"""


def test_only_the_rules_of_the_engine_are_removed():
    """After the engine its chains, the jumps to them and the rules of its bridges are gone; nothing else."""
    commands = undo_commands(BEFORE, NOW)

    assert ["-t", "filter", "-D", "FORWARD", "-j", "DOCKER-USER"] in commands
    assert ["-t", "filter", "-D", "FORWARD", "-o", "br-0123456789ab", "-j", "DOCKER"] in commands
    assert ["-t", "nat", "-X", "DOCKER"] in commands
    assert not any("SITE" in command or "two words" in command for command in commands)


def test_rules_are_deleted_before_their_chains():
    """A chain that is still referred to could not be removed."""
    verbs = [command[2] for command in undo_commands(BEFORE, NOW)]

    assert verbs == sorted(verbs, key=["-D", "-F", "-X", "-P"].index)


def test_the_policy_is_restored():
    """Docker makes FORWARD drop; a machine that forwarded forwards again."""
    assert undo_commands(BEFORE, NOW)[-1] == ["-t", "filter", "-P", "FORWARD", "ACCEPT"]


def test_an_unchanged_firewall_needs_no_commands():
    """Nothing is touched where nothing was added."""
    assert undo_commands(NOW, NOW) == []


def test_saved_rules_are_parsed_by_table():
    """Chains come with their policy, rules in order."""
    chains, rules = chains_and_rules(BEFORE)

    assert chains["filter"] == {"INPUT": "ACCEPT", "FORWARD": "ACCEPT", "SITE": "-"}
    assert rules == {"filter": ["-A FORWARD -s 10.0.0.0/8 -j SITE"]}
