#!/usr/bin/python
"""Ansible module: what GPUDirect RDMA needs on a node, seen and made."""

DOCUMENTATION = r"""
module: peer_memory
short_description: Look at, or bring a node's kernels to, what GPUDirect RDMA needs
description:
  - action=look reads files, asks systemd for the unit, and runs the controller's probe when one is given; it changes nothing.
  - action=build puts the sources in place and builds for each kernel, or installs prebuilt modules.
  - A kernel that cannot be served is told with cause and remedy; only the running one makes the task fail.
options:
  action: {description: What to do., type: str, choices: [look, build], required: true}
  probe: {description: 'action=look: shell script of the controller, whose output is returned.', type: str, default: ""}
  certificate: {description: 'action=look: file whose enrolment for Secure Boot is looked up.', type: str, default: ""}
  config: {description: 'action=build: what is wanted, as in /etc/provision/peer_memory.json.', type: dict, default: {}}
  kernels: {description: 'action=build: releases of the kernels.', type: list, elements: str, default: []}
  source:
    description: 'action=build: sources of nv_peer_mem: version, mark (what they are) and archive (base64 of a tar file).'
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
from ansible.module_utils.peer_memory_look import Look
from ansible.module_utils.peer_memory_node import (
    CONFIG,
    DKMS_NAME,
    MODULES,
    NOTHING_WRONG,
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
# Managed by provision (role peer_memory): reads checksums that this tree's own script cannot (compressed modules, newer kernels).
exec /usr/local/lib/provision/peer-memory symvers "$1" >nv.symvers
"""
DKMS_CONF = """\
# Managed by provision (role peer_memory). Built by provision's own hook, after those that DKMS builds by itself.
PACKAGE_NAME="{name}"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nv_peer_mem"
DEST_MODULE_LOCATION[0]="/updates"
MAKE[0]="'make' KVER=$kernelver"
CLEAN="true"
"""


def look(root="/", certificate=""):
    """Return what is there, and for each provider what every kernel would lack."""
    seen = Look(root)
    judged = {}
    for provider in MODULES:
        node = Node(root, config={"provider": provider})
        node.look = seen  # a driver's module is large, and read once
        judged[provider] = node.kernels()
    return {
        **seen.facts(),
        "enrolled": seen.enrolled(certificate) if certificate else None,
        "judged": judged,
        "digests": {kernel: digest(seen, seen.module_path(kernel, DKMS_NAME)) for kernel in seen.kernels()},
        "status": loads(seen.text(STATUS)),
        "config": loads(seen.text(CONFIG)),
        "source": [loads(seen.text(path)) for path in seen.paths(f"/usr/src/{DKMS_NAME}-*/{SOURCE_MARK}")],
        "unit": os.path.exists(seen.path(UNIT)),
        "enabled": os.path.lexists(seen.path(WANTED_BY)),
    }


def loads(text):
    """Return what a JSON text says, {} when it says nothing."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def digest(seen, path):
    """Return the SHA-256 of a file, empty without one."""
    try:
        with open(seen.path(path), "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest() if path else ""
    except OSError:
        return ""


def put_source(source, root="/"):
    """Put the sources where DKMS looks for them, in one step, and take other versions away."""
    folder = f"{root.rstrip('/')}/usr/src"
    target = f"{folder}/{DKMS_NAME}-{source['version']}"
    os.makedirs(folder, exist_ok=True)
    made = tempfile.mkdtemp(dir=folder, prefix=".provision-")
    try:
        unpack(base64.b64decode(source["archive"]), made)
        write(f"{made}/dkms.conf", DKMS_CONF.format(name=DKMS_NAME, version=source["version"]), 0o644)
        if os.path.exists(f"{made}/{SYMVERS}"):
            write(f"{made}/{SYMVERS}", SYMVERS_SCRIPT, 0o755)
        write(f"{made}/{SOURCE_MARK}", json.dumps(source["mark"], indent=1, sort_keys=True) + "\n", 0o644)
        os.chmod(made, 0o755)  # nosec B103 # public source code, as packages install it
        keep_source(target, source["version"])
        shutil.rmtree(target, ignore_errors=True)
        os.rename(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return [name for name in os.listdir(folder) if name.startswith(DKMS_NAME + "-") and f"{folder}/{name}" != target]


def keep_source(target, version):
    """Note a source tree, and that DKMS will know of it, before it is replaced."""
    known = os.path.isdir(f"/var/lib/dkms/{DKMS_NAME}/{version}")
    record("dkms", version, {"name": DKMS_NAME, "version": version, "existed": known})
    record_file(target)


def unpack(data, folder):
    """Unpack a tar file of sources; a single folder at its top is left out. Raises Problem."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            files = [entry for entry in archive.getmembers() if entry.isfile()]
            tops = {plain(entry.name).partition("/")[0] for entry in files}
            deep = all("/" in plain(entry.name) for entry in files)
            for entry in files:
                name = plain(entry.name)
                name = name.partition("/")[2] if len(tops) == 1 and deep else name
                if not name or name.startswith("/") or ".." in name.split("/"):
                    raise Problem("bad_source", f"the archive holds a file called {entry.name}", "Make it anew.")
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
                with open(path, "wb") as stream:
                    shutil.copyfileobj(archive.extractfile(entry), stream)
                os.chmod(path, 0o755 if entry.mode & 0o100 else 0o644)
    except tarfile.TarError as error:
        raise Problem("bad_source", f"the archive of nv_peer_mem cannot be read: {error}", "Make it anew.") from None
    if not os.path.exists(os.path.join(folder, "Makefile")):
        raise Problem(
            "bad_source",
            "the sources of nv_peer_mem have no Makefile at their top",
            "Correct peer_memory_source_url, peer_memory_source_ref or peer_memory_source_archive.",
        )


