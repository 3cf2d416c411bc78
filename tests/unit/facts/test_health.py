"""Health of GPUs and links, parsed from outputs of the driver, the kernel and sysfs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision.facts import RawOutput, Unknown
from provision.facts.gpu import GpuPciFact, GpusFact
from provision.facts.gpu_health import FIELDS, GpuHealth, health
from provision.facts.gpudirect import PciRoutingFact
from provision.facts.nvlink import FabricManager, FabricManagerFact, Links, NvLinksFact
from provision.facts.pci_links import PciLinksFact
from provision.facts.rdma import RdmaFact
from provision.facts.rdma_counters import RdmaCountersFact
from provision.facts.xid import XidsFact
from provision.lab.machines import load, to_json

STAND_IN = Path(__file__).parents[3] / "provision/lab/files/nvidia_smi.py"


def out(text: str, code: int = 0, err: str = "") -> RawOutput:
    return RawOutput(text, code, err)


def shell(command: str, path: Path, **environment: str) -> RawOutput:
    """Run a fact's command with a folder of programs first on the PATH."""
    done = subprocess.run(
        ["sh", "-c", command],
        env={"PATH": f"{path}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return RawOutput(done.stdout, done.returncode, done.stderr)


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


# An old driver rejects the whole query at the first unsupported field.
REFUSING = r"""
for word; do case $word in --query-*=*) asked=${word#*=}; kind=${word%%=*};; esac; done
echo "$kind" >>"$CALLS"
[ "$kind" != --query-remapped-rows ] || KNOWN=$KNOWN_ROWS
old=$IFS; IFS=,
for field in $asked; do
  case " $KNOWN " in *" $field "*) ;; *) echo "Field \"$field\" is not a valid field to query."; exit $CODE;; esac
done
line=; values=
for field in $asked; do
  line="$line${line:+, }$field"
  case $field in index) value=0;; *bus_id) value=00000000:3B:00.0;; *pending) value=Yes;; *) value=0x8;; esac
  values="$values${values:+, }$value"
done
IFS=$old
printf '%s\n%s\n' "$line" "$values"
"""
OLD = "index name uuid driver_version memory.total pci.bus_id vbios_version clocks_throttle_reasons.active"


ROWS = "gpu_bus_id remapped_rows.correctable remapped_rows.uncorrectable remapped_rows.pending remapped_rows.failure"


def ask(folder: Path, known: str, code: int = 2):
    program(folder, "nvidia-smi", REFUSING)
    raw = shell(GpusFact.command, folder, KNOWN=known, KNOWN_ROWS=ROWS, CALLS=str(folder / "calls"), CODE=str(code))
    (gpu,) = GpusFact().parse(raw)
    return gpu, (folder / "calls").read_text().split()


def test_a_driver_that_supports_all_fields_is_queried_once(tmp_path):
    every = " ".join(("index name uuid driver_version memory.total pci.bus_id compute_cap vbios_version", *FIELDS))
    gpu, calls = ask(tmp_path, every)

    assert calls == ["--query-gpu"]
    assert (gpu.health.clock_events, gpu.health.rows_pending) == (8, True)


def test_an_old_driver_is_queried_for_its_supported_fields(tmp_path):
    """Rejected fields are left out or queried by their old name, and remapped rows separately."""
    gpu, calls = ask(tmp_path, f"{OLD} {' '.join((*FIELDS[:10], *FIELDS[-2:]))}")

    assert gpu.bus_id == "00000000:3B:00.0"
    assert (gpu.health.clock_events, gpu.compute_capability, gpu.health.recovery) == (8, "", "")
    assert calls[-1] == "--query-remapped-rows"
    assert gpu.health.rows_pending is True


def test_separately_queried_remapped_rows_match_their_gpu():
    text = (
        "index, name, uuid, driver_version, memory.total [MiB], pci.bus_id\n"
        "0, A, GPU-1, 525.1, 1 MiB, 00000000:06:00.0\n1, A, GPU-2, 525.1, 1 MiB, 00000000:07:00.0\n"
        "== remapped rows\n"
        "gpu_bus_id, remapped_rows.correctable, remapped_rows.uncorrectable, remapped_rows.pending, "
        "remapped_rows.failure\n00000000:07:00.0, 0, 1, Yes, No\n00000000:06:00.0, 0, 0, 0, 0\n"
    )
    first, second = GpusFact().parse(out(text))

    assert (first.health.rows_pending, first.health.rows_uncorrectable) == (False, 0)
    assert (second.health.rows_pending, second.health.rows_uncorrectable, second.health.rows_failure) == (
        True,
        1,
        False,
    )


@pytest.mark.parametrize("code", [2, 6])
def test_a_driver_that_rejects_most_fields_still_reports_its_gpus(tmp_path, code):
    gpu, calls = ask(tmp_path, "index name uuid driver_version memory.total pci.bus_id", code)

    assert gpu.index == 0
    assert gpu.health == GpuHealth()
    assert len(calls) <= 9


def test_the_simulated_nvidia_smi_answers_the_query(tmp_path):
    (tmp_path / "machine.json").write_text(to_json(load("hgxh100")))
    (tmp_path / "faults.json").write_text('{"3": {"remapped_rows.pending": "Yes", "nvlink.inactive": "7"}}')
    program(tmp_path, "nvidia-smi", f'exec {sys.executable} {STAND_IN} "$@"')
    machine = {"PROVISION_LAB_MACHINE_FILE": str(tmp_path / "machine.json"), "HOME": os.environ.get("HOME", "/")}
    gpus = GpusFact().parse(shell(GpusFact.command, tmp_path, **machine))
    links = NvLinksFact().parse(shell(NvLinksFact.command, tmp_path, **machine))

    assert [gpu.health.rows_pending for gpu in gpus] == [index == 3 for index in range(8)]
    assert {gpu.health.fabric_state for gpu in gpus} == {"Completed"}
    assert {gpu.health.recovery for gpu in gpus} == {"None"}
    assert {gpu.vbios for gpu in gpus} == {"96.00.74.00.0D"}
    assert {gpu.confidential for gpu in gpus} == {False}
    assert links[3] == Links(17, (7,))
    assert links[0] == Links(18)


@pytest.mark.parametrize("word", ["[N/A]", "N/A", "[Not Supported]", "", "[Insufficient Permissions]"])
def test_missing_values_are_unknown_and_not_faults(word):
    assert health(dict.fromkeys(FIELDS, word)) == GpuHealth()


def test_error_texts_in_place_of_values_are_reported():
    """A GPU that requires a reset reports that in brackets, like missing values."""
    gpu_health = health(
        {**dict.fromkeys(FIELDS, "[GPU requires reset]"), "fabric.state": "[N/A]", "mig.mode.current": "ERR!"}
    )

    assert set(gpu_health.complaints) == {"GPU requires reset", "ERR!"}
    assert gpu_health.uncorrected is None


@pytest.mark.parametrize(("state", "status"), [("Completed", "Success"), ("state  Completed", "status Success")])
def test_the_fabric_state_is_read_with_and_without_a_column_name(state, status):
    """Drivers of GB200 print the column's name before the value."""
    gpu_health = health({"fabric.state": state, "fabric.status": status})

    assert (gpu_health.fabric_state, gpu_health.fabric_status) == ("Completed", "Success")


def test_links_without_a_speed_are_down():
    text = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-a)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n\t Link 2: resting\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-b)\n"
        "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    )

    assert NvLinksFact().parse(out(text)) == {0: Links(1, (1, 2)), 1: Links(0)}
    assert isinstance(NvLinksFact().parse(out("No driver\n", 9)), Unknown)
    assert NvLinksFact().parse(out("")) == {}


