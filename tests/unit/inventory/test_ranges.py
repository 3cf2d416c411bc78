import pytest

from provision.errors import UsageError
from provision.inventory.ranges import HostWord, expand


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["gpu[1-3]"], ["gpu1", "gpu2", "gpu3"]),
        (["gpu[08-11]"], ["gpu08", "gpu09", "gpu10", "gpu11"]),
        (["a[1-2]b[3-4]"], ["a1b3", "a1b4", "a2b3", "a2b4"]),
        (["gpu[1,3,5-6]", "head"], ["gpu1", "gpu3", "gpu5", "gpu6", "head"]),
        (["a,b,c[1-2]"], ["a", "b", "c1", "c2"]),
        (["n[a-c].example.com"], ["na.example.com", "nb.example.com", "nc.example.com"]),
    ],
)
def test_ranges_and_lists_are_expanded(words, names):
    """A range in brackets stands for every host in it, in order, with the zeros it was written with."""
    assert [host.name for host in expand(words)] == names


@pytest.mark.parametrize(
    ("word", "hosts"),
    [
        ("a=10.0.0.1", [HostWord("a", "10.0.0.1")]),
        ("a=10.0.0.1:2222", [HostWord("a", "10.0.0.1", 2222)]),
        ("a=[fd00::1]:2222", [HostWord("a", "fd00::1", 2222)]),
        ("a=fd00::1", [HostWord("a", "fd00::1")]),
        ("a[1-2]=10.0.0.[11-12]:22", [HostWord("a1", "10.0.0.11", 22), HostWord("a2", "10.0.0.12", 22)]),
        ("10.0.0.[7-8]", [HostWord("node-10-0-0-7", "10.0.0.7"), HostWord("node-10-0-0-8", "10.0.0.8")]),
    ],
)
def test_a_host_can_have_an_address_and_a_port(word, hosts):
    """NAME=ADDRESS[:PORT] says where a host is; a bare address gets a name made from it."""
    assert list(expand([word])) == hosts


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("gpu[3-1]", "is descending"),
        ("gpu[1", "invalid range"),
        ("gpu[1-9999]", "more than 4096"),
        ("a[1-99]b[1-99]", "more than 4096"),
        ("gpu[1:8]", "invalid range"),
        ("root@gpu1", "must not contain a user"),
        ("-oProxyCommand=x", "not a host name"),
        ("gpu 1", "not a host name"),
        ("a=10.0.0.999", "neither an address nor a host name"),
        ("a=10.0.0.1:99999", "not a TCP port"),
        ("a[1-3]=10.0.0.[1-2]", "3 names but 2 addresses"),
        ("a=", "no address"),
        ("all", "is reserved by Ansible"),
        ("a,a", "duplicate host"),
        ("a=10.0.0.1,b=10.0.0.1", "a and b have the same address"),
        (",", "no hosts given"),
    ],
)
def test_invalid_words_are_refused_with_a_reason(word, says):
    """What cannot be meant is refused, and the message says which word and why."""
    with pytest.raises(UsageError, match=says) as caught:
        expand([word])

    assert caught.value.exit_code == 2
