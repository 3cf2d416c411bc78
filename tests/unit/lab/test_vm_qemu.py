"""The QEMU process of a node: its command line and its identification."""

import subprocess
import threading

import pytest

from provision.lab.vm_qemu import Machine, MachineSettings, is_running, kill, qemu_argv
from tests.support.command import eventually

SETTINGS = MachineSettings(
    accelerator=("-accel", "tcg", "-cpu", "max"),
    cpus=2,
    memory_mib=3072,
    ssh_port=22345,
    multicast="230.7.7.9:23456",
    management_mac="52:54:00:10:09:01",
    data_mac="52:54:00:77:09:01",
)


@pytest.fixture
def machine(tmp_path):
    return Machine("lab-1", tmp_path)


@pytest.fixture
def stranger():
    """A process that is no node."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def start_lookalike(machine):
    """A process that carries the node's pid file on its command line, as the node's QEMU does."""
    process = subprocess.Popen(["sh", "-c", "sleep 60; :", "qemu", "-pidfile", str(machine.pid_file)])
    machine.pid_file.write_text(f"{process.pid}\n")
    threading.Thread(target=process.wait, daemon=True).start()  # as init does: a dead process leaves the list
    return process


def test_a_reused_process_number_is_not_the_node(machine, stranger):
    """After a crash a stale pid file may name another program: it counts as nothing and is left alive."""
    machine.pid_file.write_text(f"{stranger.pid}\n")
    assert not is_running(machine)
    kill(machine)
    assert stranger.poll() is None
    assert not machine.pid_file.exists()


def test_a_power_cut_kills_the_nodes_process(machine):
    """The node's own process is identified, killed and waited for."""
    process = start_lookalike(machine)
    eventually(lambda: is_running(machine), seconds=10, what="the new process shows its own command line")
    kill(machine)
    assert process.wait(timeout=10) == -9
    assert not is_running(machine)


@pytest.mark.parametrize("content", [None, "", "rubbish", "4194305"])
def test_a_node_without_a_process_is_stopped(machine, content):
    """No pid file, a damaged one or one of a process that is gone: the node does not run, and killing it is fine."""
    if content is not None:
        machine.pid_file.write_text(content)
    assert not is_running(machine)
    kill(machine)
    assert not machine.pid_file.exists()


def test_ports_of_a_node_are_local_to_this_machine(machine):
    """SSH and the data network are bound to the loopback interface."""
    argv = qemu_argv(machine, SETTINGS)
    network = [word for word in argv if word.startswith(("user,", "socket,"))]
    assert network == [
        "user,id=management,hostfwd=tcp:127.0.0.1:22345-:22",
        "socket,id=data,mcast=230.7.7.9:23456,localaddr=127.0.0.1",
    ]


def test_commas_in_a_path_are_escaped(tmp_path):
    """A lab in a folder with a comma in its name works: QEMU takes commas as separators unless doubled."""
    argv = qemu_argv(Machine("lab-1", tmp_path / "a,b"), SETTINGS)
    assert any(f"file={tmp_path}/a,,b/disk.qcow2," in word for word in argv)


def test_the_end_of_the_console_output_is_returned(machine):
    """The last console output of a stopped node is available; an empty console is no error."""
    assert machine.last_words() == ""
    machine.serial.write_text("one\r\n\r\ntwo\r\nKernel panic\r\n")
    assert machine.last_words(2) == "two\nKernel panic"
