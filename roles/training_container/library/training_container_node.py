#!/usr/bin/python
"""Ansible module: return the devices for the training container, its state and the jobs in it."""

DOCUMENTATION = r"""
module: training_container_node
short_description: Read RDMA devices, the running container and the jobs in it
description:
  - Changes nothing. Runs the command docker and reads /sys and /proc, in one remote task.
options:
  container: {description: Name of the container., type: str, required: true}
  image: {description: Image of the container., type: str, required: true}
  excluded: {description: RDMA devices to exclude., type: list, elements: str, default: []}
author: [provision]
"""

import glob
import json
import os
import pwd
import re
import stat

from ansible.module_utils.basic import AnsibleModule

ENTRYPOINT = "/usr/local/lib/provision/container-entrypoint"
SSH_KEYS = "/var/lib/provision/container_ssh/keys"
UNITS = ("provision-container-hosts.service", "provision-container-hosts.path")
# Options that the role never sets and that docker leaves empty. A value was set by another program or manually.
UNMANAGED_OPTIONS = (
    "BlkioWeight",
    "CgroupParent",
    "CpuPeriod",
    "CpuQuota",
    "CpuShares",
    "CpusetCpus",
    "CpusetMems",
    "DeviceCgroupRules",
    "Dns",
    "ExtraHosts",
    "GroupAdd",
    "Memory",
    "MemoryReservation",
    "NanoCpus",
    "OomKillDisable",
    "OomScoreAdj",
    "PidMode",
    "ReadonlyRootfs",
    "SecurityOpt",
    "Sysctls",
    "Tmpfs",
    "UTSMode",
    "UsernsMode",
    "VolumesFrom",
)
# Programs that do nothing but keep a foreign container running.
IDLE_PROGRAMS = ("docker-init", "tini", "dumb-init", "sh", "dash", "bash", "sleep", "tail", "pause")
# An escaped character, such as a space, in a table of mounts.
ESCAPED = re.compile(r"\\([0-7]{3})")
LOGIN_PROGRAMS = ("sshd", "sshd-session", "sshd-auth")


def read(path):
    """Return a file's bytes, empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def is_device(path):
    """Return whether `path` is a character device."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def rdma_devices(excluded, sys="/sys", dev="/dev/infiniband"):
    """Return the device files of the compute cards, and a sentence for each excluded device."""
    devices, reductions = [], []
    for folder in sorted(glob.glob(sys + "/class/infiniband_verbs/uverbs*")):
        name, path = read(folder + "/ibdev").decode().strip(), os.path.join(dev, os.path.basename(folder))
        if name in excluded:
            reductions.append(f"{name}: excluded from the container by training_container_rdma_excluded")
        elif b"SW_MNG" in read(folder + "/device/vpd"):
            reductions.append(f"{name}: excluded from the container, because it is a management port of an NVSwitch")
        elif not is_device(path):
            reductions.append(f"{name}: excluded from the container, because this node has no {path}")
        else:
            devices.append(path)
    manager = os.path.join(dev, "rdma_cm")
    if devices and is_device(manager):
        devices.append(manager)
    elif devices:
        reductions.append(f"rdma_cm: excluded from the container, because this node has no {manager} (module rdma_ucm)")
    return devices, reductions


