"""Reset the kernel: modules that roles loaded or built, settings of kernel and interfaces, and rules of the firewall."""

import os
import re
import shutil

from ansible.module_utils import platform_boot as boot
from ansible.module_utils import platform_irq as irq
from ansible.module_utils import platform_links as links
from ansible.module_utils import platform_pci as pci
from ansible.module_utils import platform_qos as qos
from ansible.module_utils import platform_roce as roce
from ansible.module_utils.platform_firewall import FirewallError, remove_rules, saved_sources
from ansible.module_utils.platform_origin import load_json, records
from ansible.module_utils.platform_undo_files import Step

GRUB_SETTINGS = "/etc/default/grub.d/"
KERNEL_UPGRADE = "/var/lib/provision/kernel/upgrade.json"
KERNEL = re.compile(r"(?:/usr)?/lib/modules/([^/]+)/")
KERNELS = "/lib/modules"


def _is_loaded(name):
    return os.path.isdir("/sys/module/" + name)


def module_steps(module):
    """Return the steps for modules that were not loaded before, and for unloaded ones that were."""
    loaded = [doc["name"] for doc in records("modules") if not doc["loaded"] and _is_loaded(doc["name"])]
    missing = [doc["name"] for doc in records("modules") if doc["loaded"] and not _is_loaded(doc["name"])]
    steps = [Step(f"unload {', '.join(sorted(loaded))}", _unload(module, loaded))] if loaded else []
    return steps + [Step(f"load {name}, as before", _run(module, "modprobe", name)) for name in missing]


def _unload(module, names):
    def act():
        if "rdma_rxe" in names and os.path.isdir("/sys/class/infiniband/rxe0"):
            module.run_command(["rdma", "link", "delete", "rxe0"])
        for _ in names:  # a module may use another one
            for name in filter(_is_loaded, names):
                module.run_command(["rmmod", name])
        in_use = sorted(filter(_is_loaded, names))
        return f"leave {', '.join(in_use)} loaded until the next boot: in use" if in_use else None

    return act


def _run(module, *words):
    def act():
        code, out, err = module.run_command(list(words))
        return f"`{' '.join(words)}` failed: {(err or out).strip()[-200:]}" if code != 0 else None

    return act


def dkms_steps(module, left):
    """Return the steps for modules that roles added to DKMS. Modules to rebuild manually are added to `left`."""
    steps = []
    for doc in records("dkms"):
        name, version = doc["name"], doc["version"]
        if doc["existed"]:
            left.append(f"rebuild {name} {version}, which existed before: dkms install -m {name} -v {version}")
        elif os.path.isdir(f"/var/lib/dkms/{name}/{version}"):
            remove = _run(module, "dkms", "remove", "-m", name, "-v", version, "--all")
            steps.append(Step(f"remove {name} {version} from DKMS", remove))
    return steps


def depmod_steps(module, file_steps):
    """Return the steps for kernels whose modules are restored or removed."""
    kernels = sorted({match.group(1) for match in (KERNEL.match(step.path) for step in file_steps) if match})
    return [Step(f"update the module list of kernel {name}", _run(module, "depmod", "-a", name)) for name in kernels]


def loader_steps(module, file_steps):
    """Return the steps after settings of GRUB are restored or removed."""
    if not any(step.path.startswith(GRUB_SETTINGS) for step in file_steps):
        return []
    names = [name for name in ("grub", "grub2") if os.path.isfile(f"/boot/{name}/grub.cfg")]
    commands = [(f"{name}-mkconfig", "-o", f"/boot/{name}/grub.cfg") for name in names]
    return [Step("write the menu of GRUB anew", _run(module, *words)) for words in commands]


def argument_steps(module, left):
    """Return the step for arguments of the kernel that a role added by grubby. Those of the running kernel are added to `left`."""
    docs = records("kernel_arguments")
    running = (links.words("/proc/cmdline") or "").split()
    active = [doc["argument"] for doc in docs if doc["argument"] in running]
    if active:
        left.append(f"the running kernel has {' '.join(active)} until the next boot")
    docs = [doc for doc in docs if doc["tool"] == "grubby"]
    names, replaced = [doc["argument"] for doc in docs], sorted({word for doc in docs for word in doc["replaced"]})
    entries = boot.entries(module, "grubby") if docs else []
    if not any(name in words for name in names for words in entries):
        return []

    def act():
        return boot.edit_entries(module, replaced, names) or None

    return [Step(f"remove {' '.join(names)} from the boot menu", act)]


