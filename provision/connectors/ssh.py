"""Default connector: SSH with paramiko in this process, with the operator's known_hosts files and keys.

Fabric's Connection is not used because it accepts unknown host keys.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from provision.connectors import failures
from provision.connectors.limits import (
    EXIT_SECONDS,
    OUTPUT_LIMIT,
    SEND_SECONDS,
    SESSION_LIMIT,
    Allowance,
    collected,
    late,
)
from provision.connectors.shell import ShellConnector
from provision.connectors.ssh_transport import Hop, close_transport, lost, open_transport
from provision.errors import ProvisionError
from provision.model import CommandResult, Node, Secret

if TYPE_CHECKING:
    import paramiko

_CHUNK = 65536
_POLL_MILLISECONDS = 50
_OPEN_SECONDS = 10.0
_TURN_SECONDS = 30.0
"""Timeout for the lock on opening sessions; if the node is gone, each waiting thread runs into its own timeout."""


class SshConnector(ShellConnector["SshProcess"]):
    """One SSH connection. Each command is a session of it.

    sshd allows ten sessions per connection unless MaxSessions is set. Further sessions get further connections.
    """

    reason = "paramiko can make this connection"

    def __init__(self, node: Node, hops: Sequence[Hop]) -> None:
        """Connect to `node` through all `hops`, of which it is the last."""
        settings = hops[-1].settings
        super().__init__(node, settings.user, root=settings.user == "root")
        self.agent = node.connection.agent
        self.host = settings.host
        failures.check_strict(node.name, node.connection, settings)
        self._login_password: Secret | None = node.connection.password
        self._hops = hops
        self._transports: list[paramiko.Transport] = []
        self._ends: list[paramiko.Transport] = []
        """The transport to the node of each connection."""
        self._opening = threading.Lock()
        self._allowance = Allowance(node.name, SESSION_LIMIT)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def limited_session(self, limit: int) -> LimitedChannel:
        """Open a session whose output is limited to `limit` bytes."""
        channel = self._channel()
        channel.settimeout(SEND_SECONDS)
        return LimitedChannel(channel, (Allowance(self.name, limit), self._allowance))

    def close(self) -> None:
        """Close the connection. Repeated calls have no effect."""
        self._ends.clear()
        while self._transports:
            close_transport(self._transports.pop())

    def _process(self, command: str, limit: int | None = OUTPUT_LIMIT) -> SshProcess:
        try:
            channel = self._channel()
            channel.settimeout(SEND_SECONDS)
            with _reply_limit(channel):
                channel.exec_command(command)  # nosec B601 # callers quote the words with shlex
        except ProvisionError:
            raise
        except Exception as error:  # paramiko re-raises errors of its thread about data of the node
            raise failures.broke(self.name, self.host, "starting a command") from error
        allowances = (Allowance(self.name, limit), self._allowance) if limit is not None else ()
        return SshProcess(self.name, self.host, channel, allowances)

    def _connect(self) -> paramiko.Transport:
        last: paramiko.Transport | None = None
        for hop in self._hops:
            password = self._login_password if hop is self._hops[-1] else None
            last = open_transport(self.name, hop, password=password, through=last)
            self._transports.append(last)
        self._ends.append(self._transports[-1])
        return self._ends[-1]

    def _channel(self) -> paramiko.Channel:
        """Open a session on the first connection with a free one, or on a new connection.

        Sessions are opened one after the other, because paramiko reports a refusal to the first thread that asks.
        """
        import paramiko

        if not self._opening.acquire(timeout=_TURN_SECONDS):
            raise TimeoutError
        try:
            ends = list(self._ends)
            if not ends:
                raise EOFError  # it was closed
            for end in ends:
                with contextlib.suppress(paramiko.ChannelException):
                    return end.open_session(timeout=_OPEN_SECONDS)
            try:
                return self._connect().open_session(timeout=_OPEN_SECONDS)
            except paramiko.ChannelException as error:
                raise failures.no_session(self.name, self.host) from error
        finally:
            self._opening.release()


@contextlib.contextmanager
def _reply_limit(channel: paramiko.Channel) -> Iterator[None]:
    """Close the channel if the node does not answer the request in time, because paramiko waits without a limit.

    paramiko then raises SSHException in the waiting thread.
    """
    timer = threading.Timer(SEND_SECONDS, channel.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class LimitedChannel:
    """A paramiko channel that raises ConnectionFailed if the node sends too much."""

    def __init__(self, channel: paramiko.Channel, allowances: Sequence[Allowance]) -> None:
        self._channel, self._allowances = channel, allowances

    def __getattr__(self, name: str) -> Any:
        """Return all other attributes of the channel."""
        return getattr(self._channel, name)

    def exec_command(self, command: str) -> None:
        """Start a command; raise SSHException if the node does not confirm the start in time."""
        with _reply_limit(self._channel):
            self._channel.exec_command(command)  # nosec B601 # Fabric's runner passes a complete shell command

    def recv(self, size: int) -> bytes:
        """Return the next piece of standard output."""
        return self._allowed(self._channel.recv(size))

    def recv_stderr(self, size: int) -> bytes:
        """Return the next piece of standard error."""
        return self._allowed(self._channel.recv_stderr(size))

    def _allowed(self, chunk: bytes) -> bytes:
        for allowance in self._allowances:
            allowance.spend(len(chunk))
        return chunk


class SshProcess:
    """A command on a node with a connected SSH channel."""

    def __init__(self, node: str, host: str, channel: paramiko.Channel, allowances: Sequence[Allowance] = ()) -> None:
        self.deadline: float | None = None
        self._node, self._host, self._channel, self._allowances = node, host, channel, allowances
        self._pending = b""
        self._close_after_pending = False

    def write(self, data: bytes) -> None:
        """Send `data` to standard input; ConnectionFailed if the connection is lost or accepts no data for a minute.

        Data for a command that has ended or closed its input is discarded.
        """
        try:
            self._channel.sendall(data)
        except TimeoutError as error:
            raise failures.broke(self._node, self._host, "sending data that it does not accept") from error
        except lost() as error:
            if not self._alive() or not isinstance(error, (OSError, EOFError)):
                raise failures.broke(self._node, self._host, "sending data") from error

    def close_stdin(self) -> None:
        """Close the command's standard input."""
        try:
            self._channel.shutdown_write()
        except lost():
            return

    def result(self, stdin: bytes, seconds: float) -> CommandResult:
        """Send `stdin` while the output is read; return all output and the exit status."""
        self._pending, self._close_after_pending = stdin, True
        self.deadline = time.monotonic() + seconds
        try:
            return CommandResult(*collected(self.output()), self.wait())
        finally:
            self.close()

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yield ``("stdout"|"stderr", chunk)`` as it arrives, until the command ends.

        ConnectionFailed if the node exceeds the limit of output or time.
        """
        ready = select.poll()
        ready.register(self._channel.fileno(), select.POLLIN)
        while True:
            chunks = list(self._received())
            yield from chunks
            self._check_deadline()
            if chunks or self._send_pending():
                continue
            if self._channel.eof_received or self._channel.closed:
                yield from self._received()
                return
            exited = self._channel.exit_status_ready()
            if not ready.poll(_POLL_MILLISECONDS if self._pending else 1000) and exited:
                return  # a background child keeps the output open although the command has ended

    def _received(self) -> Iterator[tuple[str, bytes]]:
        if self._channel.recv_ready():
            yield "stdout", self._allowed(self._read(self._channel.recv))
        if self._channel.recv_stderr_ready():
            yield "stderr", self._allowed(self._read(self._channel.recv_stderr))

    def _read(self, receive: Callable[[int], bytes]) -> bytes:
        try:
            return receive(_CHUNK)
        except lost() as error:  # paramiko reports to the node how much was read, and fails if it cannot
            raise failures.broke(self._node, self._host, "running a command") from error

    def _allowed(self, chunk: bytes) -> bytes:
        for allowance in self._allowances:
            allowance.spend(len(chunk))
        return chunk

    def ended(self) -> bool:
        """Return at once whether the command or the connection has ended. Remaining output can still be read."""
        return self._channel.exit_status_ready() or self._channel.closed or not self._alive()

    def wait(self) -> int:
        """Return the exit status; ConnectionFailed if the connection was lost before it arrived.

        After the end of the output the status has to arrive within a minute.
        """
        end = time.monotonic() + EXIT_SECONDS
        while not self._channel.status_event.wait(0.2):
            self._check_deadline()
            if self._channel.eof_received and time.monotonic() > end:
                raise late(self._node)
            if self._channel.closed or not self._alive():
                break
        status = self._channel.exit_status
        if status < 0:
            raise failures.broke(self._node, self._host, "running a command")
        return status

    def close(self) -> None:
        """Close the session, which closes the command's standard input."""
        try:
            self._channel.close()
        except lost():
            return

    def _send_pending(self) -> bool:
        """Send as much as the channel's window allows; False if there was nothing to send."""
        if not self._close_after_pending or (self._pending and not self._channel.send_ready()):
            return False
        try:
            self._pending = self._pending[self._channel.send(self._pending[:_CHUNK]) :] if self._pending else b""
        except lost() as error:
            if not isinstance(error, (OSError, EOFError)):
                raise failures.broke(self._node, self._host, "sending data") from error
            self._pending = b""  # the command closed its input; its exit status is the result
        if not self._pending:
            self._close_after_pending = False
            self.close_stdin()
        return True

    def _alive(self) -> bool:
        transport = self._channel.get_transport()
        return transport is not None and transport.is_active()

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise late(self._node)
