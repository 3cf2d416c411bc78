"""The configuration of Slurm from the layouts of all nodes: slurm.conf, gres.conf, topology.conf and cgroup.conf.

The role slurm has this file as its filter plugin, by a link, so that plain Ansible renders the same. It imports nothing
but the standard library. What a node reports is checked here before it enters any file.

A node's entry, as recorded in ``/etc/provision/slurm.json`` of the controller, has all that its lines need: address,
hostname, sockets, cores, threads, memory, gpus (minor number and socket), features and leaf.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

FOLDER = "/etc/slurm"
STATE_FOLDER = "/var/lib/slurm/slurmctld"
PARTITIONS = ({"name": "gpu", "default": True},)
"""The partitions without any in the inventory, as in the role's defaults."""
VERSIONS = ("22.05", "24.11")
"""The versions of Slurm that the role sets up."""
PORT = 6817
"""Of slurmctld; slurmd has the next one."""
ACCOUNTING_PORT = 6819
SLURMDBD = "slurmdbd"
"""The value of slurm_accounting with which slurmdbd records jobs in a database on the first controller."""
DATABASE, DATABASE_ACCOUNT = "slurm_acct_db", "slurm"
"""MariaDB's name of the database, and of the account, which is that of the system: there is no password."""
REASON = "provision: health: "
"""With this, the health program begins the reasons of its drains."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
_FEATURE = re.compile(r"[A-Za-z0-9_.-]{1,63}\Z")
_TIME = re.compile(r"(?:INFINITE|UNLIMITED|\d{1,6}|(?:\d{1,4}-)?\d{1,3}(?::\d{1,2}){0,2})\Z", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{1,63}\Z")
_VALUE = re.compile(r"[A-Za-z0-9_.,:/=+*@-]{1,255}\Z")
_MODEL = re.compile(r"(?<![A-Za-z0-9])([A-Z]{1,3}[0-9]{1,4}[A-Z]{0,2})(?![A-Za-z0-9])")
_RTX = re.compile(r"RTX (?:PRO )?([0-9]{4})")
_MOST_MINOR, _MOST_SOCKET = 1023, 65536
_MOST_COUNT, _MOST_CPUS, _MOST_MEMORY = 1024, 8192, 1 << 26
"""Of sockets, cores of a socket and threads of a core; of the CPUs of a node; and of its memory in MiB (64 TiB)."""
_LEAST_SHARE = 256
"""DefMemPerCPU is at least this (MiB). A node with less memory for each CPU does not decide about the other nodes."""
_MEMORY_STEP = 16
_SPARE = 0.01
"""The part of the memory that Slurm does not hand out: it drains a node with less memory than slurm.conf says."""
_LOWEST = 0.9
"""A recorded memory stays while it is at least this part of the node's."""
_FIXED: dict[str, str] = {
    "SlurmUser": "slurm",
    "SlurmctldParameters": "enable_configless",
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "JobCompType": "jobcomp/filetxt",
    "JobCompLoc": "/var/log/slurm/jobcomp.txt",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "GresTypes": "gpu",
    "PropagateResourceLimitsExcept": "MEMLOCK",
    "PrologFlags": "Alloc,Contain",
    "Prolog": f"{FOLDER}/prolog.d/*",
    "Epilog": f"{FOLDER}/epilog.d/*",
    "HealthCheckProgram": "/usr/local/sbin/provision-slurm-health",
    "HealthCheckNodeState": "ANY,CYCLE",
    "ReturnToService": "2",
    "MinJobAge": "86400",
    "MaxJobCount": "100000",
    "MpiDefault": "none",
    "MailProg": "/bin/true",
    "EnforcePartLimits": "ALL",
    "SlurmdTimeout": "120",
    "SlurmctldTimeout": "60",
    "KillWait": "30",
    "UnkillableStepTimeout": "120",
    "SchedulerParameters": "sched_interval=5,bf_interval=5,batch_sched_delay=0,bf_continue,nohold_on_prolog_fail",
}
_PROTECTED = frozenset(
    [
        "clustername",
        "slurmctldhost",
        "slurmuser",
        "slurmctldparameters",
        "authtype",
        "credtype",
        "nodename",
        "partitionname",
        "statesavelocation",
        "prolog",
        "epilog",
        "prologflags",
        "healthcheckprogram",
        "healthcheckinterval",
        "healthchecknodestate",
        "grestypes",
        "proctracktype",
        "taskplugin",
        "topologyplugin",
        "include",
        "minjobage",
        "accountingstoragetype",
        "accountingstoragehost",
        "accountingstorageport",
        "accountingstorageuser",
        "accountingstoragepass",
        "slurmctldport",
        "slurmdport",
        "slurmdspooldir",
        "slurmctldpidfile",
        "slurmdpidfile",
        "rebootprogram",
        "resumeprogram",
        "suspendprogram",
    ]
)
"""What users cannot set: the rest of the role depends on it."""
_RELOADED = frozenset(
    [
        "partitionname",
        "schedulerparameters",
        "defmempercpu",
        "minjobage",
        "slurmdtimeout",
        "slurmctldtimeout",
        "killwait",
        "unkillablesteptimeout",
        "healthcheckinterval",
        "enforcepartlimits",
        "returntoservice",
    ]
)
"""What ``scontrol reconfigure`` changes; for anything else slurmctld is restarted."""


