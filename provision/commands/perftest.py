"""Build command lines of perftest's ``ib_write_bw``, with a script that ends all its processes. Nothing is executed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from provision.commands.docker import exec_argv

FIRST_PORT = 18515
"""perftest's default. All used ports are above it, and below the ephemeral ports of operating systems."""
PORTS = 100
"""Number of ports that are tried."""

READY, TAKEN, END = "provision-ready", "provision-taken", "provision-end"
"""Output of the script: the server listens (with the port), no port is free, the test has ended (with exit code)."""

_MARGIN_SECONDS = 1
"""Margin in seconds at start and end of a timed test; perftest's default of two seconds is too long for five."""


@dataclass(frozen=True)
class WriteBw:
    """One side of one measurement. Both sides have the same options, except for device, GID and GPU."""

    device: str
    ib_port: int
    gid_index: int | None = None
    """None for InfiniBand, which uses LIDs."""
    size_bytes: int = 65536
    seconds: int | None = None
    iterations: int | None = None
    """Number of iterations, instead of `seconds`."""
    cuda: int | None = None
    """Index of the GPU whose memory is used; None for host memory."""
    cuda_dmabuf: bool = False
    """Register GPU memory as DMA-BUF, without a peer memory module."""


def write_bw_argv(test: WriteBw, *, server: str | None = None, port: int | None = None) -> list[str]:
    """Return the command line of the client if `server` (an address) is given, otherwise of the server."""
    words = ["ib_write_bw", "-d", test.device, "-i", str(test.ib_port)]
    if test.gid_index is not None:
        words += ["-x", str(test.gid_index)]
    words += ["-s", str(test.size_bytes)]
    words += ["-D", str(test.seconds), "-f", str(_MARGIN_SECONDS)] if test.seconds else ["-n", str(test.iterations)]
    words += ["-F", "--report_gbits"]
    if test.cuda is not None:
        words.append(f"--use_cuda={test.cuda}")
        if test.cuda_dmabuf:
            words.append("--use_cuda_dmabuf")
    if port is not None:
        words += ["-p", str(port)]
    return [*words, server] if server else words


def guarded_script(
    container: str, test: WriteBw, *, limit_seconds: int, server: str | None = None, port: int = FIRST_PORT
) -> str:
    """Return the script that runs one side in `container` on a node and ends all its processes.

    The test ends by itself, when its standard input ends because the caller has ended, or after `limit_seconds`. No
    process remains. A server uses the first free port from `port` on and prints it.
    """
    argv = write_bw_argv(test, server=server, port=port if server else None)
    role = "client" if server else "server"
    words = ["sh", "-c", _GUARD, "sh", str(limit_seconds), test.device, role, str(port), *argv]
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if test.cuda is not None else None  # numbering of nvidia-smi
    command = exec_argv(container, words, stdin=True, environment=environment)
    return _joined(["exec", "timeout", "-k", "5", str(limit_seconds + _ENGINE_SECONDS), *command])


_ENGINE_SECONDS = 20
"""Additional seconds in which Docker starts and ends a program."""


def _joined(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


# The end of a docker client ends nothing in the container, but closes the standard input of the program there.
# `timeout` leads a process group. A signal while it forks does not reach its child, so the group is killed last.
# Background shells read /dev/null, hence descriptor 3. `read` is a builtin, so that no process remains.
_GUARD = rf"""limit=$1 device=$2 role=$3 port=$4; shift 4
listens() {{
  wanted=$(printf %04X "$1")
  for file in /proc/net/tcp /proc/net/tcp6; do
    [ -r $file ] || continue
    while read -r _ local _ state _; do
      if [ "$state" = 0A ] && [ "${{local##*:}}" = "$wanted" ]; then return 0; fi
    done <$file
  done
  return 1
}}
if [ "$role" = server ]; then
  last=$((port + {PORTS}))
  while listens "$port"; do
    port=$((port + 1))
    [ "$port" -lt "$last" ] || {{ echo {TAKEN}; exit 0; }}
  done
  set -- "$@" -p "$port"
fi
{{ read -r cpus </sys/class/infiniband/"$device"/device/local_cpulist; }} 2>/dev/null || cpus=
[ -z "$cpus" ] || ! taskset -c "$cpus" true 2>/dev/null || set -- taskset -c "$cpus" "$@"
exec 3<&0
timeout -k 2 "$limit" "$@" </dev/null 2>&1 3<&- &
test=$!
(while read -r _ <&3; do :; done; kill -TERM "$test") >/dev/null 2>&1 &
watch=$!
tries=$((limit * 5))
while [ "$role" = server ] && [ "$tries" -gt 0 ] && kill -0 "$test" 2>/dev/null; do
  if listens "$port"; then echo "{READY} $port"; break; fi
  sleep 0.2
  tries=$((tries - 1))
done
wait "$test"; code=$?
kill -KILL "-$test" 2>/dev/null
kill "$watch" 2>/dev/null
echo "{END} $code"
"""
