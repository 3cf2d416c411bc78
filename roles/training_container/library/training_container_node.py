#!/usr/bin/python
"""Ansible module: what a node has for the training container, and what runs in the container now."""

DOCUMENTATION = r"""
module: training_container_node
short_description: Read RDMA devices, the running container and the jobs in it
description:
  - One remote task that changes nothing. Asks docker by its command, everything else is read from /sys and /proc.
options:
  container: {description: Name of the container., type: str, required: true}
  image: {description: The image that it is to run., type: str, required: true}
  excluded: {description: RDMA devices to leave out., type: list, elements: str, default: []}
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
# What the role leaves alone, and docker then leaves empty. Whatever stands there was asked for by others.
NEVER_SET = (
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
# What keeps a container up that others made, and does nothing.
IDLERS = ("docker-init", "tini", "dumb-init", "sh", "dash", "bash", "sleep", "tail", "pause")
# A space and the like in a table of mounts.
ESCAPED = re.compile(r"\\([0-7]{3})")
LOGIN_PROGRAMS = ("sshd", "sshd-session", "sshd-auth")


def read(path):
    """Return a file's bytes, empty when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def is_device(path):
    """Return whether `path` is a character device that is there."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def rdma_devices(excluded, sys="/sys", dev="/dev/infiniband"):
    """Return the device files of the compute cards, and a sentence about each thing left out."""
    devices, left_out = [], []
    for folder in sorted(glob.glob(sys + "/class/infiniband_verbs/uverbs*")):
        name, path = read(folder + "/ibdev").decode().strip(), os.path.join(dev, os.path.basename(folder))
        if name in excluded:
            left_out.append(f"{name}: left out of the container as training_container_rdma_excluded asks")
        elif b"SW_MNG" in read(folder + "/device/vpd"):
            left_out.append(f"{name}: left out of the container, a management port of an NVSwitch")
        elif not is_device(path):
            left_out.append(f"{name}: left out of the container, {path} is missing on this node")
        else:
            devices.append(path)
    manager = os.path.join(dev, "rdma_cm")
    if devices and is_device(manager):
        devices.append(manager)
    elif devices:
        left_out.append(f"rdma_cm: left out of the container, {manager} is missing on this node (module rdma_ucm)")
    return devices, left_out


def namespace_of(pid):
    """Return the pid namespace of a process, empty when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def processes(namespace, identity):
    """Return pid -> (parent, name, state, command line) of the processes in a container's pid namespace.

    A container that was given the node's own (--pid host) is known by its control group.
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


def jobs(processes_by_pid, init, *, ours):
    """Return those processes that are somebody's work: neither the container's own nor a login without a command.

    By number and program, never with arguments: these are somebody else's, and can hold passwords.
    """
    if not ours:
        idle = idlers(processes_by_pid, init)
        work = [pid for pid, item in sorted(processes_by_pid.items()) if pid not in idle and item[2] != "Z"]
        return [{"pid": pid, "command": processes_by_pid[pid][1]} for pid in work]
    entrypoints = {pid for pid, item in processes_by_pid.items() if item[0] == init and ENTRYPOINT in item[3]}
    work = []
    for pid, (parent, name, state, _) in sorted(processes_by_pid.items()):
        own = pid == init or pid in entrypoints or parent in entrypoints
        if not own and state != "Z" and name not in LOGIN_PROGRAMS:
            work.append({"pid": pid, "command": name})
    return work


def idlers(processes_by_pid, init):
    """Return the processes that only keep a container up: its first one and what that started, while it does nothing else."""
    idle = set()
    for pid, (parent, name, _, _) in sorted(processes_by_pid.items(), key=lambda item: (item[0] != init, item[0])):
        if name in IDLERS and (pid == init or parent in idle):
            idle.add(pid)
    return idle


def owner(pid):
    """Return the account of a process, by its number where the node has no such account."""
    try:
        number = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "unknown"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def docker(module, container, image):
    """Return whether docker answers (or why not), whether the image is there, and the container's description."""
    if not module.get_bin_path("docker"):
        return {"answers": False, "reason": "the command docker is not installed"}, False, {}
    code, out, err = module.run_command(["docker", "version", "--format", "{{.Server.Version}}"])
    if code != 0:
        return {"answers": False, "reason": err.strip() or "no reason given"}, False, {}
    present = module.run_command(["docker", "image", "inspect", "--format", "{{.Id}}", image])[0] == 0
    code, out, _ = module.run_command(["docker", "container", "inspect", container])
    return {"answers": True, "reason": ""}, present, json.loads(out)[0] if code == 0 else {}


def foreign(description):
    """Return the options of a container that the role never sets, and that are set nevertheless."""
    options = dict(description.get("HostConfig") or {})
    # Docker adds this one by itself to a privileged container.
    options["SecurityOpt"] = [item for item in options.get("SecurityOpt") or [] if item != "label=disable"]
    return [name for name in NEVER_SET if options.get(name)]


def deleted(description, proc="/proc"):
    """Return the paths on the node of folders, and of the file of names, that the container keeps though they were deleted.

    The kernel marks them in the table of its mounts. Other files are replaced by whoever edits them, and do not count.
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
    """Return the jobs in the container, none when it does not run."""
    state, config = description.get("State") or {}, description.get("Config") or {}
    if not state.get("Running"):
        return []
    init = state["Pid"]
    namespace = namespace_of(init)
    if not namespace:
        return []
    labelled = (config.get("Labels") or {}).get("provision.role") == "training_container"
    job_processes = jobs(
        processes(namespace, description["Id"]), init, ours=labelled or ENTRYPOINT in (config.get("Entrypoint") or [])
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
    devices, left_out = rdma_devices(module.params["excluded"])
    node = {
        "docker": answer,
        "image": present,
        "devices": devices,
        "left_out": left_out,
        "jobs": running_jobs(description),
        "foreign": foreign(description),
        "deleted": deleted(description),
        "watching": all(module.run_command(["systemctl", "is-enabled", "--quiet", unit])[0] == 0 for unit in UNITS)
        and module.run_command(["systemctl", "is-active", "--quiet", UNITS[1]])[0] == 0
        and module.run_command(["systemctl", "is-failed", "--quiet", UNITS[0]])[0] != 0,
        "ssh_keys": os.path.isdir(SSH_KEYS) and not os.path.islink(SSH_KEYS),
        "hosts": os.path.isfile("/var/lib/provision/container_hosts"),
    }
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