class InvalidEntryError(ValueError):
    """A node's report or a setting that must not enter a configuration."""


def node_entry(
    layout: Mapping[str, Any], *, address: str, leaf: str = "", labels: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the entry of a node from what it reports.

    Raises:
        InvalidEntryError: a value is not of its form.
    """
    ipaddress.ip_address(address)  # a ValueError too
    gpus = [{"minor": _count(gpu["minor"], 0, _MOST_MINOR), "socket": gpu.get("socket")} for gpu in layout["gpus"]]
    for gpu in gpus:
        gpu["socket"] = gpu["socket"] if gpu["socket"] is None else _count(gpu["socket"], 0, _MOST_SOCKET)
    if len({gpu["minor"] for gpu in gpus}) != len(gpus):
        raise InvalidEntryError("two GPUs have the same minor number")
    counts = {key: _count(layout[key], 1, _MOST_COUNT) for key in ("sockets", "cores", "threads")}
    cpus = counts["sockets"] * counts["cores"] * counts["threads"]
    if cpus > _MOST_CPUS:
        raise InvalidEntryError(f"{cpus} CPUs are more than {_MOST_CPUS}")
    models = sorted({feature_of(str(gpu.get("model", ""))) for gpu in layout["gpus"]} - {""})
    return {
        "address": address,
        "hostname": _name(layout["hostname"], "host name"),
        **counts,
        "memory": memory_of(_count(layout["memory"], 1, _MOST_MEMORY)),
        "gpus": sorted(gpus, key=lambda gpu: int(gpu["minor"])),
        "features": [*models, *label_features(labels or {})],
        "leaf": _name(leaf, "leaf") if leaf else "",
    }


def _count(value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidEntryError(f"{str(value)[:40]!r} is not a number from {least} to {most}")
    return value


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise InvalidEntryError(f"{str(value)[:60]!r} is not a valid {what} for Slurm: letters, digits, '-', '_', '.'")
    return value


def memory_of(mebibytes: int) -> int:
    """Return the memory that slurm.conf states: a little less than the node has."""
    less = mebibytes - max(64, int(mebibytes * _SPARE))
    return max(_MEMORY_STEP, less // _MEMORY_STEP * _MEMORY_STEP)


def feature_of(model: str) -> str:
    """Return the feature that names a GPU's model: ``NVIDIA H100 80GB HBM3`` -> ``h100``; empty without a model."""
    rtx = _RTX.search(model)
    if rtx:
        return f"rtx{rtx[1]}"
    name = _MODEL.search(model)
    return (name[1] if name else re.sub(r"[^A-Za-z0-9]+", "_", model).strip("_"))[:63].lower()


def label_features(labels: Mapping[str, Any]) -> list[str]:
    """Return the features of the labels that jobs may select: ``KEY=VALUE``. Labels of another form have none."""
    pairs = ((str(key), str(value)) for key, value in labels.items())
    return sorted(f"{key}={value}" for key, value in pairs if _FEATURE.match(key) and _FEATURE.match(value))


def same_entry(recorded: Any, current: Mapping[str, Any]) -> bool:
    """Return whether the recorded entry fits the node; less memory than now is fine, within limits."""
    if not isinstance(recorded, Mapping) or recorded.get("memory") is None:
        return False
    return {**current, "memory": _stable_memory(recorded, current)} == dict(recorded)


def _stable_memory(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> int:
    """Return the recorded memory while it is near enough below the current one, which a new kernel changes a little."""
    before, now = recorded.get("memory"), int(current["memory"])
    return before if isinstance(before, int) and now * _LOWEST <= before <= now else now


def claimed_names(
    wanted: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Any], names: Collection[str]
) -> dict[str, str]:
    """Return nodes that report the host name of another node, and that node.

    Args:
        wanted: the entries of the nodes of this run.
        recorded: the entries of the last configuration that stay.
        names: the inventory names of the nodes of Slurm.
    """
    before: dict[str, set[str]] = {}
    for name, entry in recorded.items():
        before.setdefault(str(entry.get("hostname")), set()).add(name)
    now: dict[str, set[str]] = {}
    for name, entry in wanted.items():
        now.setdefault(str(entry["hostname"]), set()).add(name)
    claims = {}
    for name, entry in wanted.items():
        host = entry["hostname"]
        has_it = name in before.get(host, ())
        others = before.get(host, set()) | (set() if has_it else now[host]) | ({host} & set(names))
        if host != name and others - {name}:
            claims[name] = min(others - {name})
    return claims


def own_names(recorded: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return recorded entries, without host names that have become the inventory names of other nodes."""
    return {
        name: {**entry, "hostname": name} if str(entry.get("hostname")) in {*names} - {name} else entry
        for name, entry in recorded.items()
    }


def merged(
    wanted: Mapping[str, Mapping[str, Any]],
    recorded: Mapping[str, Any],
    members: Collection[str],
    busy: Collection[str],
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the entries of the next configuration, and the nodes whose change waits for their jobs.

    Args:
        wanted: the entries of the nodes of this run.
        recorded: the entries of the last configuration.
        members: all nodes that take jobs. Others are removed.
        busy: the nodes with jobs: another line, or none, could end these.
    """
    entries: dict[str, dict[str, Any]] = {}
    waiting: list[str] = []
    for name in sorted({*members, *recorded}):
        before = recorded.get(name)
        after = wanted.get(name, before) if name in members else None
        if before is not None and after is not None and wanted.get(name) is not None:
            after = {**after, "memory": _stable_memory(before, after)}
        if before is not None and name in busy and _hardware(before) != _hardware(after):
            waiting.append(name)
            after = before
        if after is not None:
            entries[name] = dict(after)
    return entries, waiting


def _hardware(entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what of an entry decides about running jobs; features and switches do not."""
    return {key: value for key, value in (entry or {}).items() if key not in ("features", "leaf", "memory")}


def setting_problems(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield variable and problem of what in the inventory cannot enter slurm.conf."""
    for item in settings.get("partitions") or ():
        try:
            _partition(item, ["a"])
        except (InvalidEntryError, AttributeError, TypeError) as error:
            yield "slurm_partitions", str(error)
    for key, value in (settings.get("options") or {}).items():
        try:
            _option(key, value)
        except InvalidEntryError as error:
            yield "slurm_options", str(error)
    folder = str(settings.get("state_folder") or STATE_FOLDER)
    if not re.fullmatch(r"/[A-Za-z0-9._/-]{1,200}", folder) or ".." in folder:
        yield "slurm_state_folder", f"'{folder}' is not an absolute path of letters, digits and . _ / -"
    elif len(settings.get("controllers") or ()) > 1 and folder.rstrip("/") == STATE_FOLDER:
        yield "slurm_state_folder", "a backup controller requires a folder that both controllers share"


def membership_problems(partitions: Sequence[Any], members: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield variable and problem of partitions that do not fit the nodes that take jobs."""
    items = [item for item in partitions if isinstance(item, Mapping)]
    for item in items:
        names = item.get("nodes") or ()
        if isinstance(names, str) or not isinstance(names, Sequence):
            yield "slurm_partitions", f"'nodes' of the partition '{str(item.get('name'))[:60]}' is not a list of names"
            return
        unknown = [str(name)[:60] for name in names if name not in members]
        if unknown:
            text = f"the partition '{str(item.get('name'))[:60]}' names nodes that are not in the inventory"
            yield "slurm_partitions", f"{text}, or take no jobs: {', '.join(unknown)}"
    listed = {str(name) for item in items for name in item.get("nodes") or members}
    outside = sorted(set(members) - listed)
    if outside:
        yield "slurm_partitions", f"no partition has {', '.join(outside[:5])}, so that no job could run there"


def record_problems(
    records: Mapping[str, Mapping[str, Any]], first: str, settings: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield variable, problem and remedy of each change that would lose the queue or end jobs.

    Args:
        records: node -> controllers, state_folder, partitions and busy_partitions, as the node reports them.
        first: the node that runs slurmctld.
        settings: partitions and state_folder.
    """
    primary = sorted({str(names[0]) for record in records.values() if (names := record.get("controllers"))} - {first})
    if primary:
        problem = f"the nodes have recorded {primary[0]} as the controller; {first} would start with an empty queue"
        yield _CONTROLLER_VARIABLE, problem, f"Set slurm_controller: {primary[0]}. {_MOVE}"
    folder = str(settings.get("state_folder") or STATE_FOLDER).rstrip("/")
    folders = {str(record["state_folder"]).rstrip("/") for record in records.values() if record.get("state_folder")}
    for other in sorted(folders - {folder}):
        problem = f"the controller has recorded {other}; in {folder} slurmctld would start with an empty queue"
        yield "slurm_state_folder", problem, f"Set slurm_state_folder: {other}. {_MOVE}"
    names = {str(item.get("name")) for item in settings.get("partitions") or () if isinstance(item, Mapping)}
    for name in sorted({str(one) for record in records.values() for one in record.get("partitions") or ()} - names):
        if any(_may_have_jobs(record, name) for record in records.values()):
            problem = f"the partition '{name}' is removed, and it has jobs or its jobs are unknown; they would end"
            yield "slurm_partitions", problem, _REMOVE_PARTITION.format(name=name)


_MOVE = (
    "To change it, drain all nodes, wait until `squeue` prints no job, run `provision reset` on all nodes, "
    "then run: provision apply"
)
_REMOVE_PARTITION = (
    "Keep the partition. To remove it, run `scontrol update PartitionName={name} State=DRAIN` on the controller, wait "
    "until `squeue --partition {name}` prints no job, then remove it and run: provision apply"
)


def _may_have_jobs(record: Mapping[str, Any], partition: str) -> bool:
    busy = record.get("busy_partitions")
    return partition in (record.get("partitions") or ()) and (busy is None or partition in busy)


def slurm_conf(settings: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return slurm.conf.

    Args:
        settings: cluster, controllers (name and address), partitions, options, state_folder, health_seconds and
            accounting.
        entries: the nodes by name.
    """
    values = {"ClusterName": cluster_name(settings["cluster"])}
    lines = [f"{key}={value}" for key, value in values.items()]
    for controller in settings["controllers"]:
        ipaddress.ip_address(controller["address"])
        lines.append(f"SlurmctldHost={_name(controller['hostname'], 'host name')}({controller['address']})")
    values = {
        **_FIXED,
        "SlurmctldPort": str(PORT),
        "StateSaveLocation": str(settings.get("state_folder") or STATE_FOLDER),
        "HealthCheckInterval": str(_count(settings["health_seconds"], 10, 86400)),
        **memory_default(entries),
        **({"TopologyPlugin": "topology/tree"} if topology_conf(entries) else {}),
        **_accounting(settings),
    }
    for key, value in (settings.get("options") or {}).items():
        name, text = _option(key, value)
        values = {known: old for known, old in values.items() if known.lower() != name.lower()} | {name: text}
    lines += [f"{key}={value}" for key, value in values.items()]
    lines += [_node_line(name, entry) for name, entry in sorted(entries.items())]
    lines += list(_partition_lines(settings.get("partitions") or (), entries))
    return _HEAD + "\n".join(lines) + "\n"


def _accounting(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings with which slurmctld sends its records to slurmdbd; without it they would be fatal."""
    if settings.get("accounting") != SLURMDBD:
        return {}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": str(settings["controllers"][0]["address"]),
        "AccountingStoragePort": str(ACCOUNTING_PORT),
        "AccountingStorageTRES": "gres/gpu",
        "AccountingStoreFlags": "job_comment",
    }


def slurmdbd_conf() -> str:
    """Return slurmdbd.conf. It has no secret: MariaDB identifies slurmdbd by its system account."""
    values = {
        "AuthType": "auth/munge",
        "DbdHost": "localhost",
        "DbdPort": str(ACCOUNTING_PORT),
        "SlurmUser": "slurm",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": DATABASE_ACCOUNT,
        "StorageLoc": DATABASE,
        "LogFile": "/var/log/slurm/slurmdbd.log",
        "PidFile": "/run/slurmdbd.pid",
    }
    return _HEAD + "".join(f"{key}={value}\n" for key, value in values.items())


_HEAD = "# Written by provision (role slurm) from the facts of the nodes. An apply overwrites other changes.\n"


def cluster_name(name: str) -> str:
    """Return a valid ClusterName: Slurm accepts lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9_]+", "_", str(name).lower()).strip("_")[:40] or "provision"


def memory_default(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return DefMemPerCPU, without which a job gets all memory of its nodes."""
    shares = [
        int(entry["memory"]) // (int(entry["sockets"]) * int(entry["cores"]) * int(entry["threads"]))
        for entry in entries.values()
    ]
    least = min((share for share in shares if share >= _LEAST_SHARE), default=_LEAST_SHARE)
    return {"DefMemPerCPU": str(least)} if shares else {}


def _node_line(name: str, entry: Mapping[str, Any]) -> str:
    words = [f"NodeName={_name(name, 'node name')}"]
    words += [f"NodeHostname={entry['hostname']}"] if entry["hostname"] != name else []
    words += [f"NodeAddr={entry['address']}", f"Sockets={entry['sockets']}", f"CoresPerSocket={entry['cores']}"]
    words += [f"ThreadsPerCore={entry['threads']}", f"RealMemory={entry['memory']}"]
    if entry["gpus"]:
        words.append("Gres=" + ",".join(f"gpu:{gpu_type(gpu)}:1" for gpu in entry["gpus"]))
    words += [f"Feature={','.join(entry['features'])}"] if entry["features"] else []
    return " ".join([*words, "State=UNKNOWN"])


def gpu_type(gpu: Mapping[str, Any]) -> str:
    """Return the type that names one exact GPU in requests such as ``--gres=gpu:g5:1``: g and its minor number."""
    return f"g{gpu['minor']}"


def gres_conf(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return gres.conf: a line for each GPU, by its device file, and its cores where nodes have several sockets."""
    lines = ["AutoDetect=off"]
    for name, entry in sorted(entries.items()):
        for gpu in entry["gpus"]:
            words = [f"NodeName={name}", "Name=gpu", f"Type={gpu_type(gpu)}", f"File=/dev/nvidia{gpu['minor']}"]
            socket, cores = gpu["socket"], int(entry["cores"])
            if socket is not None and int(entry["sockets"]) > 1 and socket < int(entry["sockets"]):
                words.append(f"Cores={socket * cores}-{(socket + 1) * cores - 1}")
            lines.append(" ".join(words))
    return _HEAD + "\n".join(lines) + "\n"


def topology_conf(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return topology.conf: a switch for each leaf below one spine; empty if no node has a leaf."""
    leaves: dict[str, list[str]] = {}
    for name, entry in sorted(entries.items()):
        leaves.setdefault(entry.get("leaf") or "", []).append(name)
    if set(leaves) <= {""}:
        return ""
    other = leaves.pop("", [])
    switches = {f"leaf_{leaf}": names for leaf, names in leaves.items()} | ({"other": other} if other else {})
    lines = [f"SwitchName={name} Nodes={','.join(nodes)}" for name, nodes in switches.items()]
    return _HEAD + "\n".join([*lines, f"SwitchName=spine Switches={','.join(switches)}"]) + "\n"


def cgroup_conf() -> str:
    """Return cgroup.conf: a job can use only its own cores, devices and memory."""
    return _HEAD + "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"


def _partition_lines(partitions: Sequence[Any], entries: Mapping[str, Any]) -> Iterator[str]:
    for item in partitions:
        names = item.get("nodes") or sorted(entries)
        names = [name for name in names if name in entries]
        if names:
            yield _partition(item, names)


def _partition(item: Mapping[str, Any], nodes: Iterable[str]) -> str:
    unknown = sorted(set(item) - {"name", "nodes", "default", "max_time", "default_time", "options"})
    if unknown:
        raise InvalidEntryError(f"a partition has no key {', '.join(map(str, unknown))}")
    words = [f"PartitionName={_name(item.get('name'), 'partition name')}", f"Nodes={','.join(nodes)}"]
    words.append(f"Default={'YES' if str(item.get('default', '')).lower() in ('true', 'yes', '1') else 'NO'}")
    for key, name, default in (("MaxTime", "max_time", "UNLIMITED"), ("DefaultTime", "default_time", "7-0")):
        value = str(item.get(name) or default)
        if not _TIME.match(value):
            raise InvalidEntryError(f"'{value[:40]}' is not a time of Slurm, such as 7-0, 12:00:00 or UNLIMITED")
        words.append(f"{key}={value}")
    taken = {"partitionname", "nodes", "default", "maxtime", "defaulttime", "state"}
    for key, value in (item.get("options") or {}).items():
        if not _WORD.match(str(key)) or str(key).lower() in taken or not _VALUE.match(str(value)):
            raise InvalidEntryError(f"the partition option '{str(key)[:40]}' or its value is not valid")
        words.append(f"{key}={value}")
    return " ".join([*words, "State=UP"])


def _option(key: Any, value: Any) -> tuple[str, str]:
    if not _WORD.match(str(key)) or not _VALUE.match(str(value)):
        raise InvalidEntryError(f"the option '{str(key)[:40]}' or its value is not valid")
    if str(key).lower() in _PROTECTED:
        raise InvalidEntryError(f"{key} cannot be set: the role writes it")
    return str(key), str(value)


def controller_texts(settings: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the files of a controller by path; an empty text means no file."""
    return {
        f"{FOLDER}/slurm.conf": slurm_conf(settings, entries),
        f"{FOLDER}/gres.conf": gres_conf(entries),
        f"{FOLDER}/cgroup.conf": cgroup_conf(),
        f"{FOLDER}/topology.conf": topology_conf(entries),
    }


def reload_key(texts: Mapping[str, str]) -> str:
    """Return a hash of all that slurmctld reads."""
    return _hash(json.dumps(sorted(texts.items())))


def restart_key(texts: Mapping[str, str]) -> str:
    """Return a hash of what slurmctld reads only when it starts."""
    lines: list[str] = []
    for line in texts[f"{FOLDER}/slurm.conf"].splitlines():
        key = line.partition("=")[0].strip().lower()
        if key not in _RELOADED and not line.startswith("#"):
            lines.append(re.sub(r" Feature=\S+", "", line))
    return _hash(json.dumps([lines, texts[f"{FOLDER}/gres.conf"]]))


def slurmd_key(entry: Mapping[str, Any], controllers: Sequence[Mapping[str, Any]], more: str = "") -> str:
    """Return a hash of what slurmd reads only when it starts."""
    return _hash(json.dumps([_hardware(entry), entry["memory"], list(controllers), more], sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def play_problems(
    hostvars: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    members: Sequence[str],
    controllers: Sequence[str],
    settings: Mapping[str, Any],
) -> list[str]:
    """Return why the nodes of a play cannot be one Slurm cluster."""
    problems = [
        f"{name} ({_CONTROLLER_VARIABLE}) is not in the inventory" for name in controllers if name not in members
    ]
    problems += [f"'{name[:60]}' is not a valid node name for Slurm" for name in members if not _NAME.match(name)]
    problems += [f"{variable}: {text}" for variable, text in setting_problems({**settings, "controllers": controllers})]
    job_nodes = [name for name in members if _is_on(hostvars[name].get("cluster_takes_jobs", True))]
    fits = membership_problems(settings.get("partitions") or (), job_nodes)
    problems += [f"{variable}: {text}" for variable, text in fits]
    systems = {str(hostvars[name].get("platform_system") or "") for name in names} - {""}
    if len(systems) > 1:
        problems.append(f"{MIXED_RELEASES} ({', '.join(sorted(systems))})")
    if len({str(hostvars[name].get("cluster_engine") or "") for name in members}) > 1:
        problems.append(MIXED_ENGINES)
    return problems


def version_problem(version: str, system: str) -> str:
    """Return why the role cannot set up the Slurm of a system; empty if it can.

    Args:
        version: the version of the system's packages.
        system: the name of the system.
    """
    if version in VERSIONS:
        return ""
    if not version:
        return f"{system} has no Slurm of its own"
    return f"Slurm {version} of {system} is not supported; supported versions are {', '.join(VERSIONS)}"


def _is_on(value: Any) -> bool:
    return str(value).strip().lower() not in {"false", "no", "off", "0", "n", "f"}


def play_record_problems(
    hostvars: Mapping[str, Mapping[str, Any]], name: str, controllers: Sequence[str], settings: Mapping[str, Any]
) -> list[str]:
    """Return which changes would lose the queue or end jobs, by the records of a node and of its controller."""
    names = {name, controllers[0]}
    reports = {one: (hostvars[one].get("__slurm_node") or {}).get("state") or {} for one in names}
    problems = record_problems(reports, controllers[0], settings)
    return [f"{variable}: {problem}. {remedy}" for variable, problem, remedy in problems]


_CONTROLLER_VARIABLE = "slurm_controller"
MIXED_RELEASES = (
    "the nodes have several releases of their system, and so versions of Slurm that cannot form one cluster"
)
MIXED_ENGINES = "the nodes have several values of cluster_engine; a cluster has one engine"


def play_configuration(
    hostvars: Mapping[str, Mapping[str, Any]],
    members: Sequence[str],
    controllers: Sequence[str],
    addresses: Mapping[str, str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return settings, entries, and waiting, unknown and refused nodes from what the nodes of a play reported.

    A refused node keeps its recorded entry. A damaged or manipulated node must not stop the others.
    """
    reports = {name: (hostvars[name].get("__slurm_node") or {}) for name in {*members, *controllers}}
    first = reports[controllers[0]]
    document, state = first.get("document") or {}, first.get("state") or {}
    names = {*members, *controllers}
    recorded = own_names(document.get("nodes") or {}, names)
    busy = busy_nodes(state, recorded)
    reported, refused = _reported(hostvars, members, addresses)
    staying = {name: entry for name, entry in recorded.items() if name in members or name in busy}
    for name, other in claimed_names(reported, staying, names).items():
        refused[name] = _NAME_TAKEN.format(host=reported[name]["hostname"], other=other, name=name)
    wanted = {name: entry for name, entry in reported.items() if name not in refused}
    entries, waiting = merged(wanted, recorded, members, busy)
    known = {
        name: {"hostname": (reports[name].get("state") or {}).get("hostname"), "address": addresses.get(name)}
        for name in controllers
    }
    before = {item.get("name"): item for item in document.get("controllers") or ()}
    hosts = [
        {"name": name, **(known[name] if all(known[name].values()) else before.get(name, {}))} for name in controllers
    ]
    return {
        "settings": {
            **settings,
            "cluster": document.get("cluster") or cluster_name(str(settings.get("cluster", ""))),
            "controllers": [host for host in hosts if host.get("address")],
        },
        "entries": entries,
        "waiting": waiting,
        "refused": refused,
        "unknown": sorted(name for name in first.get("configured") or () if name in members and name not in entries),
    }


_INVALID_LAYOUT = (
    "its layout cannot enter the configuration of Slurm ({cause}). Check `slurmd -C` and the host name on the node, "
    "whose software may be damaged or manipulated, then run: provision apply --limit {name}"
)
_NAME_TAKEN = (
    "its host name '{host}' is that of the node {other}. Give each node a host name of its own "
    "(hostnamectl set-hostname), then run: provision apply"
)


def _reported(
    hostvars: Mapping[str, Mapping[str, Any]], members: Sequence[str], addresses: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the entries that the nodes of a play reported, and why those of other nodes are not valid."""
    entries: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for name in members:
        node = hostvars[name]
        leaf = str(node.get("cluster_leaf") or node.get("cluster_rack") or "")
        labels = node.get("cluster_labels") or {}
        try:
            layout = ((node.get("__slurm_node") or {}).get("state") or {}).get("layout")
            if layout and addresses.get(name):
                entries[name] = node_entry(layout, address=addresses[name], leaf=leaf, labels=labels)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            refused[name] = _INVALID_LAYOUT.format(cause=str(error)[:200], name=name)
    return entries, refused


def busy_nodes(state: Mapping[str, Any], recorded: Collection[str]) -> set[str]:
    """Return the nodes that have jobs or may have some.

    Args:
        state: nodes with their states as sinfo prints them, and the problem if slurmctld does not answer.
        recorded: the nodes of the last configuration. If slurmctld does not report one, its jobs are unknown.
    """
    nodes = state.get("nodes") or {}
    unknown = set(recorded) if state.get("problem") else set(recorded) - set(nodes)
    return unknown | {
        name
        for name, node in nodes.items()
        if re.match("alloc|mix|comp|drng|draining|failing|failg", str(node.get("state", "")).lower())
    }


def node_document(
    shared: Mapping[str, Any], name: str, recorded: Mapping[str, Any] | None, *, is_controller: bool, is_node: bool
) -> dict[str, Any]:
    """Return what a node records in ``/etc/provision/slurm.json``.

    `shared` is the controller's configuration; without it, what the node recorded before stays.
    """
    before = recorded or {}
    entries = shared.get("entries") or {}
    own = entries.get(name) if shared else before.get("entry")
    document: dict[str, Any] = {
        "node": name,
        "controllers": shared["settings"]["controllers"] if shared else before.get("controllers") or [],
        "entry": (own or {}) if is_node else {},
    }
    if is_controller:
        document["cluster"] = shared["settings"]["cluster"] if shared else before.get("cluster", "")
        document["nodes"] = entries if shared else before.get("nodes") or {}
        settings = shared["settings"] if shared else before
        document["state_folder"] = settings.get("state_folder") or STATE_FOLDER
        names = [str(item["name"]) for item in settings.get("partitions") or ()] if shared else before.get("partitions")
        document["partitions"] = names or []
        document["accounting"] = str(settings.get("accounting") or "none")
    return document


def play_files(texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the files of a controller for the module platform_files."""
    return [
        {"path": path, "content": text} if text else {"path": path, "state": "absent"} for path, text in texts.items()
    ]


def play_database_files(accounting: str, *, is_started: bool) -> list[dict[str, Any]]:
    """Return slurmdbd.conf for the module platform_files. Without accounting, remove that of the role's slurmdbd."""
    path = f"{FOLDER}/slurmdbd.conf"
    if accounting != SLURMDBD:
        return [{"path": path, "state": "absent"}] if is_started else []
    return [{"path": path, "content": slurmdbd_conf(), "owner": "slurm", "group": "slurm", "mode": "0600"}]


def waiting_text(names: Sequence[str]) -> list[str]:
    """Return the reductions of a controller's receipt."""
    return [f"the new configuration of {name} waits for its jobs to end" for name in names]


class FilterModule:
    """The filters of the role slurm."""

    def filters(self) -> dict[str, object]:
        """Return the filters by name."""
        return {
            "slurm_configuration": play_configuration,
            "slurm_document": node_document,
            "slurm_files": play_files,
            "slurm_problems": play_problems,
            "slurm_record_problems": play_record_problems,
            "slurm_reductions": waiting_text,
            "slurm_texts": controller_texts,
            "slurm_version_problem": version_problem,
            "slurm_reload_key": reload_key,
            "slurm_restart_key": restart_key,
            "slurmd_key": slurmd_key,
            "slurmdbd_files": play_database_files,
        }
