#!/usr/bin/python
"""Ansible module: probe a node for GPUDirect RDMA, and build its modules."""

DOCUMENTATION = r"""
module: peer_memory
short_description: Probe a node for GPUDirect RDMA, or build modules for its kernels
description:
  - action=look reads files and the state of the unit, and runs the probe of the controller if one is set. It changes nothing.
  - action=build installs the sources and builds modules for each kernel, or installs prebuilt modules.
  - Returns cause and remedy for each kernel that lacks a module. The task fails only for the running kernel.
options:
  action: {description: Action to perform., type: str, choices: [look, build], required: true}
  probe: {description: 'action=look: shell script of the probe, whose output is returned.', type: str, default: ""}
  certificate: {description: 'action=look: certificate whose enrolment for Secure Boot is checked.', type: str, default: ""}
  config: {description: 'action=build: settings, as in /etc/provision/peer_memory.json.', type: dict, default: {}}
  kernels: {description: 'action=build: releases of the kernels.', type: list, elements: str, default: []}
  source:
    description: 'action=build: sources of nv_peer_mem: version, mark (their origin) and archive (base64 of a tar file).'
    type: dict
    default: {}
  prebuilt:
    description: 'action=build: kernel -> name and content (base64) of a built module.'
    type: dict
    default: {}
author: [provision]
"""

import base64
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.peer_memory_look import NodeFiles
from ansible.module_utils.peer_memory_node import (
    CONFIG,
    DKMS_NAME,
    MODULES,
    NO_PROBLEM,
    SOURCE_MARK,
    STATUS,
    Node,
    Problem,
    Runner,
)
from ansible.module_utils.platform_origin import record, record_file

UNIT_NAME = "provision-peer-memory.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"
WANTED_BY = f"/etc/systemd/system/multi-user.target.wants/{UNIT_NAME}"
SYMVERS = "create_nv.symvers.sh"
SYMVERS_SCRIPT = """\
#!/bin/sh
# Managed by provision (role peer_memory): reads checksums that the script of this tree cannot read (compressed modules, newer kernels).
exec /usr/local/lib/provision/peer-memory symvers "$1" >nv.symvers
"""
DKMS_CONF = """\
# Managed by provision (role peer_memory). Built by the hook of provision, after the automatic builds of DKMS.
PACKAGE_NAME="{name}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nv_peer_mem"
DEST_MODULE_LOCATION[0]="/updates"
MAKE[0]="'make' KVER=$kernelver"
CLEAN="true"
"""


def collect_facts(root="/", certificate=""):
    """Return the facts of the node, and the state of every kernel for each provider."""
    files = NodeFiles(root)
    states = {}
    for provider in MODULES:
        node = Node(root, config={"provider": provider})
        node.files = files  # so that the large module of the driver is read only once
        states[provider] = node.kernels()
    return {
        **files.facts(),
        "enrolled": files.is_enrolled(certificate) if certificate else None,
        "states": states,
        "digests": {kernel: digest(files, files.module_path(kernel, DKMS_NAME)) for kernel in files.kernels()},
        "status": loads(files.text(STATUS)),
        "config": loads(files.text(CONFIG)),
        "source": [loads(files.text(path)) for path in files.paths(f"/usr/src/{DKMS_NAME}-*/{SOURCE_MARK}")],
        "unit": os.path.exists(files.path(UNIT)),
        "enabled": os.path.lexists(files.path(WANTED_BY)),
    }


def loads(text):
    """Return the content of a JSON text, {} if it is invalid."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def digest(files, path):
    """Return the SHA-256 of a file, empty if it cannot be read."""
    try:
        with open(files.path(path), "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest() if path else ""
    except OSError:
        return ""


def install_source(source, root="/"):
    """Install the sources for DKMS atomically; return the names of other versions."""
    folder = f"{root.rstrip('/')}/usr/src"
    target = f"{folder}/{DKMS_NAME}-{source['version']}"
    os.makedirs(folder, exist_ok=True)
    temporary = tempfile.mkdtemp(dir=folder, prefix=".provision-")
    try:
        unpack(base64.b64decode(source["archive"]), temporary)
        write(f"{temporary}/dkms.conf", DKMS_CONF.format(name=DKMS_NAME, version=source["version"]), 0o644)
        if os.path.exists(f"{temporary}/{SYMVERS}"):
            write(f"{temporary}/{SYMVERS}", SYMVERS_SCRIPT, 0o755)
        write(f"{temporary}/{SOURCE_MARK}", json.dumps(source["mark"], indent=1, sort_keys=True) + "\n", 0o644)
        os.chmod(temporary, 0o755)  # nosec B103 # public source code, as packages install it
        record_source(target, source["version"])
        shutil.rmtree(target, ignore_errors=True)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [name for name in os.listdir(folder) if name.startswith(DKMS_NAME + "-") and f"{folder}/{name}" != target]


def record_source(target, version):
    """Record a source tree, and whether DKMS has it, before it is replaced."""
    existed = os.path.isdir(f"/var/lib/dkms/{DKMS_NAME}/{version}")
    record("dkms", version, {"name": DKMS_NAME, "version": version, "existed": existed})
    record_file(target)


def unpack(data, folder):
    """Unpack a tar file of sources without its single top folder. Raise Problem if it is invalid."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            files = [entry for entry in archive.getmembers() if entry.isfile()]
            tops = {plain_name(entry.name).partition("/")[0] for entry in files}
            has_top_folder = all("/" in plain_name(entry.name) for entry in files)
            for entry in files:
                name = plain_name(entry.name)
                name = name.partition("/")[2] if len(tops) == 1 and has_top_folder else name
                if not name or name.startswith("/") or ".." in name.split("/"):
                    raise Problem(
                        "bad_source",
                        f"the archive contains the invalid file name {entry.name}",
                        "Create the archive again.",
                    )
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
                with open(path, "wb") as stream:
                    shutil.copyfileobj(archive.extractfile(entry), stream)
                os.chmod(path, 0o755 if entry.mode & 0o100 else 0o644)
    except tarfile.TarError as error:
        raise Problem("bad_source", f"cannot read the archive of nv_peer_mem: {error}", "Create it again.") from None
    if not os.path.exists(os.path.join(folder, "Makefile")):
        raise Problem(
            "bad_source",
            "the sources of nv_peer_mem have no Makefile in their top folder",
            "Correct peer_memory_source_url, peer_memory_source_ref or peer_memory_source_archive.",
        )