def test_switches_and_their_service_are_read():
    assert FabricManagerFact().parse(out("switches=6\nunit=failed\n")) == FabricManager(6, "failed")
    assert FabricManagerFact().parse(out("switches=0\n")) == FabricManager(0, "")


LOG = """[    0.000000] Linux version 6.1.0
[  100.500000] NVRM: Xid (PCI:0000:3b:00): 13, pid=4242, name=python3, Graphics Exception: ESR 0x51d730=0xa000b
[  101.000000] NVRM: Xid (PCI:0000:3b:00): 13, pid=4243, name=python3, Graphics Exception: ESR 0x51d730=0xa000b
[  200.000000] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
[ 3600.250000] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
"""


def read_log(folder: Path, dmesg: str, journal: str | None = None):
    (folder / "dmesg.txt").write_text(dmesg)
    program(folder, "dmesg", f"cat {folder}/dmesg.txt")
    program(folder, "nvidia-smi", "exit 9")
    if journal is None:
        program(folder, "journalctl", "exit 1")
    else:
        (folder / "journal.txt").write_text(journal)
        program(folder, "journalctl", f"cat {folder}/journal.txt")
    (folder / "kmsg").touch()
    return XidsFact().parse(shell(XidsFact.command.replace("/dev/kmsg", f"{folder}/kmsg"), folder))


