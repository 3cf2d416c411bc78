#!/usr/bin/python
"""Ansible module: build the modules of the NVIDIA driver by DKMS, or take those that another node has built."""

DOCUMENTATION = r"""
module: nvidia_driver_build
short_description: Build the modules of the NVIDIA driver by DKMS, or install those of another node
description:
  - action=record records the kernels that have a folder, for a reset.
  - action=build builds the modules for each kernel that has none, and anew if a vendor's RDMA stack was built after them, because
    nvidia-peermem is built against it. The result has the cause if one cannot be built.
  - action=state lists the sources of the driver in DKMS, and for each kernel the digest of its modules.
  - action=export returns the modules of one build.
  - action=install puts the modules of another node into the folder of DKMS, checks their hashes and the kernel that they are
    for, and installs them by DKMS, as if it had built them.
options:
  action: {description: Action to perform., type: str, choices: [record, build, state, export, install], required: true}
  kernels: {description: Releases of the kernels., type: list, elements: str, default: []}
  name: {description: 'action=export and install: name of the driver in DKMS.', type: str, default: ""}
  version: {description: 'action=export and install: version of the driver.', type: str, default: ""}
  kernel: {description: 'action=export and install: release of the kernel.', type: str, default: ""}
  certificate: {description: Certificate of the key with which DKMS signs modules., type: str, default: ""}
  digest: {description: 'action=install: SHA-256 of the certificate of the other node.', type: str, default: ""}
  files:
    description: 'action=install: names, hashes and contents of the modules.'
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Name of the file., type: str, required: true}
      sha256: {description: SHA-256 of the file., type: str, required: true}
      content: {description: 'The file, compressed by zlib, in base64.', type: str, required: true}
author: [provision]
"""

import base64
import glob
import hashlib
import os
import re
import shutil
import zlib

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.nvidia_driver_files import module_file
from ansible.module_utils.platform_dkms import autoinstall, data, kernel_folders, requires_signature, result
from ansible.module_utils.platform_origin import record

DKMS = "/var/lib/dkms"
FOLDERS = "/lib/modules"
NAME = re.compile(r"nvidia[a-z0-9-]{0,60}\Z")
VERSION = re.compile(r"[0-9][0-9.]{0,30}\Z")
KERNEL = re.compile(r"[0-9][A-Za-z0-9.+~_-]{0,63}\Z")
FILE = re.compile(r"nvidia[a-z0-9-]{0,60}\.ko(\.(xz|zst|gz))?\Z")
MAX_BYTES = 512 * 2**20
BUILD_SECONDS = "3600"
STACK = "/usr/src/ofa_kernel"  # where a vendor's RDMA stack puts what other modules are built against


def trees():
    """Return name and version of the sources of the driver in DKMS."""
    names = []
    for source in sorted(glob.glob(DKMS + "/nvidia*/[0-9]*/source")):
        name, version = source.split("/")[-3:-1]
        if NAME.match(name) and VERSION.match(version):
            names.append((name, version))
    return names


def folder(name, version, kernel):
    """Return the folder of a build."""
    return os.path.join(DKMS, name, version, kernel, os.uname().machine)


def installed_trees(kernel):
    """Return name and version of the sources whose build DKMS has installed for a kernel: it links to that build."""
    link = f"kernel-{kernel}-{os.uname().machine}"
    return [
        (name, version)
        for name, version in trees()
        if os.path.realpath(os.path.join(DKMS, name, link)) == os.path.realpath(folder(name, version, kernel))
    ]


def hashes(name, version, kernel):
    """Return the SHA-256 of each module of a build by its name; empty if there is no build."""
    path = os.path.join(folder(name, version, kernel), "module")
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return {one: hashlib.sha256(data(os.path.join(path, one))).hexdigest() for one in names if FILE.match(one)}