def plain(name):
    """Return a name inside a tar file without the ./ before it."""
    return re.sub(r"^(\./+)+", "", name)


def write(path, text, mode):
    """Write a file of root's."""
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(path, mode)


def put_prebuilt(node, kernel, built):
    """Install a module that was built elsewhere in place of all others of its name, when it fits. Raises Problem."""
    folder = f"/lib/modules/{kernel}/updates"
    new = f"{folder}/.provision-new-{built['name']}"
    os.makedirs(node.look.path(folder), mode=0o755, exist_ok=True)
    try:
        with open(node.look.path(new), "wb") as stream:
            stream.write(base64.b64decode(built["content"]))
            os.fchmod(stream.fileno(), 0o644)
        module_file = node.look.module(new)
        if module_file is None:
            raise node.unreadable(
                kernel, f"{kernel}/{built['name']} of peer_memory_prebuilt", node.look.unreadable(new)
            )
        node.fits(kernel, f"{kernel}/{built['name']} of peer_memory_prebuilt", module_file)
        take_away(node, kernel)
        record_file(node.look.path(f"{folder}/{built['name']}"), base64.b64decode(built["content"]))
        os.rename(node.look.path(new), node.look.path(f"{folder}/{built['name']}"))
    finally:
        if os.path.exists(node.look.path(new)):
            os.unlink(node.look.path(new))
    code, output = node.runner.run(["depmod", "-a", kernel], 300)
    if code != 0:
        raise Problem(
            "depmod_failed", f"depmod for kernel {kernel} failed: {output.strip()[-200:]}", "Look at the disk."
        )
    node.look = Look(node.look.root or "/")
    node.judge(kernel)


def take_away(node, kernel):
    """Take away what modprobe could take in place of a prebuilt module: DKMS's own, another compression, a vendor's."""
    if node.look.files_of(kernel, DKMS_NAME):
        for name, version, _ in node.look.dkms_trees(DKMS_NAME):
            node.runner.run(["dkms", "uninstall", "-m", name, "-v", version, "-k", kernel], 300)
    for path in node.look.files_of(kernel, DKMS_NAME):
        record_file(node.look.path(path), "")
        os.unlink(node.look.path(path))


def serve(module, node, kernel):
    """Bring one kernel to what is wanted; return what is to be said of it."""
    result = {"kernel": kernel, "running": kernel == node.look.kernel}
    try:
        if module.params["prebuilt"].get(kernel):
            put_prebuilt(node, kernel, module.params["prebuilt"][kernel])
        else:
            node.build(kernel)
    except Problem as problem:
        return {**result, "ok": False, **problem.parts()}
    return {**result, "ok": True, **NOTHING_WRONG}


def build(module):
    """Build, or install what was built elsewhere; return the results."""
    node = Node(config=module.params["config"], runner=Runner())
    if module.params["source"].get("archive"):
        for name in put_source(module.params["source"]):
            keep_source("/usr/src/" + name, name[len(DKMS_NAME) + 1 :])
            node.runner.run(["dkms", "remove", "-m", DKMS_NAME, "-v", name[len(DKMS_NAME) + 1 :], "--all"], 300)
            shutil.rmtree("/usr/src/" + name, ignore_errors=True)
    results = [serve(module, node, kernel) for kernel in module.params["kernels"]]
    node.note_kernels()
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
        printed = (
            module.run_command(["/bin/sh", "-s"], data=module.params["probe"])[1] if module.params["probe"] else ""
        )
        active = os.path.exists(UNIT) and module.run_command(["systemctl", "is-active", "--quiet", UNIT_NAME])[0] == 0
        facts = {**look(certificate=module.params["certificate"]), "probe": printed, "active": active}
        module.exit_json(changed=False, look=facts)
    if module.check_mode:
        able = [kernel for kernel in module.params["kernels"] if Look().has_headers(kernel)]
        changed = bool(module.params["source"] or module.params["prebuilt"] or able)
        module.exit_json(changed=changed, results=[])
    try:
        results = build(module)
    except Problem as problem:
        module.fail_json(msg=f"{problem.explanation}. {problem.remedy}", **problem.parts())
    failed = [result for result in results if result["running"] and not result["ok"]]
    if failed:
        module.fail_json(msg="{explanation}. {remedy}".format(**failed[0]), cause=failed[0]["cause"], results=results)
    # A kernel that cannot be served is no change: it would be one at every apply.
    changed = bool(module.params["source"]) or any(result["ok"] for result in results)
    module.exit_json(changed=changed, results=results)


if __name__ == "__main__":
    main()
