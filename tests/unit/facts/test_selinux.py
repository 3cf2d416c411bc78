"""The mode of SELinux, labels and denials."""

from __future__ import annotations

import pytest

from provision.facts import RawOutput, Unknown
from provision.facts.selinux import Denial, Selinux, SelinuxDenialsFact, SelinuxFact, WrongLabel

STATE = """\
configured=enforcing
enforce=1
label system_u:object_r:container_var_lib_t:s0 /var/lib/docker
label unconfined_u:object_r:default_t:s0 /data
label ? /proc
same /data/docker /var/lib/docker
Would relabel /etc/hosts from unconfined_u:object_r:etc_t:s0 to system_u:object_r:net_conf_t:s0
Would relabel /etc/docker/daemon.json from u:object_r:container_config_t:s0 to system_u:object_r:container_config_t:s0
restorecon: something else
"""
DENIALS = """\
type=AVC msg=audit(1799999000.123:456): avc:  denied  { read open } for  pid=4711 comm="python3" name="data" dev="sda" \
scontext=system_u:system_r:container_t:s0:c1,c2 tcontext=unconfined_u:object_r:default_t:s0 tclass=dir permissive=0
type=AVC msg=audit(1799999001.5:457): avc:  denied  { ioctl } for  pid=1 comm=6D7069 path="/dev/infiniband/uverbs0" \
scontext=system_u:system_r:container_init_t:s0 tcontext=system_u:object_r:infiniband_device_t:s0 tclass=chr_file
type=AVC msg=audit(1799999002.5:458): avc:  denied  { read } for  pid=1 comm="httpd" name="x" \
scontext=system_u:system_r:httpd_t:s0 tcontext=system_u:object_r:default_t:s0 tclass=file permissive=0
type=AVC msg=audit(17): avc:  denied  { read } for scontext=system_u:system_r:container_t:s0 tcontext=a:b:c tclass=x
"""


def test_mode_labels_and_equivalents_are_read():
    """A file with the type of the policy and another user in its label is not wrong."""
    assert SelinuxFact().parse(RawOutput(STATE, 0)) == Selinux(
        "enforcing",
        "enforcing",
        {"/var/lib/docker": "container_var_lib_t", "/data": "default_t"},
        {"/data/docker": "/var/lib/docker"},
        (WrongLabel("/etc/hosts", "etc_t", "net_conf_t"),),
    )


@pytest.mark.parametrize(
    ("text", "mode", "configured"),
    [
        ("", "disabled", ""),
        ("configured=disabled\n", "disabled", "disabled"),
        ("configured=Enforcing\nenforce=0\n", "permissive", "enforcing"),
    ],
)
def test_the_running_mode_may_differ_from_that_of_the_next_boot(text, mode, configured):
    assert SelinuxFact().parse(RawOutput(text, 0)) == Selinux(mode, configured)


@pytest.mark.parametrize("text", ["enforce=2\n", "configured=on\n"])
def test_an_unknown_mode_is_unknown(text):
    assert isinstance(SelinuxFact().parse(RawOutput(text, 0)), Unknown)


def test_denials_of_containers_are_read():
    """Names of commands with other characters are hexadecimal, and left out; so are records of other processes."""
    assert SelinuxDenialsFact().parse(RawOutput(DENIALS, 1)) == (
        Denial(1799999000, "python3", "read open", "default_t", "dir", "data"),
        Denial(1799999001, "a process", "ioctl", "infiniband_device_t", "chr_file", "/dev/infiniband/uverbs0"),
    )