def kernels_on_trial():
    """Return why a node is not reset while it boots a new kernel on trial."""
    upgrade = load_json(KERNEL_UPGRADE)
    if not isinstance(upgrade, dict) or upgrade.get("phase") not in ("rebooting", "trial"):
        return []
    return [f"the upgrade to the kernel {upgrade.get('to')} has not ended: complete it by an apply"]


def kernel_folder_steps():
    """Return the steps for the folders of kernels that are not installed: headers created them, and depmod filled them."""
    names = os.listdir(KERNELS) if os.path.isdir(KERNELS) else []
    paths = [
        os.path.join(KERNELS, name)
        for doc in records("kernel_folders")
        for name in sorted(names)
        if name not in doc["existing"] and not os.path.isdir(os.path.join(KERNELS, name, "kernel"))
    ]
    return [Step(f"remove {path}, unless a kernel is in it", _remove_lists(path)) for path in paths]


def _remove_lists(path):
    def act():
        names = [name for _, _, files in os.walk(path) for name in files]
        if os.path.isdir(path) and all(name.startswith("modules.") for name in names):  # headers may have removed it
            shutil.rmtree(path)

    return act


def initramfs_steps(module):
    """Return the step that rebuilds the initramfs without the files of the roles, by the command that a role recorded."""
    return [
        Step("rebuild the initramfs of every kernel", _run(module, *doc["argv"]))
        for doc in records("initramfs")
        if doc.get("argv") and module.get_bin_path(doc["argv"][0])
    ]


def sysctl_steps(left):
    """Return the steps for kernel settings with the role's values. Settings that were changed since are added to `left`."""
    steps = []
    for doc in records("sysctls"):
        now = _words(doc["path"])
        if now == doc["before"]:
            continue
        if now in doc["managed"].get("values", []):
            steps.append(Step("set {key} back to {before}".format(**doc), _set(doc)))
        else:
            left.append("leave {key} at {now}, which was changed since (originally {before})".format(now=now, **doc))
    return steps


def _set(doc):
    def act():
        try:
            with open(doc["path"], "w", encoding="utf-8") as stream:
                stream.write(doc["before"])
        except OSError as error:
            return "{}: cannot restore the value {} ({})".format(doc["key"], doc["before"], error.strerror)
        return None

    return act


def link_steps(module, left):
    """Return the steps for MTUs that a role has set. Those that were changed since are added to `left`."""
    steps = []
    for doc in records("mtus"):
        name, now = doc["interface"], links.mtu(doc["interface"])
        if now is None or now == doc["before"]:
            continue
        if links.is_own(doc, now):
            command = links.mtu_command(name, doc["before"])
            steps.append(Step("set the MTU of {interface} back to {before}".format(**doc), _run(module, *command)))
        else:
            left.append(f"leave the MTU of {name} at {now}, which was changed since (originally {doc['before']})")
    return steps


def names_until_boot():
    """Return a sentence for each interface with a name that a role has given it by a file of systemd."""
    names = sorted(doc["name"] for doc in records("link_names"))
    return [f"{name} has this name until the next boot" for name in names if links.mtu(name) is not None]


def governor_steps():
    """Return the step for CPUs with the governor that a role has set."""
    steps = []
    for doc in records("governors"):
        now = links.governors()
        own = {
            path: old
            for path, old in doc["values"].items()
            if old != now.get(path) and links.is_own(doc, now.get(path))
        }
        if own:
            steps.append(Step(f"set the CPU governor back to {', '.join(sorted(set(own.values())))}", _write_all(own)))
    return steps


def pci_steps(module, left):
    """Return the steps for PCI registers that a role has set. Those that were changed since are added to `left`."""
    steps, docs = [], records("pci")
    if docs and not module.get_bin_path("setpci"):
        left.append("leave PCIe settings until the next boot: setpci is missing")
        return []
    for doc in docs:
        address, register, mask = doc["address"], doc["register"], doc["mask"]
        value = pci.read(module, address, register) if pci.identity(address) == doc["identity"] else None
        if value is None or value & mask == doc["before"]:
            continue
        if links.is_own(doc, value & mask):
            steps.append(Step(f"set {register} of {address} back to {doc['before']:04x}", _set_register(module, doc)))
        else:
            left.append(
                f"leave {register} of {address} at {value & mask:04x}, which was changed since (originally {doc['before']:04x})"
            )
    return steps


