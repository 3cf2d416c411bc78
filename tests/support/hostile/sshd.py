"""SSH servers in threads of this process; some of them speak SSH and mean harm."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

import paramiko
from paramiko.common import cMSG_CHANNEL_DATA

from provision.commands.ssh import END_OF_SCRIPT
from tests.support.hostile.honest import Answer, Question

__all__ = ["GARBAGE", "HostileSshd"]

_SCRIPT = re.compile(rb"head -c (\d+)")
GARBAGE = ("noise", "endless banner", "many banners", "huge packet", "endless handshake")
"""What is no SSH."""


class HostileSshd:
    """The servers of some nodes, each at an address of its own and all at the same port.

    A node behaves as `behaviours` says: ``honest``, ``endless`` (output without end), ``flood`` (likewise, whatever the
    window), ``mute`` (no reply to the request for a command), ``silent`` (a command that prints nothing and does not
    end), ``no exit`` (output that ends and no exit status), ``deaf`` (takes no input), or one of `GARBAGE`.
    """

    def __init__(self, addresses: dict[str, str], key: str, answer: Callable[[str, Question], Answer]) -> None:
        self.behaviours = dict.fromkeys(addresses, "honest")
        self.sent: dict[str, int] = dict.fromkeys(addresses, 0)
        """Bytes of output that a node has sent."""
        self._key, self._answer, self._over = key, answer, threading.Event()
        self._listeners: dict[str, socket.socket] = {}
        port = 0
        for name, address in addresses.items():
            listener = socket.create_server((address, port))
            self._listeners[name], port = listener, listener.getsockname()[1]
        self.port = port
        for name in addresses:
            threading.Thread(target=self._listen, args=(name,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for listener in self._listeners.values():
            listener.close()

    def _listen(self, name: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listeners[name].accept()
                threading.Thread(target=self._serve, args=(name, peer), daemon=True).start()

    def _serve(self, name: str, peer: socket.socket) -> None:
        behaviour = self.behaviours[name]
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            if behaviour in GARBAGE:
                self._garbage(behaviour, peer)
                return
            transport = paramiko.Transport(peer)
            transport.add_server_key(paramiko.Ed25519Key(file_obj=io.StringIO(self._key)))
            if behaviour == "deaf":
                transport.default_window_size = 64
            transport.start_server(server=_Server(self, name, behaviour), event=threading.Event())

    def _garbage(self, kind: str, peer: socket.socket) -> None:
        with peer:
            if kind == "noise":
                peer.sendall(bytes(range(256)) * 64 + b"\n")
                return
            if kind in {"endless banner", "many banners"}:
                line = b"x" * 65536 if kind == "endless banner" else b"welcome\r\n" * 8192
                while not self._over.is_set():
                    peer.sendall(line)
            peer.sendall(b"SSH-2.0-hostile\r\n")
            if kind == "huge packet":
                peer.sendall(struct.pack(">IB", 0x7FFFFFF4, 4))
            while not self._over.is_set():
                peer.sendall(b"\0" * 65536)

    def run(self, name: str, behaviour: str, channel: paramiko.Channel, command: bytes) -> None:
        """Answer one command."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            if behaviour == "endless":
                while not self._over.is_set():
                    self.sent[name] += channel.send(b"x" * 32768)
            elif behaviour == "flood":
                transport = channel.get_transport()
                while not self._over.is_set() and transport.is_active():
                    message = paramiko.Message()
                    message.add_byte(cMSG_CHANNEL_DATA)
                    message.add_int(channel.remote_chanid)
                    message.add_string(b"x" * 32000)
                    transport._send_user_message(message)
                    self.sent[name] += 32000
            elif behaviour == "no exit":
                channel.shutdown_write()
                self._over.wait()
            elif behaviour in {"silent", "deaf"}:
                self._over.wait()
            else:
                self._honest(name, channel, command)

    def _honest(self, name: str, channel: paramiko.Channel, command: bytes) -> None:
        head = _SCRIPT.search(command)
        length = int(head[1]) if head else 0
        data, given, over = b"", 0, False
        while len(data) < length and (piece := channel.recv(65536)):
            data += piece
        script = data[:length].decode().removesuffix(f"\n{END_OF_SCRIPT}")
        while True:
            question = Question(script, data[length:])
            if over or not question.program or (len(question.lines) > 1 and question.lines[0]):
                answer = self._answer(name, question) if script else Answer()
                for chunk in answer.chunks[given:]:
                    channel.sendall(chunk)
                given = len(answer.chunks)
                stays = question.program == "lock" and question.request.get("do") == "keep"
                if over or not stays or b'"release"' in b"".join(question.lines[1:]):
                    channel.sendall_stderr(answer.errors)
                    channel.send_exit_status(answer.code)
                    channel.shutdown_write()
                    channel.close()
                    return
            piece = channel.recv(65536)
            data, over = data + piece, not piece


class _Server(paramiko.ServerInterface):
    def __init__(self, sshd: HostileSshd, name: str, behaviour: str) -> None:
        self._sshd, self._name, self._behaviour = sshd, name, behaviour

    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        del kind, chanid
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self._behaviour == "mute":
            self._sshd._over.wait()
        arguments = (self._name, self._behaviour, channel, command)
        threading.Thread(target=self._started, args=arguments, daemon=True).start()
        return True

    def _started(self, name: str, behaviour: str, channel: paramiko.Channel, command: bytes) -> None:
        threading.Event().wait(0.02)  # the reply to the request is sent after this thread begins
        self._sshd.run(name, behaviour, channel, command)
