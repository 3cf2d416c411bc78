#!/usr/bin/python3 -IS
"""SIMULATED nvidia-smi: prints the machine described in /etc/provision-lab/machine.json as the real tool would.

It stands on lab nodes, which have no GPU. Standard library only, one file. It never touches hardware; what it cannot
answer it refuses. Modes that -mig and -pm set are in modes.json beside the machine's file. Formats follow the real
tool's, which programs read; every output says SIMULATED: in the table's head for people, on stderr where a program
reads stdout.

Faults in faults.json beside the machine's file show in its answers: GPU number or "all" -> query field -> what is
printed. Four more keys: "nvlink.inactive" lists links that are down, and that topo -m lacks too, "missing" hides the
GPU, "hang" is for how many seconds every call hangs, "in_use" lets MIG mode wait for a reset. For example:
{"1": {"ecc.errors.uncorrected.volatile.total": "3", "nvlink.inactive": "4 5"}, "all": {"hang": "60"}}
"""

import hashlib
import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FAULTS, MODES = "faults.json", "modes.json"
"""Files next to the machine's file."""
MACHINE = os.environ.get("PROVISION_LAB_MACHINE_FILE", "/etc/provision-lab/machine.json")
NOTICE = "SIMULATED: this nvidia-smi belongs to a provision lab; it describes {}, and there is no GPU here"
OK, BAD_USE, NOT_PERMITTED, NO_DEVICE, NO_DRIVER = 0, 2, 4, 6, 9
ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial"}
UNITS = {
    "MiB": ("memory.total", "memory.used", "memory.free", "memory.reserved"),
    "%": ("utilization.gpu", "utilization.memory", "fan.speed"),
    "W": ("power.draw", "power.limit", "power.default_limit", "power.max_limit"),
    "MHz": ("clocks.current.sm", "clocks.current.memory", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
}
UNIT_OF = {name: unit for unit, names in UNITS.items() for name in names}
# Column styles of `topo -m` by major driver version.
NUMA_COLUMN_SINCE, NIC_LEGEND_SINCE, GPU_NUMA_SINCE = 450, 515, 530
CLASSES = {
    "X": "the device itself",
    "SYS": "through PCIe and the link between processors",
    "NODE": "through PCIe and between host bridges of one NUMA node",
    "PHB": "through PCIe and one host bridge",
    "PXB": "through several PCIe bridges, no host bridge",
    "PIX": "through one PCIe bridge at most",
    "NV#": "through # bonded NVLinks",
}
REMAPPED = ("gpu_bus_id", "gpu_uuid", "remapped_rows.correctable", "remapped_rows.uncorrectable")
REMAPPED_FLAGS = ("remapped_rows.pending", "remapped_rows.failure")
SINCE = {"compute_cap": (510,), "clocks_event_reasons.active": (535, 54)}
"""Query fields that older drivers refuse."""
SETTINGS = {"multi-instance-gpu": "mig.mode", "persistence-mode": "persistence_mode"}
STATES = {"0": ("Disabled", "disable"), "1": ("Enabled", "enable")}
IN_USE = (
    "Warning: MIG mode is in pending {1} state for GPU {0}:In use by another client\n"
    "{0} is currently being used by one or more other processes (e.g. CUDA application or a monitoring application "
    "such as another instance of nvidia-smi). Please first kill all processes using the device and retry the command "
    "or reboot the system to make MIG mode effective."
)
NOT_SUPPORTED = "Unable to {1} MIG Mode for GPU {0}: Not Supported\nTreating as warning and moving on."
BEHAVIOUR = ("nvlink.inactive", "missing", "hang", "in_use")
"""Faults that are not query fields."""


class Refused(Exception):
    """The query is not supported; has the exit status."""

    def __init__(self, text: str, status: int = BAD_USE) -> None:
        """Keep `text` for stdout, where the real tool prints its errors."""
        super().__init__(text)
        self.status = status


def main(arguments: "list[str]") -> int:
    """Answer one command line, with ``-l`` or ``-lms`` again and again; return the exit status."""
    noticed = False
    while True:
        try:
            machine = load_machine()
            people, text = answer(machine, arguments)
            pause = pause_of(arguments)
        except Refused as refused:
            say(f"{refused}\n")
            return refused.status
        heard = say(text)
        notice = NOTICE.format(machine["name"])
        if not people and not noticed:
            noticed = True
            sys.stderr.write(notice + "\n")
            sys.stderr.flush()
        if pause is None or not heard:
            keep(arguments, notice, text)
            return OK
        time.sleep(pause)


def pause_of(arguments: "list[str]") -> "float | None":
    """Return the seconds between two answers; None for a single one."""
    options = read_options(arguments)[1]
    for name, unit in (("loop", 1), ("loop-ms", 1000)):
        if name in options:
            if not options[name].isdecimal() or options[name] == "0":
                raise Refused(f'"{options[name]}" is no time to wait between two answers of the SIMULATED nvidia-smi.')
            return int(options[name]) / unit
    return None


def say(text: str) -> bool:
    """Print, and return whether anybody reads; a reader that closes the pipe early, such as head, is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def keep(arguments: "list[str]", notice: str, text: str) -> None:
    """Cache an answer for nvidia_smi.sh if it requested that; errors are ignored."""
    path, stamp = (os.environ.get(f"PROVISION_LAB_{name}", "") for name in ("KEEP", "STAMP"))
    if not path:
        return
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as stream:
            stream.write(f"{stamp}\n{' '.join(arguments)}\n{notice}\n{text}")
        os.rename(stream.name, path)
    except OSError:
        return


def load_machine() -> "dict[str, Any]":
    """Read the description and number the GPUs that are visible here: all on a node, some in a container."""
    try:
        machine: "dict[str, Any]" = json.loads(read(MACHINE))
    except OSError as error:
        text = f"NVIDIA-SMI has failed: SIMULATED driver without a machine ({MACHINE}: {error.strerror})"
        raise Refused(text, NO_DRIVER) from None
    visible = machine.get("visible", list(range(len(machine["gpus"]))))
    seed = machine.get("seed") or node_seed()
    for index, gpu in enumerate(machine["gpus"]):
        digest = hashlib.sha256(f"{seed} {machine['name']} {index}".encode()).hexdigest()
        gpu["uuid"], gpu["serial"] = uuid_of(digest), str(int(digest[32:44], 16))[:13].zfill(13)
        gpu["minor"] = index
    faults = load_file(FAULTS)
    for index, gpu in enumerate(machine["gpus"]):
        faulty = {**gpu["override"], **faults.get("all", {}), **faults.get(str(index), {})}
        gpu["behaviour"] = {key: str(faulty[key]) for key in BEHAVIOUR if key in faulty}
        gpu["override"] = {key: value for key, value in faulty.items() if key not in BEHAVIOUR}
    hang = max((float(gpu["behaviour"].get("hang", 0)) for gpu in machine["gpus"]), default=0)
    if hang:
        time.sleep(hang)
    machine["down"] = {
        index: [int(number) for number in gpu["behaviour"]["nvlink.inactive"].split() if number.isdecimal()]
        for index, gpu in enumerate(machine["gpus"])
        if "nvlink.inactive" in gpu["behaviour"]
    }
    machine["peers"] = [gpu.get("nvlink_peers", []) for gpu in machine["gpus"]]
    visible = [index for index in visible if "missing" not in machine["gpus"][index]["behaviour"]]
    machine["rows"] = [*visible, *range(len(machine["gpus"]), len(machine["matrix"]))]
    machine["gpus"] = [machine["gpus"][index] for index in visible]
    modes = load_file(MODES)
    for index, gpu in enumerate(machine["gpus"]):
        gpu["index"] = index
        gpu["values"] = {**values(machine, gpu), **modes.get(gpu["uuid"], {}), **gpu["override"]}
    return machine


def uuid_of(digest: str) -> str:
    """Return a GPU's UUID from the first 32 digits of `digest`."""
    return "GPU-" + "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def read(path: str) -> str:
    """Return a file's text."""
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def load_file(name: str) -> "dict[str, Any]":
    """Read the faults or modes next to the machine's file; most nodes have none."""
    try:
        faults: "dict[str, Any]" = json.loads(read(os.path.join(os.path.dirname(MACHINE), name)))
    except OSError:
        return {}
    except ValueError as error:
        raise Refused(f"the SIMULATED faults in {name} cannot be read: {error}") from None
    if not isinstance(faults, dict) or not all(isinstance(fault, dict) for fault in faults.values()):
        raise Refused(f"the SIMULATED faults in {name} are not GPU -> field -> value")
    return faults


def node_seed() -> str:
    """Return the seed of this node's UUIDs, which is constant and differs between nodes."""
    try:
        return read("/etc/machine-id").strip() or os.uname().nodename
    except OSError:
        return os.uname().nodename


def answer(machine: "dict[str, Any]", arguments: "list[str]") -> "tuple[bool, str]":
    """Return whether the text is for people, and thus contains SIMULATED, and the text."""
    words, options = read_options(arguments)
    gpus = chosen(machine, options.get("id"))
    for_people = not words and not set(options) - {"id", "query", "loop", "loop-ms"}
    if words[:1] == ["topo"]:
        text = topology(machine, options)
    elif words == ["nvlink"]:
        text = nvlinks(machine, gpus)
    elif words == ["conf-compute"] and "get-cc-feature" in options:
        text = "CC status: OFF\n"
    elif words:
        raise Refused(f"Invalid combination of input arguments: the SIMULATED nvidia-smi has no {words[0]}.")
    elif set(options) & set(SETTINGS):
        text = set_modes(gpus, options)
    elif "query-gpu" in options or "query-remapped-rows" in options:
        text = query(machine, gpus, options)
    elif "query-compute-apps" in options:
        text = processes(options)
    elif "list-gpus" in options:
        text = "".join(f"{title(gpu)}\n" for gpu in gpus)
    elif "query" in options:
        text = xml(machine, gpus) if "xml" in options else log(machine, gpus)
    else:
        text = table(machine, gpus)
    return for_people, text


def set_modes(gpus: "list[dict[str, Any]]", options: "dict[str, str]") -> str:
    """Answer ``-mig`` and ``-pm``: change the modes of the GPUs, which are stored."""
    modes, lines = load_file(MODES), []
    for option in sorted(set(options) & set(SETTINGS)):
        if options[option] not in STATES:
            raise Refused(f'Invalid combination of input arguments: "{options[option]}" is neither 0 nor 1.')
        state, verb = STATES[options[option]]
        for gpu in gpus:
            bus, now, own = gpu["values"]["pci.bus_id"], gpu["values"], modes.setdefault(gpu["uuid"], {})
            if option == "persistence-mode":
                words = (
                    "Persistence mode is already {1} for GPU {0}."
                    if now["persistence_mode"] == state
                    else ("{1} persistence mode for GPU {0}.")
                )
                own["persistence_mode"] = state
            elif now["mig.mode.current"] == "[N/A]":
                words = NOT_SUPPORTED
            elif "in_use" in gpu["behaviour"] and now["mig.mode.current"] != state:
                own["mig.mode.pending"], words = state, IN_USE
            else:
                own["mig.mode.current"] = own["mig.mode.pending"] = state
                words = "{1} MIG Mode for GPU {0}"
            lines.append(words.format(bus, verb if words in (IN_USE, NOT_SUPPORTED) else state))
    try:
        with open(os.path.join(os.path.dirname(MACHINE), MODES), "w", encoding="utf-8") as stream:
            json.dump(modes, stream)
    except OSError as error:
        raise Refused(
            f"Unable to change the SIMULATED modes: Insufficient Permissions ({error})", NOT_PERMITTED
        ) from None
    return "\n".join([*lines, "All done.", ""])


def read_options(arguments: "list[str]") -> "tuple[list[str], dict[str, str]]":
    """Split a command line into words and options, ``-i 0``, ``--id 0`` and ``--id=0`` alike."""
    short = {"-L": "list-gpus", "-q": "query", "-x": "xml", "-i": "id", "-m": "matrix", "-s": "status", "-h": "help"}
    short["-f"] = "get-cc-feature"
    short.update({"-l": "loop", "-lms": "loop-ms", "-mig": "multi-instance-gpu", "-pm": "persistence-mode"})
    flags = {"list-gpus", "query", "xml", "matrix", "status", "help", "get-cc-feature"}
    valued = {"id", "query-gpu", "query-remapped-rows", "query-compute-apps", "format", "loop", "loop-ms", *SETTINGS}
    words, options, rest = [], {}, list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            words.append(word)
            continue
        name, given, value = without(word, "--").partition("=")
        name = short.get(name, "xml" if name == "xml-format" else name)
        if name in valued and not given:
            value = rest.pop(0) if rest else ""
        if name == "help":
            raise Refused(__doc__.rstrip(), OK)
        if name not in flags | valued:
            raise Refused(f"Invalid combination of input arguments: the SIMULATED nvidia-smi has no {word}.")
        options[name] = value
    return words, options


def chosen(machine: "dict[str, Any]", selection: "str | None") -> "list[dict[str, Any]]":
    """Return the GPUs that ``-i`` names by index, UUID or bus address; all without it."""
    if not machine["gpus"]:
        raise Refused("No devices were found", NO_DEVICE)
    if selection is None:
        return list(machine["gpus"])
    matches: "list[dict[str, Any]]" = []
    for name in selection.split(","):
        keys = [gpu for gpu in machine["gpus"] if name.lower() in names_of(gpu)]
        if not keys:
            raise Refused("No devices were found", NO_DEVICE)
        matches += keys
    return matches


def without(text: str, prefix: str) -> str:
    """Return a text without a prefix (str.removeprefix of Python 3.9)."""
    return text[len(prefix) :] if text.startswith(prefix) else text


def names_of(gpu: "dict[str, Any]") -> "set[str]":
    """Return all names of a GPU."""
    bus = gpu["bus_id"].lower()
    return {str(gpu["index"]), gpu["uuid"].lower(), bus, without(bus, "0000"), without(bus, "00000000:")}


def values(machine: "dict[str, Any]", gpu: "dict[str, Any]") -> "dict[str, Any]":
    """Return every query field of one idle, healthy GPU; numbers without unit."""
    product = machine["product"]
    bus = gpu["bus_id"]
    total, reserved = product["memory_mib"], product["memory_mib"] // 100
    clocks = {"sm": product["sm_clock_mhz"], "mem": product["memory_clock_mhz"]}
    return {
        "index": gpu["index"],
        "count": len(machine["gpus"]),
        "name": product["model"],
        "uuid": gpu["uuid"],
        "minor_number": gpu["minor"],
        "serial": gpu["serial"],
        "driver_version": machine["driver_version"],
        "vbios_version": product["vbios"],
        "compute_cap": product["compute_capability"],
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "pci.bus_id": bus,
        "pci.domain": f"0x{bus[4:8]}",
        "pci.bus": f"0x{bus[9:11]}",
        "pci.device": f"0x{bus[12:14]}",
        "pci.device_id": product["pci_device_id"],
        "pcie.link.gen.current": product["pcie_generation"],
        "pcie.link.gen.max": product["pcie_generation"],
        "pcie.link.width.current": product["pcie_width"],
        "pcie.link.width.max": product["pcie_width"],
        "memory.total": total,
        "memory.reserved": reserved,
        "memory.used": 1,
        "memory.free": total - reserved - 1,
        "utilization.gpu": 0,
        "utilization.memory": 0,
        "temperature.gpu": product["idle_celsius"] + gpu["index"] % 3,
        "power.draw": f"{product['idle_watts'] + gpu['index'] % 4}.00",
        **dict.fromkeys(
            ("power.limit", "power.default_limit", "power.max_limit"), f"{product['power_limit_watts']}.00"
        ),
        "fan.speed": 30 if product["fan"] else "[N/A]",
        "pstate": "P0",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "display_active": "Disabled",
        "display_mode": "Disabled",
        "mig.mode.current": "Disabled" if product["mig"] else "[N/A]",
        "mig.mode.pending": "Disabled" if product["mig"] else "[N/A]",
        **error_correction(has_ecc=product["ecc"]),
        "clocks_event_reasons.active": "0x0000000000000001",
        "clocks_throttle_reasons.active": "0x0000000000000001",
        **{f"clocks.{name}": 210 for name in ("sm", "mem")},
        **{f"clocks.max.{name}": clock for name, clock in clocks.items()},
        "clocks.current.sm": 210,
        "clocks.current.memory": 210,
        "gpu_recovery_action": "None",
        "retired_pages.pending": "[N/A]",
        "fabric.state": "Completed" if product["fabric"] else "[N/A]",
        "fabric.status": "Success" if product["fabric"] else "[N/A]",
        **dict.fromkeys(REMAPPED[2:], 0),
        **dict.fromkeys(REMAPPED_FLAGS, "No"),
    }


def error_correction(*, has_ecc: bool) -> "dict[str, str]":
    """Return the fields of a GPU's error-correcting memory, without errors."""
    kinds = [f"{kind}.{since}" for kind in ("corrected", "uncorrected") for since in ("volatile", "aggregate")]
    fields = {
        **dict.fromkeys(("ecc.mode.current", "ecc.mode.pending"), "Enabled"),
        **{f"ecc.errors.{kind}.total": "0" for kind in kinds},
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
    }
    return fields if has_ecc else dict.fromkeys(fields, "[N/A]")


def query(machine: "dict[str, Any]", gpus: "list[dict[str, Any]]", options: "dict[str, str]") -> str:
    """Answer ``--query-gpu=... --format=csv[,noheader][,nounits]``."""
    style = style_of(options)
    requested = options.get("query-gpu") or options.get("query-remapped-rows", "")
    fields = [field.strip() for field in requested.split(",")]
    driver = tuple(int(part) for part in machine["driver_version"].split("."))
    for field in fields:
        if ALIASES.get(field, field) not in gpus[0]["values"] or driver < SINCE.get(field, (0,)):
            raise Refused(f'Field "{field}" is not a valid field to query.\n')
    lines = [] if "noheader" in style else [", ".join(heading(field) for field in fields)]
    lines += [", ".join(cell(gpu, ALIASES.get(field, field), style) for field in fields) for gpu in gpus]
    return "\n".join(lines) + "\n"


def style_of(options: "dict[str, str]") -> "list[str]":
    """Return the words of ``--format``, which a query needs."""
    style = options.get("format", "").split(",")
    if "csv" not in style or not set(style) <= {"csv", "noheader", "nounits"}:
        raise Refused('A query needs "--format=csv", with "noheader" and "nounits" as options.')
    return style


def heading(field: str) -> str:
    """Return a column's title, which keeps its unit in brackets."""
    return f"{field} [{UNIT_OF[field]}]" if field in UNIT_OF else field


def cell(gpu: "dict[str, Any]", field: str, style: "list[str]") -> str:
    """Return a value with its unit."""
    value = str(gpu["values"][field])
    bare = "nounits" in style or field not in UNIT_OF or value.startswith("[")
    return value if bare else f"{value} {UNIT_OF[field]}"


def processes(options: "dict[str, str]") -> str:
    """Answer ``--query-compute-apps``: simulated GPUs run no processes."""
    titles = [field.strip() for field in options["query-compute-apps"].split(",")]
    known = {"used_memory": "used_gpu_memory [MiB]", "used_gpu_memory": "used_gpu_memory [MiB]"}
    return "" if "noheader" in style_of(options) else ", ".join(known.get(name, name) for name in titles) + "\n"


def title(gpu: "dict[str, Any]") -> str:
    """Return the line that names a GPU."""
    return f"GPU {gpu['index']}: {gpu['values']['name']} (UUID: {gpu['uuid']})"


def nvlinks(machine: "dict[str, Any]", gpus: "list[dict[str, Any]]") -> str:
    """Answer ``nvlink --status``."""
    speed = machine["product"]["nvlink_gbps"]
    lines = []
    for gpu in gpus:
        lines.append(title(gpu))
        down = set(gpu["behaviour"].get("nvlink.inactive", "").split())
        if gpu["nvlinks"] and len(down) >= gpu["nvlinks"]:
            lines.append("NVML: Unable to retrieve NVLink information as all links are inActive")
            continue
        states = ("<inactive>" if str(link) in down else f"{speed} GB/s" for link in range(gpu["nvlinks"]))
        lines += [f"\t Link {link}: {state}" for link, state in enumerate(states)]
    return "\n".join(lines) + "\n"


def topology(machine: "dict[str, Any]", options: "dict[str, str]") -> str:
    """Answer ``topo -m``: the matrix of link classes, in the columns that the machine's driver prints."""
    if "matrix" not in options:
        raise Refused("Invalid combination of input arguments: the SIMULATED nvidia-smi knows topo -m alone.")
    major = int(machine["driver_version"].split(".")[0])
    nics = [nic["name"] for nic in machine["nics"]]
    titles = [f"NIC{number}" for number in range(len(nics))] if major >= NIC_LEGEND_SINCE else nics
    labels = [f"GPU{gpu['index']}" for gpu in machine["gpus"]] + titles
    numa, own = major >= NUMA_COLUMN_SINCE, major >= GPU_NUMA_SINCE
    lines = ["\t".join(["", *labels, "CPU Affinity", *["NUMA Affinity"] * numa, *["GPU NUMA ID"] * own])]
    for row, label in zip(machine["rows"], labels):
        kinds = [link(machine, row, column) for column in machine["rows"]]
        cells = [f" {kind} " if kind == "X" else kind for kind in kinds]
        if label.startswith("GPU"):
            gpu = machine["gpus"][len(lines) - 1]
            cells += [gpu["cpus"], *[str(gpu["numa"])] * numa, *["", "N/A"] * own]
        else:
            cells += [""] * (1 + numa + 2 * own)
        lines.append("\t".join([label, *cells]))
    lines += ["", "Legend:", "", *(f"  {name:<4} = {text}" for name, text in CLASSES.items())]
    if nics and major >= NIC_LEGEND_SINCE:
        lines += ["", "NIC Legend:", "", *(f"  {label}: {name}" for label, name in zip(titles, nics))]
    return "\n".join([*lines, ""])


def link(machine: "dict[str, Any]", row: int, column: int) -> str:
    """Return the class between two devices; without active NVLinks it is the PCIe class."""
    kind: str = machine["matrix"][row][column]
    if not kind.startswith("NV") or not machine["down"]:
        return kind
    lanes = int(kind[2:]) - max(lost(machine, row, column), lost(machine, column, row))
    return f"NV{lanes}" if lanes > 0 else str(machine["paths"][row][column])


def lost(machine: "dict[str, Any]", gpu: int, peer: int) -> int:
    """Return how many of a GPU's links to `peer` are down; those to NVLink switches serve all peers."""
    numbers, peers = machine["down"].get(gpu, ()), machine["peers"][gpu]
    return sum(not peers or peers[number : number + 1] == [peer] for number in numbers)


def table(machine: "dict[str, Any]", gpus: "list[dict[str, Any]]") -> str:
    """Answer the call without arguments: the overview for people."""
    rule = f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+"
    head = f" NVIDIA-SMI {machine['driver_version']:<22} Driver Version: {machine['driver_version']:<14} "
    lines = [
        time.strftime("%a %b %e %H:%M:%S %Y"),
        f"+{'-' * 89}+",
        f"|{head + 'CUDA Version: ' + machine['cuda_version']:<89}|",
        f"|{' SIMULATED by a provision lab: ' + machine['name'] + ', no GPU is here':<89}|",
        f"|{'-' * 41}+{'-' * 24}+{'-' * 22}+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        f"|{'':41}|{'':24}|{'MIG M. ':>22}|",
        f"|{'=' * 41}+{'=' * 24}+{'=' * 22}|",
    ]
    for gpu in gpus:
        now = {name: str(value).strip("[]") for name, value in gpu["values"].items()}
        power = f"{float(now['power.draw']):.0f}W / {float(now['power.limit']):4.0f}W"
        memory = f"{now['memory.used']:>8}MiB / {now['memory.total']:>6}MiB "
        errors = now["ecc.errors.uncorrected.volatile.total"]
        busy = f"{now['utilization.gpu']:>7}%{now['compute_mode']:>13} "
        on = "On" if now["persistence_mode"] == "Enabled" else "Off"
        lines += [
            f"| {gpu['index']:>3}  {now['name']:<30}{on:>3}  |   {now['pci.bus_id']} Off |{errors:>21} |",
            f"| {now['fan.speed']:<3} {now['temperature.gpu']:>4}C    {now['pstate']:<4}{power:>22} |{memory}|{busy}|",
            f"|{'':41}|{'':24}|{now['mig.mode.current']:>21} |",
            rule,
        ]
    lines += [
        "",
        f"+{'-' * 89}+",
        f"|{' Processes:':<89}|",
        f"|{'  GPU   GI   CI        PID   Type   Process name':<78}{'GPU Memory':<11}|",
        f"|{'        ID   ID':<78}{'Usage':<11}|",
        f"|{'=' * 89}|",
        f"|{'  No running processes found':<89}|",
        f"+{'-' * 89}+",
        "",
    ]
    return "\n".join(lines)


def log(machine: "dict[str, Any]", gpus: "list[dict[str, Any]]") -> str:
    """Answer ``-q`` with the fields that are known here, in the real tool's layout."""
    lines = ["", "==============NVSMI LOG==============", "", f"{'SIMULATED':<42}: {machine['simulated']}"]
    lines += [f"{key:<42}: {value}" for key, value in summary(machine)]
    for gpu in gpus:
        lines.append(f"GPU {gpu['bus_id']}")
        lines += [f"    {name:<38}: {text}" for name, _, text in details(gpu)]
    return "\n".join([*lines, ""])


def xml(machine: "dict[str, Any]", gpus: "list[dict[str, Any]]") -> str:
    """Answer ``-q -x`` with the fields that are known here."""
    from html import escape  # rarely used, and imports take half of each call on an emulated node

    keys = {"Driver Version": "driver_version", "CUDA Version": "cuda_version", "Attached GPUs": "attached_gpus"}
    origin = escape(machine["simulated"], quote=False)
    lines = ['<?xml version="1.0" ?>', "<nvidia_smi_log>", f"\t<!-- SIMULATED: {origin} -->"]
    lines += [f"\t<{keys[key]}>{value}</{keys[key]}>" for key, value in summary(machine) if key in keys]
    for gpu in gpus:
        lines.append(f'\t<gpu id="{gpu["bus_id"]}">')
        for _, path, text in details(gpu):
            tags = path.split("/")
            opening, closing = "".join(f"<{tag}>" for tag in tags), "".join(f"</{tag}>" for tag in reversed(tags))
            lines.append(f"\t\t{opening}{escape(text, quote=False)}{closing}")
        lines.append("\t</gpu>")
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def summary(machine: "dict[str, Any]") -> "list[tuple[str, str]]":
    """Return the head of ``-q``."""
    return [
        ("Timestamp", time.strftime("%a %b %e %H:%M:%S %Y")),
        ("Driver Version", machine["driver_version"]),
        ("CUDA Version", machine["cuda_version"]),
        ("Attached GPUs", str(len(machine["gpus"]))),
    ]


def details(gpu: "dict[str, Any]") -> "list[tuple[str, str, str]]":
    """Return title, XML path and value of the fields of one GPU in ``-q``."""
    now = {name: re.sub(r"[\[\]]", "", str(value)) for name, value in gpu["values"].items()}
    return [
        ("Product Name", "product_name", now["name"]),
        ("Persistence Mode", "persistence_mode", now["persistence_mode"]),
        ("MIG Mode", "mig_mode/current_mig", now["mig.mode.current"]),
        ("Serial Number", "serial", now["serial"]),
        ("GPU UUID", "uuid", now["uuid"]),
        ("Minor Number", "minor_number", str(gpu["minor"])),
        ("VBIOS Version", "vbios_version", now["vbios_version"]),
        ("Bus Id", "pci/pci_bus_id", now["pci.bus_id"]),
        ("Performance State", "performance_state", now["pstate"]),
        ("Compute Mode", "compute_mode", now["compute_mode"]),
        ("Total", "fb_memory_usage/total", f"{now['memory.total']} MiB"),
        ("GPU Current Temp", "temperature/gpu_temp", f"{now['temperature.gpu']} C"),
        ("Fabric State", "fabric/state", now["fabric.state"]),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