def digest(files):
    """Return the SHA-256 of a list of files; empty without files."""
    lines = "".join(f"{files[name]} {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest() if files else ""


def state(kernels):
    """Return each source of the driver with the digest of its installed build, for each kernel.

    A build without modules in the kernel's folder is that of an interrupted installation; one that is older than a
    vendor's RDMA stack has to be replaced. Both have no digest.
    """
    machine = os.uname().machine
    return [
        {
            "name": name,
            "version": version,
            "kernel": kernel,
            "machine": machine,
            "digest": digest(hashes(name, version, kernel))
            if module_file(kernel) and not is_older_than_stack(kernel)
            else "",
        }
        for kernel in kernels
        for name, version in trees()
    ]


def build(module, kernel):
    """Build the modules for a kernel; return the outcome."""
    return autoinstall(module, kernel, "the driver", DKMS + "/nvidia*/*", lambda: bool(module_file(kernel)))


def is_older_than_stack(kernel):
    """Return whether a vendor's RDMA stack was built for a kernel after the modules of the driver."""
    folders = [os.path.join(STACK, os.uname().machine, kernel), os.path.join(STACK, kernel)]
    times = [os.path.getmtime(one) for one in (folder + "/Module.symvers" for folder in folders) if os.path.exists(one)]
    path = module_file(kernel)
    return bool(times and installed_trees(kernel) and os.path.exists(path)) and os.path.getmtime(path) < max(times)


def rebuild(module, kernel):
    """Build the modules of a kernel anew, because the RDMA stack has changed; return the outcome."""
    for name, version in installed_trees(kernel):
        source = ["-m", name, "-v", version, "-k", kernel]
        for verb in ("build", "install"):
            code, out, err = module.run_command(["timeout", BUILD_SECONDS, "dkms", verb, "--force", *source])
            if code != 0:
                log = os.path.join(DKMS, name, version, "build/make.log")
                return result(
                    "rdma_stack",
                    f"DKMS cannot {verb} {name} {version} anew for kernel {kernel} after a change of the RDMA stack",
                    f"Read {log} on the node, then apply again.",
                    err or out,
                )
    return result(ok=True)


def build_all(module, kernels):
    """Build what is missing or older than the RDMA stack; return whether there was any, and the outcome."""
    missing = [kernel for kernel in kernels if not module_file(kernel)]
    stale = [kernel for kernel in kernels if kernel not in missing and is_older_than_stack(kernel)]
    outcome = result(ok=True)
    for kernel in [] if module.check_mode else missing + stale:
        outcome = build(module, kernel) if kernel in missing else rebuild(module, kernel)
        if not outcome["ok"]:
            break
    return bool(missing or stale), outcome


def export(module):
    """Return the modules of a build."""
    name, version, kernel = (module.params[key] for key in ("name", "version", "kernel"))
    path = os.path.join(folder(name, version, kernel), "module")
    files = []
    for one, checksum in sorted(hashes(name, version, kernel).items()):
        content = base64.b64encode(zlib.compress(data(os.path.join(path, one)))).decode()
        files.append({"name": one, "sha256": checksum, "content": content})
    certificate = data(module.params["certificate"])
    return {"files": files, "certificate": hashlib.sha256(certificate).hexdigest() if certificate else ""}


def unpacked(module, files):
    """Return name and content of the files; fail if one is not what its hash says."""
    left = MAX_BYTES
    contents = []
    for one in files:
        stream = zlib.decompressobj()
        content = stream.decompress(base64.b64decode(one["content"]), left)
        left -= len(content)
        if not FILE.match(one["name"]) or left <= 0 or hashlib.sha256(content).hexdigest() != one["sha256"]:
            module.fail_json(msg="{}: not the file that was built (wrong name, size or SHA-256)".format(one["name"]))
        contents.append((one["name"], content))
    return contents


def install(module):
    """Install the modules of another node by DKMS."""
    parameters = module.params
    name, version, kernel = (parameters[key] for key in ("name", "version", "kernel"))
    if (name, version) not in trees() or not KERNEL.match(kernel):
        module.fail_json(msg=f"{name} {version}: not a driver of this node")
    if not os.path.isdir("/lib/modules/" + kernel):
        module.fail_json(msg=f"kernel {kernel} is not installed. Install it, or remove it from nvidia_driver_kernels.")
    certificate = data(parameters["certificate"])
    if requires_signature() and hashlib.sha256(certificate).hexdigest() != parameters["digest"]:
        module.fail_json(
            msg="the modules are not signed with the key of {}, and the kernel would refuse them (Secure Boot is enabled). "
            "Copy the certificate of the build node to this file, enrol it (mokutil --import), and apply again.".format(
                parameters["certificate"]
            )
        )
    contents = unpacked(module, parameters["files"])
    target = folder(name, version, kernel)
    temporary, built = os.path.join(target, ".provision"), os.path.join(target, "module")
    for path in (temporary, built):  # of an interrupted installation
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(temporary, 0o755)
    module.add_cleanup_file(temporary)
    for one, content in contents:
        path = os.path.join(temporary, one)
        with open(path, "wb") as stream:
            stream.write(content)
        magic = module.run_command(["modinfo", "-F", "vermagic", path])[1].split()
        if magic[:1] != [kernel]:
            module.fail_json(msg=f"{one}: built for kernel {magic[0] if magic else 'unknown'}, not for {kernel}")
    os.rename(temporary, built)
    code, out, err = module.run_command(
        ["dkms", "install", "--force", "-m", name, "-v", version, "-k", kernel, "-a", os.uname().machine]
    )
    if code != 0 or not module_file(kernel):
        shutil.rmtree(built, ignore_errors=True)
        module.fail_json(msg=f"DKMS cannot install {name} {version} for kernel {kernel}: {(err or out).strip()[-400:]}")


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["record", "build", "state", "export", "install"], "required": True},
            "kernels": {"type": "list", "elements": "str", "default": []},
            "name": {"type": "str", "default": ""},
            "version": {"type": "str", "default": ""},
            "kernel": {"type": "str", "default": ""},
            "certificate": {"type": "str", "default": ""},
            "digest": {"type": "str", "default": ""},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "sha256": {"type": "str", "required": True},
                    "content": {"type": "str", "required": True},
                },
            },
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    action, kernels = module.params["action"], module.params["kernels"]
    if action == "record":
        if not module.check_mode:
            record("kernel_folders", "all", {"existing": kernel_folders(FOLDERS)})
        module.exit_json(changed=False)
    if action == "state":
        module.exit_json(changed=False, builds=state(kernels))
    if action == "export":
        module.exit_json(changed=False, **export(module))
    if action == "install":
        if not module.check_mode:
            install(module)
        module.exit_json(changed=True)
    changed, outcome = build_all(module, kernels)
    module.exit_json(changed=changed, outcome=outcome)


if __name__ == "__main__":
    main()
