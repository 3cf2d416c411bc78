"""The cache of long outputs: a node sends only the hash of a text that the controller has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar

from provision.facts import Fact, Outputs, Parameters, RawOutput, Unknown, request
from provision.facts.probe_request import split
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE
from tests.support.node.probe import probe_output

LONG = "\n".join(f"package-{number}=1.{number}" for number in range(200)) + "\n"


class Packages:
    """Prints text that is the same on all nodes."""

    name: ClassVar[str] = "packages"
    label: ClassVar[str] = "dpkg-query"
    limit_seconds: ClassVar[int] = 5
    command: ClassVar[str] = 'number=0; while [ $number -lt 200 ]; do echo "package-$number=1.$number"; number=$((number + 1)); done; exit 3'  # fmt: skip  # noqa: E501

    def parse(self, raw: RawOutput) -> RawOutput:
        """Return the output unchanged."""
        return raw


class Hostname(Packages):
    """Prints little."""

    name: ClassVar[str] = "hostname"
    command: ClassVar[str] = "echo node; echo trouble >&2"


FACTS = [Packages(), Hostname()]


def look(outputs: Outputs | None = None, facts: Sequence[Fact] = FACTS) -> str:
    asked = request(facts, Parameters(known=outputs.digests() if outputs else ()), read_only=True)
    return probe_output([NODE_PYTHON, "-I", "-S", str(ARCHIVE), "probe"], asked)


def test_an_output_of_two_nodes_is_not_sent_by_the_third():
    outputs = Outputs()
    whole = split(look(), FACTS, outputs)
    assert not outputs.digests(), "one node alone may be the only one that prints it"
    split(look(), FACTS, outputs)
    third = look(outputs)
    assert "package-7=" not in third
    assert len(third) < len(LONG) / 4
    assert split(third, FACTS, outputs) == whole
    assert whole["packages"] == RawOutput(LONG, 3)
    assert whole["hostname"] == RawOutput("node\n", 0, "trouble\n")


def test_a_changed_output_is_sent():
    other = LONG.replace("package-7=1.7", "package-7=2.0")
    outputs = Outputs({hashlib.sha256(other.encode()).hexdigest(): other})
    assert split(look(outputs), FACTS, outputs)["packages"] == RawOutput(LONG, 3)


def test_an_unknown_hash_gives_no_output():
    outputs = Outputs()
    split(look(), FACTS, outputs)
    split(look(), FACTS, outputs)
    sections = split(look(outputs), FACTS, Outputs())
    assert isinstance(sections["packages"], Unknown)
    assert isinstance(split(look(outputs), FACTS)["packages"], Unknown)
    assert sections["hostname"] == RawOutput("node\n", 0, "trouble\n")


def test_a_stored_text_with_a_wrong_hash_is_dropped():
    digest = hashlib.sha256(LONG.encode()).hexdigest()
    assert Outputs({digest: LONG}).digests() == (digest,)
    assert not Outputs({digest: LONG + "package-evil=1\n"}).digests()


class Config(Packages):
    """Prints a long confidential text."""

    name: ClassVar[str] = "docker_config"


def test_only_facts_without_confidential_data_are_stored():
    outputs, facts = Outputs(), [Config()]
    text = look(facts=facts)
    for _ in range(3):
        assert split(text, facts, outputs)["docker_config"] == RawOutput(LONG, 3)
    assert not outputs.digests()


def test_a_node_with_many_outputs_does_not_evict_others():
    outputs, token = Outputs(), "0" * 32
    flood = [f"{number} {LONG}" for number in range(300)]
    parts = [f"{token} out packages\n{text}\n{token} err packages\n\n{token} end packages 0" for text in flood]
    parts += [f"{token} out made_up{n}\n{LONG}\n{token} err made_up{n}\n\n{token} end made_up{n} 0" for n in (1, 2)]
    text = "\n".join([f"provision-probe 1 {token}", *parts, *parts, ""])
    split(text, FACTS, outputs)
    assert not outputs.digests()
    for text in flood:
        outputs.saw([text])
        outputs.saw([text])
    assert len(outputs.digests()) == 128


def test_stored_texts_are_limited_and_ordered_by_last_use():
    texts = {hashlib.sha256(text.encode()).hexdigest(): text for text in (f"{n} {LONG}" for n in range(100))}
    outputs = Outputs(texts)
    last = list(texts)[-1]
    outputs.known(last)
    stored = outputs.texts()
    assert len(stored) == 64
    assert next(iter(stored)) == last