def _set_register(module, doc):
    def act():
        return pci.write(module, doc["address"], doc["register"], doc["before"], doc["mask"]) or None

    return act


def roce_steps(left):
    """Return the steps for defaults of RoCE ports that a role has set. Those that were changed since are added to `left`."""
    steps = []
    for doc in records("roce"):
        try:
            with roce.Defaults(doc["device"]) as defaults:
                now = defaults.read(doc["port"], doc["file"])
        except OSError:  # neither device nor connection manager
            continue
        label = "{file} of {device} port {port}".format(**doc)
        if links.is_own(doc, now) and now != doc["before"]:
            steps.append(Step(f"set {label} back to {doc['before']}", _set_default(doc)))
        elif now != doc["before"]:
            left.append(f"leave {label} at {now}, which was changed since (originally {doc['before']})")
    return steps


def _set_default(doc):
    def act():
        try:
            with roce.Defaults(doc["device"]) as defaults:
                defaults.write(doc["port"], doc["file"], doc["before"])
        except OSError as error:
            return f"{doc['device']}: cannot restore {doc['file']} ({error.strerror})"
        return None

    return act


def irq_steps(left):
    """Return the steps for interrupts whose CPUs a role has set in this boot. Those of an earlier boot are added to `left`."""
    steps = []
    for doc in records("irqs"):
        if doc["boot"] != irq.boot_id():
            left.append("interrupts of {address} have their CPUs until the next boot".format(**doc))
            continue
        now = irq.interrupts(doc["address"])
        own = {irq.path(number): old for number, old in doc["before"].items() if links.is_own(doc, now.get(number))}
        own = {path: old for path, old in own.items() if links.words(path) != old}
        if own:
            steps.append(Step("set the CPUs of interrupts of {address} back".format(**doc), _write_all(own)))
    return steps


def qos_steps(module, left):
    """Return the steps for trust, PFC and ECN of cards. Those that were changed since are added to `left`."""
    steps = []
    for doc in records("qos"):
        now = qos.read(module, doc["interface"], doc["setting"])
        label = "{setting} of {interface}".format(**doc)
        if now in (None, doc["before"]):
            continue
        if links.is_own(doc, now):
            steps.append(Step(f"set {label} back to {doc['before']}", _set_qos(module, doc)))
        else:
            left.append(f"leave {label} at {now}, which was changed since (originally {doc['before']})")
    return steps


def _set_qos(module, doc):
    def act():
        return qos.write(module, doc["interface"], doc["setting"], doc["before"]) or None

    return act


def _write_all(values):
    def act():
        for path, value in sorted(values.items()):
            try:
                links.write(path, value)
            except OSError as error:
                return f"{path}: cannot restore the value {value} ({error.strerror})"
        return None

    return act


def unit_steps(module, names):
    """Return the steps for these units of other software that a role has started or stopped."""
    steps = []
    for doc in records("units"):
        if doc["name"] not in names or doc["LoadState"] != "loaded":
            continue
        now = links.unit_state(module, doc["name"])
        was = {"is_active": doc["ActiveState"] == "active", "is_enabled": doc["UnitFileState"] == "enabled"}
        for command in links.unit_commands(now, **was):
            steps.append(Step(f"{command[-1]} {doc['name']}, as before", _run(module, *command, doc["name"])))
    return steps


def _words(path):
    """Return the words of a file joined by single spaces, as sysctls are recorded."""
    try:
        with open(path, encoding="utf-8") as stream:
            return " ".join(stream.read().split())
    except OSError:
        return ""


def firewall_steps(module):
    """Return the steps for rules of the firewall that roles added and that still exist."""
    rules = [(doc["program"], doc["source"]) for doc in records("firewall")]
    return [
        Step(f"remove the rule of {program} that admits {source}", _remove_rule(module, program, source))
        for program, source in rules
        if module.get_bin_path("firewall-cmd" if program == "firewalld" else program)
        and saved_sources(module, program, [source])
    ]


def _remove_rule(module, program, source):
    def act():
        try:
            remove_rules(module, program, [source])
        except FirewallError as error:
            return f"remove the rule of {program} manually that admits {error}"
        return None

    return act
