"""Error counters of RDMA ports and of their network interfaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from provision.facts.base import RawOutput

_PORT = re.compile(r".*/infiniband/([^/]+)/ports/(\d+)/(?:hw_)?counters/(\w+):(\d+)\s*$")
_INTERFACE = re.compile(r".*/infiniband/([^/]+)/device/net/([^/]+)/(?:statistics/)?(\w+):(\d+)\s*$")


class RdmaCountersFact:
    """Reads non-zero counters. It is a separate fact because reading hangs on a card with hung firmware."""

    name: ClassVar[str] = "rdma_counters"
    label: ClassVar[str] = "cat /sys/class/infiniband/*/ports/*/counters"
    limit_seconds: ClassVar[int] = 30
    command: ClassVar[str] = r"""
set --
for port in /sys/class/infiniband/*/ports/*; do
  [ -d "$port" ] || continue
  for name in symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors \
    local_link_integrity_errors excessive_buffer_overrun_errors port_xmit_discards; do
    [ ! -r "$port/counters/$name" ] || set -- "$@" "$port/counters/$name"
  done
  for name in out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err out_of_buffer; do
    [ ! -r "$port/hw_counters/$name" ] || set -- "$@" "$port/hw_counters/$name"
  done
done
for net in /sys/class/infiniband/*/device/net/*; do
  for name in carrier_down_count statistics/rx_crc_errors; do
    [ ! -r "$net/$name" ] || set -- "$@" "$net/$name"
  done
done
[ $# -eq 0 ] || grep -H '[1-9]' "$@" 2>/dev/null
exit 0
"""

    def parse(self, raw: RawOutput) -> Mapping[str, Mapping[str, int]]:
        """Return ``mlx5_0 port 1`` or ``mlx5_0 ens1np0`` -> counter -> count since the card's driver was loaded."""
        counters: dict[str, dict[str, int]] = {}
        for line in raw.lines():
            port, interface = _PORT.match(line), _INTERFACE.match(line)
            if port:
                counters.setdefault(f"{port[1]} port {port[2]}", {})[port[3]] = int(port[4])
            elif interface:
                counters.setdefault(f"{interface[1]} {interface[2]}", {})[interface[3]] = int(interface[4])
        return counters
