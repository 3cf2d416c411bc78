"""What a reset does with the kernel: modules that we loaded or built, and settings."""

import os
import re

from ansible.module_utils.platform_origin import records
from ansible.module_utils.platform_undo_files import Step

KERNEL = re.compile(r"(?:/usr)?/lib/modules/([^/]+)/")


def _is_loaded(name):
    return os.path.isdir("/sys/module/" + name)


def module_steps(module):
    """Return the steps for modules that are loaded and were not, or the other way round."""
    loaded = [doc["name"] for doc in records("modules") if not doc["loaded"] and _is_loaded(doc["name"])]
    gone = [doc["name"] for doc in records("modules") if doc["loaded"] and not _is_loaded(doc["name"])]
    steps = [Step(f"unload {', '.join(sorted(loaded))}", _unload(module, loaded))] if loaded else []
    return steps + [Step(f"load {name}, as before", _run(module, "modprobe", name)) for name in gone]


def _unload(module, names):
    def act():
        if "rdma_rxe" in names and os.path.isdir("/sys/class/infiniband/rxe0"):
            module.run_command(["rdma", "link", "delete", "rxe0"])
        for _ in names:  # one may hold another
            for name in filter(_is_loaded, names):
                module.run_command(["rmmod", name])
        held = sorted(filter(_is_loaded, names))
        return f"leave {', '.join(held)} loaded until the next boot: in use" if held else None

    return act


def _run(module, *words):
    def act():
        code, out, err = module.run_command(list(words))
        return f"`{' '.join(words)}` failed: {(err or out).strip()[-200:]}" if code != 0 else None

    return act


def dkms_steps(module, left):
    """Return the steps for what we gave to DKMS; what stood there before and has to be built anew goes to `left`."""
    steps = []
    for doc in records("dkms"):
        name, version = doc["name"], doc["version"]
        if doc["existed"]:
            left.append(f"{name} {version} was there before: build it anew (dkms install -m {name} -v {version})")
        elif os.path.isdir(f"/var/lib/dkms/{name}/{version}"):
            remove = _run(module, "dkms", "remove", "-m", name, "-v", version, "--all")
            steps.append(Step(f"remove {name} {version} from DKMS", remove))
    return steps


def depmod_steps(module, file_steps):
    """Return the steps for kernels whose modules are restored or removed."""
    kernels = sorted({match.group(1) for match in (KERNEL.match(step.path) for step in file_steps) if match})
    return [Step(f"list the modules of kernel {name} anew", _run(module, "depmod", "-a", name)) for name in kernels]


def sysctl_steps(left):
    """Return the steps for kernel settings that are as we set them; those that others set since go to `left`."""
    steps = []
    for doc in records("sysctls"):
        now = _words(doc["path"])
        if now == doc["before"]:
            continue
        if now in doc["managed"].get("values", []):
            steps.append(Step("set {key} back to {before}".format(**doc), _set(doc)))
        else:
            left.append("leave {key} at {now}: it was changed since; before it was {before}".format(now=now, **doc))
    return steps


def _set(doc):
    def act():
        try:
            with open(doc["path"], "w", encoding="utf-8") as stream:
                stream.write(doc["before"])
        except OSError as error:
            return "{} could not be set back to {}: {}".format(doc["key"], doc["before"], error.strerror)
        return None

    return act


def _words(path):
    """Return the words of a file joined by single spaces, as sysctls are noted."""
    try:
        with open(path, encoding="utf-8") as stream:
            return " ".join(stream.read().split())
    except OSError:
        return ""
