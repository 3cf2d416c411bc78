"""What firewalld and ufw print and store, and what they admit."""

from __future__ import annotations

import pytest

from provision.facts import RawOutput, Unknown
from provision.facts.firewall import Firewall, FirewallFact

ZONE = """\
{name}
  target: {target}
  icmp-block-inversion: no
  interfaces: {interfaces}
  sources: {sources}
  services: dhcpv6-client ssh
  ports: {ports}
  protocols: 
  forward: yes
  masquerade: no
  forward-ports: {forwarded}
  source-ports: 
  icmp-blocks: 
  rich rules: {rules}

"""  # noqa: W291 - as firewall-cmd prints it
HEAD = "program=firewalld\ndefault_zone=public\n"
UFW = """\
program=ufw
policy="DROP"
### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### limit tcp 80,443,6000:6007 0.0.0.0/0 any 0.0.0.0/0 in
### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 OpenSSH - in comment=7373682066726f6d
### tuple ### deny_log udp any 0.0.0.0/0 any 10.77.0.0/24 in
### tuple ### route:allow any any 0.0.0.0/0 any 10.77.0.0/24 in_ens4!out_ens5
### tuple ### deny any any 0.0.0.0/0 any 10.77.0.0/24 out
### tuple ### deny any any 10.77.0.1 any 10.77.0.0/24 in
### tuple ### allow any any 0.0.0.0/0 any 10.77.0.0/24 in_ens4 comment=70726f766973696f6e
### tuple ### allow tcp 2222 ::/0 any ::/0 in
"""


def zone(name="public (active)", target="default", **values):
    """A zone as firewall-cmd prints it."""
    usual = {"interfaces": "", "sources": "", "ports": "", "forwarded": "", "rules": ""}
    return ZONE.format(name=name, target=target, **{**usual, **values})


def parsed(text, code=0, err=""):
    return FirewallFact().parse(RawOutput(text, code, err))


def admits(firewall, address="10.77.0.2", interface="ens4"):
    return firewall.admission(address, interface).everything


def test_without_an_active_firewall_everything_is_admitted():
    assert parsed("") == Firewall("")
    assert admits(parsed(""))


def test_the_zone_of_the_interface_decides():
    """An interface without a zone is in the default zone."""
    text = HEAD + zone(interfaces="ens4 ens5") + zone("trusted", "ACCEPT")

    assert not admits(parsed(text))
    assert not admits(parsed(text), interface="ens9")
    assert admits(parsed(text.replace("=public", "=trusted")), interface="ens9")


def test_a_zone_of_the_source_comes_before_that_of_the_interface():
    """The longest prefix counts; hardware addresses and ipsets are no networks."""
    sources = "00:11:22:33:44:55 ipset:nodes 10.77.0.0/16"
    firewall = parsed(HEAD + zone(interfaces="ens4") + zone("trusted (active)", "ACCEPT", sources=sources))
    narrower = parsed(
        HEAD + zone("drop (active)", "DROP", sources="10.77.0.0/24") + zone("trusted", "ACCEPT", sources=sources)
    )

    assert admits(firewall)
    assert not admits(firewall, "10.78.0.2")
    assert narrower.admission("10.77.0.2", "ens4").decided_by == "the zone drop has its address"
    assert admits(narrower, "10.77.1.2")


def test_open_ports_and_rich_rules_of_a_zone_are_read():
    """Only TCP ports; forwarded ports are none of the node."""
    rules = (
        '\n\trule priority="-5" family="ipv4" source address="10.77.0.2" accept'
        '\n\trule family="ipv4" source address="10.77.0.3" port port="22" protocol="tcp" accept'
    )
    ports, forwarded = "2222/tcp 1024-65535/udp 4000-5000/tcp", "\n\tport=80:proto=tcp:toport=8080:toaddr="
    firewall = parsed(HEAD + zone(interfaces="ens4", ports=ports, forwarded=forwarded, rules=rules))

    assert admits(firewall)
    assert not admits(firewall, "10.77.0.3")
    assert firewall.admission("10.77.0.3", "ens4").has_ports(4000, 5000)
    assert not firewall.admission("10.77.0.3", "ens4").has_ports(1024, 65535)


def test_rules_of_ufw_count_in_their_order():
    """Those about other directions, protocols, destinations and interfaces do not count."""
    firewall = parsed(UFW)

    assert admits(firewall)
    assert not admits(firewall, interface="ens9")
    assert firewall.admission("10.78.0.2", "ens4").has_ports(22, 22)
    assert not firewall.admission("10.78.0.2", "ens4").has_ports(2222, 2222)
    assert firewall.admission("fd00::2", "ens4").has_ports(2222, 2222)


def test_the_policy_of_ufw_decides_what_no_rule_mentions():
    assert not admits(parsed("program=ufw\npolicy=DROP\n"))
    assert admits(parsed("program=ufw\npolicy='accept'\n"))


@pytest.mark.parametrize(
    "text",
    [
        HEAD,
        HEAD + "  target: default\n",
        HEAD + zone(sources="10.77.0.0/99"),
        HEAD + zone(ports="99999/tcp"),
        HEAD + zone() + "FirewallD is not running: nothing\n",
        "program=ufw\n### tuple ### allow any any 0.0.0.0/0\n",
        "program=ufw\n### tuple ### admit any any 0.0.0.0/0 any 10.77.0.0/24 in\n",
        "program=ufw\n### tuple ### allow tcp ssh 0.0.0.0/0 any 10.77.0.0/24 in\n",
        "program=ufw\n### tuple ### allow any any 0.0.0.0/0 any everybody in\n",
    ],
)
def test_rules_of_an_unknown_form_are_unknown(text):
    """A rule that is left out could hide that jobs hang."""
    assert isinstance(parsed(text), Unknown)


def test_a_client_that_fails_is_reported():
    assert parsed(HEAD, 252, "FirewallD is not running\n") == Unknown("firewall-cmd failed: FirewallD is not running")