def test_xids_are_counted_by_number_and_device(tmp_path):
    """A storm of one Xid is one entry with the time of the last; Xids of switches are separate."""
    log = read_log(tmp_path, LOG)

    assert log.complete
    assert log.uptime > 0
    assert [(xid.number, xid.count, xid.seconds, xid.pci, xid.switch) for xid in log.xids] == [
        (13, 2, 101.0, "0000:3b:00", False),
        (79, 1, 3600.25, "0000:3b:00", False),
        (20034, 1, 200.0, "0000:c1:00", True),
    ]
    assert log.xids[2].text.startswith("Fatal")


def test_the_log_is_not_read_without_nvidia_hardware(tmp_path):
    program(tmp_path, "dmesg", f"touch {tmp_path}/asked")
    command = XidsFact.command.replace("/proc/driver", f"{tmp_path}/driver").replace("/sys/", f"{tmp_path}/sys/")
    log = XidsFact().parse(shell(command, tmp_path))
    card = tmp_path / "sys/bus/pci/devices/0000:06:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    before = (tmp_path / "asked").exists()
    shell(command, tmp_path)

    assert (log.xids, log.complete) == ((), True)
    assert (before, (tmp_path / "asked").exists()) == (False, True)


def test_an_overflowed_log_is_replaced_by_the_journal(tmp_path):
    journal = (
        "[    0.000000] gpu1 kernel: Linux version 6.1.0\n"
        "[   90.000000] gpu1 kernel: NVRM: Xid (PCI:0000:06:00): 48, pid=1, DBE (double bit error)\n"
    )
    log = read_log(tmp_path, "[ 9000.100000] usb 1-1: new device\n", journal)

    assert log.complete
    assert [xid.number for xid in log.xids] == [48]


def test_without_a_journal_the_start_of_the_log_is_reported(tmp_path):
    """No Xid in the last hour differs from no Xid since boot."""
    log = read_log(tmp_path, "[ 9000.100000] usb 1-1: new device\n")

    assert not log.complete
    assert log.since == 9000.1
    assert log.xids == ()


def test_an_unreadable_log_is_unknown(tmp_path):
    assert isinstance(read_log(tmp_path, ""), Unknown)


def test_a_log_without_times_is_read(tmp_path):
    """printk.time=0 removes the times."""
    log = read_log(tmp_path, "Linux version 6.1.0\nNVRM: Xid (PCI:0000:06:00): 31, pid=1, name=python3, MMU Fault\n")

    assert [(xid.number, xid.seconds, xid.text) for xid in log.xids] == [(31, None, "pid=1, name=python3, MMU Fault")]


@pytest.fixture
def bus(tmp_path):
    """Return a PCI bus made of files, and a function that reads it with a fact."""

    def device(address: str, *, bridge: str = "bridge", **files: str) -> Path:
        folder = tmp_path / "sys/devices" / bridge / address
        folder.mkdir(parents=True)
        for name, value in files.items():
            (folder / name).write_text(value + "\n")
        link = tmp_path / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return folder

    def read(fact):
        return fact.parse(shell(fact.command.replace("/sys/", f"{tmp_path}/sys/"), tmp_path))

    device.read, device.root = read, tmp_path / "sys"
    return device


GPU = {"vendor": "0x10de", "class": "0x030200"}
NOW = {"current_link_width": "8", "max_link_width": "16", "current_link_speed": "2.5 GT/s PCIe"}


