#!/usr/bin/python
"""Ansible module: read the facts of a node that the roles use, in one remote task."""

DOCUMENTATION = r"""
module: platform_node
short_description: Read the facts of a node that the roles use
description:
  - Replaces Ansible's fact gathering. Changes nothing and never runs a GPU or RDMA tool, because they can hang.
options:
  data_address: {description: "The node's address on the data network. Empty: determined from the networks.", type: str, default: ""}
  data_networks: {description: Networks (CIDR). The first address in one of them is the data address., type: list, elements: str, default: []}
author: [provision]
"""

import glob
import ipaddress
import json
import os
import platform
import re
import resource
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_busy import running_jobs
from ansible.module_utils.platform_os_release import is_interim, parse_os_release, variables_of
from ansible.module_utils.platform_package_manager import name_of_manager, package_manager

HOSTS = "/etc/hosts"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
RECEIPTS = "/var/lib/provision/receipts/*.json"
IMAGE_COPY = "/var/lib/provision/image"
LIMITS = {"RLIMIT_MEMLOCK": "Max locked memory", "RLIMIT_NOFILE": "Max open files"}
RDMA_MODULES = ("ib_uverbs", "rdma_ucm", "rdma_rxe")
SIMULATED_GPUS = "/usr/share/provision/simulated/gpus"
SNAP_DOCKER = "/snap/docker/current"
ROUTE_TYPES = ("blackhole", "broadcast", "local", "multicast", "prohibit", "throw", "unicast", "unreachable")
UFW_CONF = "/etc/ufw/ufw.conf"
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def text(path):
    """Return a small file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def os_release():
    """Return the ID, version and display name of the distribution, and the name by which the roles support it."""
    release = parse_os_release(text("/etc/os-release") or text("/usr/lib/os-release"), text("/etc/centos-release"))
    identity, version, name, _ = release or ("unknown", "unknown", "unknown", "")
    return {
        "distribution": identity,
        "distribution_version": version,
        "distribution_name": name,
        "system": variables_of(identity, version),
        "system_is_interim": is_interim(identity, version),
    }


def kind(module):
    """Return `container`, `vm` or `metal`."""
    if not module.get_bin_path("systemd-detect-virt"):
        return "metal"
    if module.run_command(["systemd-detect-virt", "--container", "--quiet"])[0] == 0:
        return "container"
    return "vm" if module.run_command(["systemd-detect-virt", "--vm", "--quiet"])[0] == 0 else "metal"


def limit(name, desired):
    """Return the highest limit that root may set: `desired`, or the hard limit if it cannot be raised."""
    number = getattr(resource, name)
    soft, hard = resource.getrlimit(number)
    if hard == resource.RLIM_INFINITY:
        return -1 if desired == resource.RLIM_INFINITY else desired
    if desired not in (-1, resource.RLIM_INFINITY) and hard >= desired:
        return desired
    try:
        resource.setrlimit(number, (soft, desired))
    except (OSError, ValueError):
        return limit_of_init(LIMITS[name], hard)
    return desired


def limit_of_init(title, default):
    """Return the hard limit of process 1, which does not depend on limits.d."""
    match = re.search(rf"^{title}\s+\S+\s+(\S+)", text("/proc/1/limits"), re.MULTILINE)
    if not match:
        return default
    return -1 if match.group(1) == "unlimited" else int(match.group(1))


def gpu_count():
    """Return the number of PCI devices of NVIDIA with a display class."""
    count = 0
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        vendor, device_class = text(folder + "/vendor").strip(), text(folder + "/class").strip()
        count += vendor == "0x10de" and device_class.startswith("0x03")
    return count


def driver_without_device(kernel):
    """Return whether the driver of NVIDIA is installed on a node without a GPU: then its module is not loaded."""
    installed = re.search(
        r"(?m)^(\S*/)?nvidia([-_](current|legacy|tesla)[^/:]*)?\.ko", text(f"/lib/modules/{kernel}/modules.dep")
    )
    return bool(installed) and not os.path.isdir("/sys/module/nvidia") and not os.path.exists(SIMULATED_GPUS)


def rdma(kernel):
    """Return the RDMA devices, the interfaces of software devices, and the available and loaded modules."""
    devices = {
        os.path.basename(folder): text(folder + "/parent").strip()
        for folder in sorted(glob.glob("/sys/class/infiniband/*"))
    }
    module_lists = text(f"/lib/modules/{kernel}/modules.dep") + text(f"/lib/modules/{kernel}/modules.builtin")
    return {
        "rdma_devices": list(devices),
        "rdma_interfaces": [interface for interface in devices.values() if interface],
        "rdma_modules_available": [name for name in RDMA_MODULES if f"/{name}.ko" in module_lists],
        "rdma_modules_loaded": [name for name in RDMA_MODULES if os.path.isdir(f"/sys/module/{name}")],
    }


def has_program(name):
    """Return whether the search path of root contains a program."""
    return any(os.access(os.path.join(folder, name), os.X_OK) for folder in SEARCH.split(":"))


def ip_lines(module, *arguments):
    """Return the words of each line that iproute2 prints; the one of Enterprise Linux 7 has no JSON."""
    program = module.get_bin_path("ip", opt_dirs=["/sbin", "/usr/sbin"])
    if not program:
        module.fail_json(
            msg="the program `ip` is missing on this node. Install iproute2 (Enterprise Linux: iproute) and apply again."
        )
    code, out, err = module.run_command([program, "-4", "-o", *arguments])
    if code != 0:
        module.fail_json(msg="`ip {}` failed: {}".format(" ".join(arguments), err.strip()))
    return [line.split() for line in out.splitlines() if line.strip()]


def after(key, words):
    """Return the word after a key, empty without it."""
    return words[words.index(key) + 1] if key in words[:-1] else ""


def network(module):
    """Return the addresses, routes and the default address. A peer address has its prefix after the peer."""
    addresses = [
        {
            "interface": words[1].partition("@")[0],
            "address": words[3].partition("/")[0],
            "prefix": int((after("peer", words) or words[3]).partition("/")[2] or 32),
        }
        for words in ip_lines(module, "address", "show")
        if len(words) > 3 and words[2] == "inet" and after("scope", words) != "host"
    ]
    lines = ip_lines(module, "route", "show")
    routes = [words[1:] if words[0] in ROUTE_TYPES else words for words in lines]
    default = next((words for words in lines if words[0] == "default"), [])
    default_addresses = [entry for entry in addresses if entry["interface"] == after("dev", default)]
    return {
        "addresses": addresses,
        "routes": sorted(
            {"{} {}".format(words[0], after("dev", words)).strip() for words in routes if words[0] != "default"}
        ),
        "default_address": after("src", default) or (default_addresses[0]["address"] if default_addresses else ""),
    }


def data_path(module, network_facts):
    """Return the data address and its interface."""
    address = module.params["data_address"]
    if not address:
        networks = [ipaddress.ip_network(item, strict=False) for item in module.params["data_networks"]]
        candidates = [
            entry["address"]
            for block in networks
            for entry in network_facts["addresses"]
            if ipaddress.ip_address(entry["address"]) in block
        ]
        address = candidates[0] if candidates else "" if networks else network_facts["default_address"]
    interfaces = [entry["interface"] for entry in network_facts["addresses"] if entry["address"] == address]
    return {"data_address": address, "data_interface": interfaces[0] if interfaces else ""}


def recorded_values(section):
    """Return the entries of a section of all receipts."""
    entries = {}
    for path in sorted(glob.glob(RECEIPTS)):
        try:
            entries.update(json.loads(text(path))[section])
        except (ValueError, LookupError, TypeError):
            continue
    return {name: value for name, value in entries.items() if isinstance(value, str)}


def packages(module):
    """Return the package manager, the installed packages and their versions, and those that are older than recorded."""
    name = name_of_manager(module)
    if not name:
        empty = {"repository_files": [], "proxy_files": [], "other_sources": []}
        return {"package_manager": "", "packages": {}, "downgraded": [], **empty}
    manager = package_manager(module, name)
    installed = manager.versions()
    return {
        "package_manager": name,
        "packages": installed,
        "downgraded": manager.downgraded(recorded_values("packages"), installed),
        "repository_files": manager.repository_files(),
        "proxy_files": [path for path in manager.proxy_files if os.path.exists(path)],
        "other_sources": manager.sources(),
        "leftovers": manager.leftovers() + [path for path in (IMAGE_COPY,) if os.path.isdir(path)],
    }


def time_synchronized(module):
    """Return whether the clock is synchronized, None if unknown."""
    if not module.get_bin_path("timedatectl"):
        return None
    code, out, _ = module.run_command(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return out.strip() == "yes" if code == 0 else None


def is_podman(path):
    """Return whether the program `docker` is the script of podman-docker."""
    head = text(path)[:4096] if path and os.path.getsize(path) < 65536 else ""
    return head.startswith("#!") and "podman" in head


def active_firewall(module):
    """Return `firewalld`, `ufw` or an empty string."""
    if has_program("firewall-cmd") and module.run_command(["systemctl", "-q", "is-active", "firewalld"])[0] == 0:
        return "firewalld"
    enabled = re.search(r'^ENABLED="?yes"?\s*$', text(UFW_CONF), re.IGNORECASE | re.MULTILINE)
    return "ufw" if enabled and has_program("ufw") else ""


def hosts_block():
    """Return name -> line in the managed block of /etc/hosts."""
    match = re.search(r"^# BEGIN provision\n(.*?)^# END provision$", text(HOSTS), re.MULTILINE | re.DOTALL)
    lines = [line for line in (match.group(1) if match else "").splitlines() if len(line.split()) > 1]
    return {line.split()[1]: line for line in lines if not line.startswith("#")}


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "data_address": {"type": "str", "default": ""},
            "data_networks": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    node_kind, kernel = kind(module), platform.release()
    nofile_maximum = int(text("/proc/sys/fs/nr_open").strip() or 1048576)
    network_facts = network(module)
    node = {
        "kind": node_kind,
        "kernel": kernel,
        "machine": platform.machine(),
        "hostname": socket.gethostname().split(".")[0],
        "python": platform.python_version(),
        "memlock_limit": limit("RLIMIT_MEMLOCK", resource.RLIM_INFINITY),
        "nofile_limit": limit("RLIMIT_NOFILE", nofile_maximum),
        "sysctl_writable": os.access("/proc/sys/kernel/sysrq", os.W_OK),
        "modules_loadable": node_kind != "container" and os.path.isdir(f"/lib/modules/{kernel}"),
        "gpus": gpu_count(),
        "gpus_present": gpu_count() > 0 or (has_program("nvidia-smi") and not driver_without_device(kernel)),
        "time_synchronized": time_synchronized(module),
        "hosts": hosts_block(),
        "jobs": running_jobs(),
        "recorded_images": recorded_values("images"),
        "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
        "docker_is_snap": os.path.exists(SNAP_DOCKER),
        "docker_is_podman": is_podman(module.get_bin_path("docker")),
        "firewall": active_firewall(module),
    }
    node.update(os_release())
    node.update(packages(module))
    node.update(rdma(kernel))
    node.update(network_facts)
    node.update(data_path(module, network_facts))
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
