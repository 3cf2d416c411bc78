"""GPUs as reported by nvidia-smi, and as listed on the PCI bus, which works without a driver."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

from provision.facts.base import RawOutput, Unknown
from provision.facts.gpu_health import FIELDS, GpuHealth, health

_NO_TOOL = 127


@dataclass(frozen=True)
class Gpu:
    """One GPU as reported by its driver; values that it does not report are empty."""

    index: int
    name: str
    uuid: str
    driver: str
    memory_mib: int
    bus_id: str
    compute_capability: str = ""
    """As ``9.0``; drivers older than 510 do not report it."""
    vbios: str = ""
    health: GpuHealth = field(default_factory=GpuHealth)
    instances: tuple[str, ...] = ()
    """UUIDs of its MIG instances."""
    confidential: bool | None = None
    """Whether confidential computing is on, on the whole node; None if it is not reported, as before Hopper."""
    minor: int | None = None
    """N of its device file ``/dev/nvidiaN``, which can differ from the index; None if it is unknown."""


_IDENTITY = "index,name,uuid,driver_version,memory.total,pci.bus_id"
_ROWS = "remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
_COMMAND = r"""
command -v nvidia-smi >/dev/null || { echo 'there is no nvidia-smi' >&2; exit 127; }
identity=@identity
more=@more
rows=
without() {
  left=; IFS=,
  for name in $more; do case $name in $1) ;; *) left=$left${left:+,}$name;; esac; done
  unset IFS; more=$left
}
version=; [ ! -r /sys/module/nvidia/version ] || read -r version </sys/module/nvidia/version
case ${version%%.*} in
  ''|*[!0-9]*) ;;
  *) [ "${version%%.*}" -ge 510 ] || without compute_cap
     if [ "${version%%.*}" -lt 535 ]; then
       without 'clocks_event_reasons.*'; more=$more,clocks_throttle_reasons.active
       without 'gpu_recovery_action'; without '*thresholdExceeded'
       without 'remapped_rows.*'; rows=apart
     fi;;
esac
for try in 1 2 3 4 5 6 7 8; do
  answer=$(nvidia-smi "--query-gpu=$identity${more:+,$more}" --format=csv); code=$?
  [ -n "$more" ] && [ "$code" -ne 0 ] || break
  case $answer in
    *'is not a valid field'*) field=${answer#*Field \"}; field=${field%%\"*};;
    *) [ "$code" -eq 2 ] || break; field='*';;
  esac
  case $field in
    clocks_event_reasons.*) without "$field"; more=$more,clocks_throttle_reasons.active;;
    remapped_rows.*) without 'remapped_rows.*'; rows=apart;;
    fabric.*) without 'fabric.*';;
    mig.*) without 'mig.*';;
    *) before=$more; without "$field"; [ "$more" != "$before" ] || more=;;
  esac
  [ "$try" -lt 7 ] || more=
done
case $answer in *"couldn't communicate with the NVIDIA driver"*)
  on_bus=
  for card in /sys/bus/pci/devices/*; do
    { read -r vendor <"$card/vendor"; } 2>/dev/null && [ "$vendor" = 0x10de ] || continue
    read -r class <"$card/class"; case $class in 0x03*) on_bus=yes; break;; esac
  done
  [ -n "$on_bus" ] || [ -e /usr/share/provision/simulated/gpus ] || [ ! -d /sys/bus/pci/devices ] ||
    { echo 'No devices were found'; exit 0; }
esac
printf '%s\n' "$answer"
if [ "$code" -eq 0 ] && [ -n "$rows" ]; then
  echo '== remapped rows'
  nvidia-smi --query-remapped-rows=gpu_bus_id,@rows --format=csv
fi
for instance in /proc/driver/nvidia/capabilities/gpu*/mig/gi*; do
  [ ! -e "$instance" ] || { echo '== instances'; nvidia-smi -L; }
  break
done
[ $code -eq 0 ] || exit $code
case $answer in *', 9.0,'*|*', 10.'*|*', 12.'*) echo '== confidential'; timeout 10 nvidia-smi conf-compute -f;; esac
echo '== minors'
if [ -e /usr/share/provision/simulated/gpus ]; then
  nvidia-smi --query-gpu=pci.bus_id,minor_number --format=csv
else
  echo 'pci.bus_id, minor_number'
  for file in /proc/driver/nvidia/gpus/*/information; do
    while IFS=: read -r key value; do
      [ "$key" != 'Device Minor' ] || { folder=${file%/*}; echo ${folder##*/}, $value; }
    done 2>/dev/null <"$file"
  done