def test_pcie_links_include_card_and_slot(bus):
    """The bridge above a card limits the expected link; a device off the bus reports nothing."""
    folder = bus("0000:06:00.0", max_link_speed="32.0 GT/s PCIe", **GPU, **NOW)
    (folder.parent / "max_link_width").write_text("8\n")
    (folder.parent / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    bus("0000:3b:00.0", bridge="b2", vendor="0x15b3", **{"class": "0x020700"}, current_link_width="63")
    card, lost = bus.read(PciLinksFact())

    assert (card.gpu, card.width, card.width_max, card.speed) == (True, 8, 16, 2.5)
    assert (card.expected_width, card.expected_speed) == (8, 16.0)
    assert (lost.gpu, lost.width, lost.expected_width) == (False, None, None)


def test_rdma_cards_of_any_vendor_are_read(bus):
    """A network card below Soft-RoCE does not count."""
    other, plain = {"vendor": "0x14e4", "class": "0x020000"}, {"vendor": "0x8086", "class": "0x020000"}
    (bus("0000:19:00.0", bridge="b1", **other) / "iommu_group").mkdir()
    (bus.root / "devices/b1/0000:19:00.0/iommu_group/type").write_text("DMA-FQ\n")
    bus("0000:1a:00.0", bridge="b1", **plain)
    bus("0000:3b:00.0", bridge="b2", vendor="0x15b3", **{"class": "0x020700"})
    for name, card in (("bnxt_re0", "b1/0000:19:00.0"), ("rxe0", "b1/0000:1a:00.0"), ("mlx5_0", "b2/0000:3b:00.0")):
        (bus.root / "class/infiniband" / name).mkdir(parents=True)
        (bus.root / "class/infiniband" / name / "device").symlink_to(bus.root / "devices" / card)
    (bus.root / "class/infiniband/rxe0/parent").write_text("eth1\n")

    assert [link.address for link in bus.read(PciLinksFact())] == ["0000:19:00.0", "0000:3b:00.0"]
    assert bus.read(PciRoutingFact()).iommu == {"0000:19:00.0": "DMA-FQ", "0000:3b:00.0": ""}


def test_passed_through_gpus_and_virtual_functions_are_not_expected(bus):
    bus("0000:06:00.0", **GPU)
    (bus("0000:07:00.4", **GPU) / "physfn").mkdir()
    bus("0000:08:00.0", **GPU)
    (bus.root / "bus/pci/drivers/vfio-pci/0000:08:00.0").mkdir(parents=True)
    bus("0000:c1:00.0", vendor="0x10de", **{"class": "0x068000"})

    assert bus.read(GpuPciFact()) == ("0000:06:00.0",)
    assert bus.read(FabricManagerFact()).switches == 1


def test_counters_are_grouped_by_port_and_interface(tmp_path):
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name, value in {
        "counters/symbol_error": "7",
        "counters/link_downed": "0",
        "hw_counters/out_of_sequence": "30",
        "../../device/net/ens1np0/carrier_down_count": "2",
        "../../device/net/ens1np0/statistics/rx_crc_errors": "0",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(value + "\n")
    raw = shell(RdmaCountersFact.command.replace("/sys/", f"{tmp_path}/sys/"), tmp_path)

    assert RdmaCountersFact().parse(raw) == {
        "mlx5_0 port 1": {"symbol_error": 7, "out_of_sequence": 30},
        "mlx5_0 ens1np0": {"carrier_down_count": 2},
    }


def test_rate_lanes_firmware_and_board_are_read():
    text = (
        "device\tmlx5_0\tmlx5_core\t28.39.1002\tMT_0000000838\nport\t1\tInfiniBand\t4: ACTIVE\t5: LinkUp\t"
        "400 Gb/sec (4X NDR)\ndevice\trxe0\t\nport\t1\tEthernet\t4: ACTIVE\t5: LinkUp\t2.5 Gb/sec (1X SDR)\n"
    )
    card, soft = RdmaFact().parse(out(text)).devices

    assert (card.firmware, card.board, card.ports[0].gbit, card.ports[0].lanes) == (
        "28.39.1002",
        "MT_0000000838",
        400.0,
        4,
    )
    assert (soft.firmware, soft.ports[0].gbit, soft.ports[0].lanes) == ("", 2.5, 1)


def test_mig_instances_belong_to_the_gpu_above_them():
    text = (
        "index, name, uuid, driver_version, memory.total [MiB], pci.bus_id\n"
        "0, A, GPU-1, 525.1, 1 MiB, 00000000:06:00.0\n1, A, GPU-2, 525.1, 1 MiB, 00000000:07:00.0\n"
        "== instances\n"
        "GPU 0: A (UUID: GPU-1)\nGPU 1: A (UUID: GPU-2)\n"
        "  MIG 2g.24gb     Device  0: (UUID: MIG-a)\n  MIG 2g.24gb     Device  1: (UUID: MIG-GPU-2/1/0)\n"
    )
    first, second = GpusFact().parse(out(text))

    assert (first.instances, second.instances) == ((), ("MIG-a", "MIG-GPU-2/1/0"))