def namespace_of(pid):
    """Return the PID namespace of a process, empty if the process has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def processes(namespace, identity):
    """Return pid -> (parent, name, state, command line) of the processes in a container's PID namespace.

    The processes of a container in the PID namespace of the node (--pid host) are identified by their control group.
    """
    by_pid, shared = {}, namespace == namespace_of("self")
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        inside = identity in read(f"/proc/{entry}/cgroup").decode() if shared else namespace_of(entry) == namespace
        head, _, tail = read(f"/proc/{entry}/stat").decode(errors="replace").rpartition(")")
        if inside and tail:
            state, parent = tail.split()[:2]
            command = read(f"/proc/{entry}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            by_pid[int(entry)] = (int(parent), head.partition("(")[2], state, command)
    return by_pid


def jobs(processes_by_pid, init, *, managed):
    """Return the processes of jobs: those that belong neither to the container itself nor to a login without a command.

    Return their PIDs and programs, but no arguments, which can contain passwords of other users.
    """
    if not managed:
        idle = idle_processes(processes_by_pid, init)
        work = [pid for pid, item in sorted(processes_by_pid.items()) if pid not in idle and item[2] != "Z"]
        return [{"pid": pid, "command": processes_by_pid[pid][1]} for pid in work]
    entrypoints = {pid for pid, item in processes_by_pid.items() if item[0] == init and ENTRYPOINT in item[3]}
    work = []
    for pid, (parent, name, state, _) in sorted(processes_by_pid.items()):
        is_internal = pid == init or pid in entrypoints or parent in entrypoints
        if not is_internal and state != "Z" and name not in LOGIN_PROGRAMS:
            work.append({"pid": pid, "command": name})
    return work


def idle_processes(processes_by_pid, init):
    """Return the processes that only keep a container running: idle programs that descend from its first process."""
    idle = set()
    for pid, (parent, name, _, _) in sorted(processes_by_pid.items(), key=lambda item: (item[0] != init, item[0])):
        if name in IDLE_PROGRAMS and (pid == init or parent in idle):
            idle.add(pid)
    return idle


def owner(pid):
    """Return the user name of a process, or its UID if the node has no such user."""
    try:
        number = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "unknown"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def docker(module, container, image):
    """Return whether docker answers (or why not), whether it has the image, and the description of the container."""
    if not module.get_bin_path("docker"):
        return {"answers": False, "reason": "the command docker is not installed"}, False, {}
    code, out, err = module.run_command(["docker", "version", "--format", "{{.Server.Version}}"])
    if code != 0:
        return {"answers": False, "reason": err.strip() or "no reason given"}, False, {}
    present = module.run_command(["docker", "image", "inspect", "--format", "{{.Id}}", image])[0] == 0
    code, out, _ = module.run_command(["docker", "container", "inspect", container])
    return {"answers": True, "reason": ""}, present, json.loads(out)[0] if code == 0 else {}


def unmanaged_options(description):
    """Return the set options of a container that the role never sets."""
    options = dict(description.get("HostConfig") or {})
    # Docker adds this option to a privileged container.
    options["SecurityOpt"] = [item for item in options.get("SecurityOpt") or [] if item != "label=disable"]
    return [name for name in UNMANAGED_OPTIONS if options.get(name)]


def deleted_mounts(description, proc="/proc"):
    """Return the paths on the node of mounted folders (and of the hosts file) that were deleted on the node.

    The kernel marks them in the table of mounts. Other files are ignored, because editors replace them.
    """
    pid = (description.get("State") or {}).get("Pid") or 0
    binds = [bind.split(":") for bind in (description.get("HostConfig") or {}).get("Binds") or []]
    sources = {os.path.normpath(words[1]): words[0] for words in binds if len(words) > 1}
    folders = []
    for line in read(f"{proc}/{pid}/mountinfo").decode(errors="replace").splitlines() if pid else []:
        words = line.split()
        if len(words) < 5 or not words[3].endswith("//deleted"):
            continue
        target = ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), words[4])
        folder = target == "/etc/hosts" or os.path.isdir(f"{proc}/{pid}/root{target}")
        if folder and target in sources and sources[target] not in folders:
            folders.append(sources[target])
    return folders


def running_jobs(description):
    """Return the jobs in the container, none if it does not run."""
    state, config = description.get("State") or {}, description.get("Config") or {}
    if not state.get("Running"):
        return []
    init = state["Pid"]
    namespace = namespace_of(init)
    if not namespace:
        return []
    has_label = (config.get("Labels") or {}).get("provision.role") == "training_container"
    job_processes = jobs(
        processes(namespace, description["Id"]),
        init,
        managed=has_label or ENTRYPOINT in (config.get("Entrypoint") or []),
    )
    return [{**job, "command": f"{job['command']} of {owner(job['pid'])}"} for job in job_processes]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "excluded": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    answer, present, description = docker(module, module.params["container"], module.params["image"])
    devices, reductions = rdma_devices(module.params["excluded"])
    node = {
        "docker": answer,
        "image": present,
        "devices": devices,
        "reductions": reductions,
        "jobs": running_jobs(description),
        "foreign": unmanaged_options(description),
        "deleted": deleted_mounts(description),
        "watching": all(module.run_command(["systemctl", "is-enabled", "--quiet", unit])[0] == 0 for unit in UNITS)
        and module.run_command(["systemctl", "is-active", "--quiet", UNITS[1]])[0] == 0
        and module.run_command(["systemctl", "is-failed", "--quiet", UNITS[0]])[0] != 0,
        "ssh_keys": os.path.isdir(SSH_KEYS) and not os.path.islink(SSH_KEYS),
        "hosts": os.path.isfile("/var/lib/provision/container_hosts"),
    }
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