fi
exit 0
"""
_MINORS = "== minors\n"
_INSTANCES = "== instances\n"
_CONFIDENTIAL = "== confidential\n"


class GpusFact:
    """Queries nvidia-smi, which hangs on a broken GPU and takes many seconds without persistence mode.

    One query returns identity and health. A driver rejects the whole query if it does not know one field; the query is
    then repeated without that field. Drivers before 535 report remapped rows only in a separate query. GPUs in MIG mode
    need one more query for the UUIDs of their instances, and GPUs since Hopper one for confidential computing. A driver
    that is installed on a node without a GPU cannot be loaded, so that nvidia-smi fails; such a node has no GPUs.
    """

    name: ClassVar[str] = "gpus"
    label: ClassVar[str] = "nvidia-smi"
    limit_seconds: ClassVar[int] = 40
    command: ClassVar[str] = (
        _COMMAND.replace("@identity", _IDENTITY)
        .replace("@more", ",".join(("compute_cap", "vbios_version", *FIELDS)))
        .replace("@rows", _ROWS)
    )

    def parse(self, raw: RawOutput) -> tuple[Gpu, ...] | Unknown:
        """Return no GPUs if nvidia-smi is missing: then there is no driver, and `GpuPciFact` lists the GPUs."""
        if raw.exit_code == _NO_TOOL:
            return ()
        if "No devices were found" in raw.stdout:
            return ()
        if raw.exit_code != 0:
            return Unknown(f"nvidia-smi failed: {raw.last_line()}")
        answers, _, numbers = raw.stdout.partition(_MINORS)
        answers, _, confidential = answers.partition(_CONFIDENTIAL)
        report, _, listed = answers.partition(_INSTANCES)
        first, _, second = report.partition("== remapped rows")
        table = _table(first, "index")
        if table is None:
            return Unknown(f"nvidia-smi printed no table: {raw.last_line()}")
        rows = {row.get("gpu_bus_id", ""): row for row in _table(second, "gpu_bus_id") or ()}
        gpus = (_gpu({**rows.get(row.get("pci.bus_id", ""), {}), **row}) for row in table)
        instances, minors = _instances(listed), _minors(numbers)
        state = re.search(r"^CC status: (ON|OFF)$", confidential, re.MULTILINE)
        return tuple(
            replace(
                gpu,
                instances=instances.get(gpu.uuid, ()),
                minor=minors.get(bus_address(gpu.bus_id)),
                confidential=state[1] == "ON" if state else None,
            )
            for gpu in gpus
            if gpu is not None
        )


def _table(text: str, first: str) -> list[dict[str, str]] | None:
    """Parse the CSV whose heading starts with `first`; None if there is none.

    Column titles and values may carry a unit: ``memory.total [MiB]``, ``81920 MiB``.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    start = next((i for i, line in enumerate(lines) if line.startswith(first)), None)
    if start is None:
        return None
    return [
        {str(key).partition(" [")[0]: str(value or "").strip() for key, value in row.items() if key is not None}
        for row in csv.DictReader(lines[start:], skipinitialspace=True)
    ]


def _instances(listed: str) -> dict[str, tuple[str, ...]]:
    """Return GPU UUID -> UUIDs of its MIG instances, from the output of ``nvidia-smi -L``."""
    instances: dict[str, tuple[str, ...]] = {}
    gpu = ""
    for line in listed.splitlines():
        if uuid := re.search(r"\(UUID: ([^\s)]+)\)", line):
            if line.startswith("GPU "):
                gpu = uuid[1]
            else:
                instances[gpu] = (*instances.get(gpu, ()), uuid[1])
    return instances


def _minors(text: str) -> dict[str, int]:
    """Return the minor numbers of the device files by PCI address."""
    return {
        bus_address(row.get("pci.bus_id", "")): int(row["minor_number"])
        for row in _table(text, "pci.bus_id") or ()
        if re.fullmatch("[0-9]{1,4}", row.get("minor_number", ""))
    }


def bus_address(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it; nvidia-smi writes a domain of eight digits, in capitals."""
    domain, colon, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _gpu(cells: dict[str, str]) -> Gpu | None:
    if not cells.get("index", "").isdecimal():
        return None
    memory = cells.get("memory.total", "").split()
    return Gpu(
        index=int(cells["index"]),
        name=cells.get("name", ""),
        uuid=cells.get("uuid", ""),
        driver=cells.get("driver_version", ""),
        memory_mib=int(memory[0]) if memory and memory[0].isdecimal() else 0,
        bus_id=cells.get("pci.bus_id", ""),
        compute_capability=cells.get("compute_cap", ""),
        vbios=cells.get("vbios_version", "").strip("[]").replace("N/A", ""),
        health=health(cells),
    )


class GpuPciFact:
    """Lists the PCI addresses of NVIDIA display and 3D controllers, with or without a driver.

    GPUs passed through to a virtual machine and virtual functions of a vGPU host are excluded, because nvidia-smi does
    not list them either.
    """

    name: ClassVar[str] = "gpu_pci"
    label: ClassVar[str] = "cat /sys/bus/pci/devices"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
for card in /sys/bus/pci/devices/*; do
  { read -r vendor <"$card/vendor"; } 2>/dev/null && [ "$vendor" = 0x10de ] || continue
  [ ! -e "$card/physfn" ] && [ ! -e "/sys/bus/pci/drivers/vfio-pci/${card##*/}" ] || continue
  read -r class <"$card/class"; case $class in 0x0300*|0x0302*) echo "${card##*/}";; esac
done
exit 0
"""

    def parse(self, raw: RawOutput) -> tuple[str, ...]:
        """Return one address per line."""
        return tuple(line.strip() for line in raw.lines())
