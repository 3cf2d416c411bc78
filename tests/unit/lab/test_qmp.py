"""The client of QEMU's machine protocol, against a server that speaks it over a real socket."""

import json
import os
import socket
import threading

import pytest

from provision.errors import LabError
from provision.lab.qmp import QmpClient


@pytest.fixture
def serve(tmp_path):
    """Start a server that greets and then sends the listed answers; return its path and the received messages."""
    threads = []

    def start(*answers, folder=tmp_path):
        path, heard = folder / "qmp.sock", []
        server = socket.socket(socket.AF_UNIX)
        descriptor = os.open(folder, os.O_PATH)
        server.bind(f"/proc/self/fd/{descriptor}/qmp.sock")
        os.close(descriptor)
        server.listen(1)

        def talk():
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(b'{"QMP": {"version": {}}}\n')
                for answer in answers:
                    heard.append(json.loads(lines.readline()))
                    connection.sendall("".join(json.dumps(part) + "\n" for part in answer).encode())
            server.close()

        threads.append(threading.Thread(target=talk, daemon=True))
        threads[-1].start()
        return path, heard

    yield start
    for thread in threads:
        thread.join(5)


def test_a_command_returns_its_answer_and_skips_events(serve):
    """Events that QEMU sends in between are ignored."""
    event = {"event": "NIC_RX_FILTER_CHANGED", "data": {}}
    path, heard = serve([{"return": {}}], [event, {"return": {"status": "running"}}])
    with QmpClient(path, node="lab-1") as client:
        assert client.execute("query-status") == {"status": "running"}
    assert [message["execute"] for message in heard] == ["qmp_capabilities", "query-status"]


def test_a_refusal_is_an_error_with_the_message_of_qemu(serve):
    """What QEMU refuses is reported with its reason and the node's name."""
    path, _ = serve([{"return": {}}], [{"error": {"class": "DeviceNotFound", "desc": "Device 'x' not found"}}])
    with QmpClient(path, node="lab-1") as client, pytest.raises(LabError, match="Device 'x' not found") as caught:
        client.execute("set_link", name="x", up=False)
    assert caught.value.node == "lab-1"


def test_a_machine_that_ends_during_a_command_is_an_error(serve):
    """A machine that ends during a request causes an error, not a hang."""
    path, _ = serve([{"return": {}}])
    with QmpClient(path, node="lab-1") as client, pytest.raises(LabError, match="did not answer"):
        client.execute("query-status")


def test_long_folder_names_work(serve, tmp_path):
    """A lab in a folder deeper than a socket address may be long is controlled like any other."""
    folder = tmp_path / ("d" * 120) / "e"
    folder.mkdir(parents=True)
    path, _ = serve([{"return": {}}], folder=folder)
    QmpClient(path, node="lab-1").close()
    assert len(os.fsencode(path)) > 107


def test_a_missing_socket_is_an_error(tmp_path):
    """A missing socket is reported as such."""
    with pytest.raises(LabError, match="control socket does not answer"):
        QmpClient(tmp_path / "none.sock", node="lab-1")