def plain_name(name):
    """Return a name in a tar file without leading ./ parts."""
    return re.sub(r"^(\./+)+", "", name)


def write(path, text, mode):
    """Write a text file with a mode."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(path, mode)


def install_prebuilt(node, kernel, built):
    """Replace all modules of this name by a prebuilt one. Raise Problem if it does not match the kernel."""
    folder = f"/lib/modules/{kernel}/updates"
    new = f"{folder}/.provision-new-{built['name']}"
    os.makedirs(node.files.path(folder), mode=0o755, exist_ok=True)
    try:
        with open(node.files.path(new), "wb") as stream:
            stream.write(base64.b64decode(built["content"]))
            os.fchmod(stream.fileno(), 0o644)
        module_file = node.files.module(new)
        if module_file is None:
            raise node.read_problem(
                kernel, f"{kernel}/{built['name']} of peer_memory_prebuilt", node.files.read_error(new)
            )
        node.check_module(kernel, f"{kernel}/{built['name']} of peer_memory_prebuilt", module_file)
        remove_other_modules(node, kernel)
        record_file(node.files.path(f"{folder}/{built['name']}"), base64.b64decode(built["content"]))
        os.rename(node.files.path(new), node.files.path(f"{folder}/{built['name']}"))
    finally:
        if os.path.exists(node.files.path(new)):
            os.unlink(node.files.path(new))
    code, output = node.runner.run(["depmod", "-a", kernel], 300)
    if code != 0:
        raise Problem(
            "depmod_failed",
            f"depmod for kernel {kernel} failed: {output.strip()[-200:]}",
            "Check the disk of the node.",
        )
    node.files = NodeFiles(node.files.root or "/")
    node.check_kernel(kernel)


def remove_other_modules(node, kernel):
    """Remove files that modprobe could use instead of a prebuilt module: of DKMS, of a vendor, or with another compression."""
    if node.files.files_of(kernel, DKMS_NAME):
        for name, version, _ in node.files.dkms_trees(DKMS_NAME):
            node.runner.run(["dkms", "uninstall", "-m", name, "-v", version, "-k", kernel], 300)
    for path in node.files.files_of(kernel, DKMS_NAME):
        record_file(node.files.path(path), "")
        os.unlink(node.files.path(path))


def build_for_kernel(module, node, kernel):
    """Build or install the module for one kernel; return the result."""
    result = {"kernel": kernel, "running": kernel == node.files.kernel}
    try:
        if module.params["prebuilt"].get(kernel):
            install_prebuilt(node, kernel, module.params["prebuilt"][kernel])
        else:
            node.build(kernel)
    except Problem as problem:
        return {**result, "ok": False, **problem.parts()}
    return {**result, "ok": True, **NO_PROBLEM}


def build(module):
    """Build or install the modules for all kernels; return the results."""
    node = Node(config=module.params["config"], runner=Runner())
    if module.params["source"].get("archive"):
        for name in install_source(module.params["source"]):
            record_source("/usr/src/" + name, name[len(DKMS_NAME) + 1 :])
            node.runner.run(["dkms", "remove", "-m", DKMS_NAME, "-v", name[len(DKMS_NAME) + 1 :], "--all"], 300)
            shutil.rmtree("/usr/src/" + name, ignore_errors=True)
    results = [build_for_kernel(module, node, kernel) for kernel in module.params["kernels"]]
    node.update_kernels()
    return results


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["look", "build"], "required": True},
            "probe": {"type": "str", "default": ""},
            "certificate": {"type": "str", "default": ""},
            "config": {"type": "dict", "default": {}},
            "kernels": {"type": "list", "elements": "str", "default": []},
            "source": {"type": "dict", "default": {}},
            "prebuilt": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    if module.params["action"] == "look":
        output = module.run_command(["/bin/sh", "-s"], data=module.params["probe"])[1] if module.params["probe"] else ""
        active = os.path.exists(UNIT) and module.run_command(["systemctl", "is-active", "--quiet", UNIT_NAME])[0] == 0
        facts = {**collect_facts(certificate=module.params["certificate"]), "probe": output, "active": active}
        module.exit_json(changed=False, facts=facts)
    if module.check_mode:
        buildable = [kernel for kernel in module.params["kernels"] if NodeFiles().has_headers(kernel)]
        changed = bool(module.params["source"] or module.params["prebuilt"] or buildable)
        module.exit_json(changed=changed, results=[])
    try:
        results = build(module)
    except Problem as problem:
        module.fail_json(msg=f"{problem.explanation}. {problem.remedy}", **problem.parts())
    failed = [result for result in results if result["running"] and not result["ok"]]
    if failed:
        module.fail_json(msg="{explanation}. {remedy}".format(**failed[0]), cause=failed[0]["cause"], results=results)
    # A failed kernel does not count as a change, because it would be one at every apply.
    changed = bool(module.params["source"]) or any(result["ok"] for result in results)
    module.exit_json(changed=changed, results=results)


if __name__ == "__main__":
    main()
