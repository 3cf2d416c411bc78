#!/usr/bin/python
"""Ansible module: install a kernel beside the running one, after its modules were built on trial."""

DOCUMENTATION = r"""
module: kernel
short_description: Install a kernel beside the running one, and prepare the boot loader
description:
  - Makes the running kernel the boot loader's default, so that only a confirmed kernel replaces it.
  - Builds the modules of DKMS for the new kernel in a temporary copy of the file system (an overlay in memory), and fails before
    anything is installed if that fails.
  - Installs the kernel, and checks that it can be booted and has the modules.
  - Reboots nothing. Fails with C(reason), a code such as C(kernel.module.not_built), and C(remedy).
options:
  release: {description: 'Release of the kernel, as uname -r prints it.', type: str, required: true}
  packages: {description: Packages of the kernel., type: list, elements: str, required: true}
  headers: {description: 'Packages with which modules are built for it.', type: list, elements: str, default: []}
  rehearse: {description: Build the modules in a temporary copy first., type: bool, default: true}
  lock_timeout: {description: Seconds to wait for another package program., type: int, default: 600}
  cache_valid_time: {description: Age in seconds up to which package lists are not fetched again., type: int, default: 3600}
  http_proxy: {description: 'Proxy for http://.', type: str, default: ""}
  https_proxy: {description: 'Proxy for https://.', type: str, default: ""}
  no_proxy: {description: Hosts that are reached without proxy., type: str, default: ""}
author: [provision]
"""

import ctypes
import glob
import json
import os
import re
import shutil
import sys
import tempfile
import traceback

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kernel_node import (
    PANIC_SECONDS,
    RELEASE,
    UNFINISHED,
    Loader,
    Refused,
    Upgrade,
    last_line,
    run,
)
from ansible.module_utils.kernel_remedies import KERNEL_REMEDIES
from ansible.module_utils.platform_kernel_module_failures import diagnose
from ansible.module_utils.platform_package_base import PackageFailure
from ansible.module_utils.platform_package_manager import package_manager

BUILD_SECONDS = 3600
CLONE_NEWNS = 0x00020000
LAYERED = (
    "/",
    "/boot",
    "/etc",
    "/lib",
    "/lib/modules",
    "/opt",
    "/usr",
    "/usr/lib",
    "/usr/src",
    "/var",
    "/var/cache",
    "/var/lib",
)
"""The mount points that the rehearsal sees; it changes copies of them."""
BUILT = re.compile(r"^([\w.+-]+)(?:/|, )([^,\s]+), ([^,\s]+), [^:]+: installed", re.MULTILINE)
ARGUMENTS = "panic={} rd.shell=0 rd.emergency=reboot".format(PANIC_SECONDS)


def dkms_modules(release):
    """Return the modules that DKMS has installed for a kernel, as NAME/VERSION."""
    if not shutil.which("dkms", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        return set()
    _, text = run(["dkms", "status"])
    return {"{}/{}".format(match[1], match[2]) for match in BUILT.finditer(text) if match[3] == release}


def missing_modules(release, wanted):
    """Build the modules of DKMS for a kernel, and return those that are missing afterwards."""
    missing = sorted(set(wanted) - dkms_modules(release))
    if missing:
        run(["dkms", "autoinstall", "-k", release], BUILD_SECONDS)
        missing = sorted(set(wanted) - dkms_modules(release))
    return missing


def refusal(code, problem):
    """Return a result of the module that says what was refused, and the remedy."""
    return {"reason": code, "msg": problem, "remedy": KERNEL_REMEDIES[code]}


def not_built(release, missing, state):
    """Return the failure of modules that could not be built, with the cause from their logs; `state` is that of the node."""
    log = ""
    for module in missing:
        folder = "/var/lib/dkms/" + module
        for path in glob.glob(folder + "/build/make.log") + glob.glob("{}/{}/*/log/make.log".format(folder, release)):
            with open(path, errors="replace") as stream:
                log += stream.read()[-65536:]
    problem = "{}: cannot be built for the kernel {} ({}) {}".format(
        ", ".join(missing), release, diagnose(make=log).explanation, state
    )
    return dict(refusal("kernel.module.not_built", problem), stdout="\n".join(log.splitlines()[-30:]))


class Rehearsal:
    """A copy of the file system in memory, in which a child process installs headers and builds modules."""

    def __init__(self, manager, headers, release, wanted):
        """Remember what to do."""
        self.manager, self.headers, self.release, self.wanted = manager, headers, release, wanted

    def result(self):
        """Return a failure, or {} if all modules could be built."""
        folder = tempfile.mkdtemp(prefix="provision-kernel-", dir="/run")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reading)
                answer = self._in_child(folder)
                with os.fdopen(writing, "w") as stream:
                    json.dump(answer, stream)
                code = 0
            except BaseException:  # a child must never return into the module
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as stream:
            text = stream.read()
        os.waitpid(child, 0)
        os.rmdir(folder)  # the mounts were in the child's own name space
        try:
            return json.loads(text)
        except ValueError:
            return _impossible("the build ended without a result")

    def _in_child(self, folder):
        problem = self._enter(folder)
        if problem:
            return _impossible(problem)
        try:
            self.manager.install(self.manager.missing(self.headers))
        except PackageFailure as failure:
            if failure.code not in ("packages.scriptlet", "packages.failed"):
                return failure.result()
        missing = missing_modules(self.release, self.wanted)
        return not_built(self.release, missing, "Nothing was installed.") if missing else {}

    def _enter(self, folder):
        """Change into the copy; return why that is impossible."""
        library = ctypes.CDLL(None, use_errno=True)
        if library.unshare(CLONE_NEWNS) != 0:
            return "unshare: {}".format(os.strerror(ctypes.get_errno()))
        root = folder + "/root"
        with open("/proc/self/mounts") as stream:
            mounted = {line.split()[1] for line in stream}
        commands = [["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder]]
        for number, point in enumerate(point for point in LAYERED if point in mounted):
            upper, work = "{}/upper{}".format(folder, number), "{}/work{}".format(folder, number)
            options = "lowerdir={},upperdir={},workdir={}".format(point, upper, work)
            target = root if point == "/" else root + point
            commands += [
                ["mkdir", "-p", upper, work, target],
                ["mount", "-t", "overlay", "-o", options, "overlay", target],
            ]
        for name in ("proc", "sys", "dev"):
            commands += [["mount", "--rbind", "/" + name, "{}/{}".format(root, name)]]
        for name in ("run", "tmp"):
            commands += [["mount", "-t", "tmpfs", "tmpfs", "{}/{}".format(root, name)]]
        for argv in commands:
            code, text = run(argv)
            if code != 0:
                return "{}: {}".format(" ".join(argv), last_line(text))
        resolver = _text("/etc/resolv.conf")
        os.chroot(root)
        os.chdir("/")
        if not os.path.exists("/etc/resolv.conf"):  # a link to a file in /run
            path = os.path.realpath("/etc/resolv.conf")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as stream:
                stream.write(resolver)
        return ""


def _text(path):
    try:
        with open(path, errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _impossible(problem):
    return refusal("kernel.rehearsal.impossible", "the modules cannot be built on trial ({})".format(problem))


def bootable(loader, release):
    """Check that a kernel is installed as a whole, and that the boot loader has an entry for it."""
    images = ["/boot/{}-{}".format(name, release) for name in ("vmlinuz", "vmlinux", "Image")]
    initial = ["/boot/initrd.img-" + release, "/boot/initramfs-{}.img".format(release)]
    dependencies = "/lib/modules/{}/modules.dep".format(release)
    for what, paths in (("image", images), ("initial RAM file system", initial), ("modules.dep", [dependencies])):
        if not any(os.path.isfile(path) and os.path.getsize(path) for path in map(loader.path, paths)):
            raise Refused("kernel.incomplete", "the kernel {} has no {}".format(release, what))
    if not loader.entry(release):
        raise Refused("kernel.loader.no_entry", "GRUB has no entry for the kernel {}".format(release))


def prepare(module):
    """Prepare the node; return what changed, or a failure."""
    parameters = module.params
    release, node = parameters["release"], Upgrade()
    if not RELEASE.match(release):
        raise Refused("kernel.request.invalid", "invalid kernel release: {!r}".format(release))
    loader = Loader()
    if module.check_mode:
        return {"changed": not os.path.isdir("/lib/modules/" + release)}
    changed = []
    loader.check()
    if not loader.is_configured():
        loader.update()
        changed.append("loader")
    if not loader.is_configured():
        raise Refused("kernel.loader.unknown", "grub.cfg does not have the settings of /etc/default/grub.d")
    if node.read().get("phase") not in UNFINISHED and loader.default() != loader.entry(node.release):
        loader.set_default(node.release)
        changed.append("default")
    if release == node.release:
        return {"changed": bool(changed), "changes": changed}
    wanted = dkms_modules(node.release)
    manager = package_manager(
        module,
        lock_seconds=parameters["lock_timeout"],
        valid_seconds=parameters["cache_valid_time"],
        proxies={name: parameters[name] for name in ("http_proxy", "https_proxy", "no_proxy")},
    )
    builds = bool(wanted) or os.path.isdir(loader.path("/lib/modules/{}/build".format(node.release)))
    packages = manager.missing(parameters["packages"])
    headers = manager.missing(parameters["headers"]) if builds else []
    if packages or headers:
        manager.refresh()
        if wanted and parameters["rehearse"]:
            failure = Rehearsal(manager, parameters["headers"], release, wanted).result()
            if failure:
                return {"failed": True, **failure}
        manager.install(headers + packages)
        changed += headers + packages
    missing = missing_modules(release, wanted)
    if missing:
        return {"failed": True, **not_built(release, missing, "The kernel is installed, and is not booted.")}
    if not loader.entry(release):
        loader.update()
    bootable(loader, release)
    loader.add_arguments(release, ARGUMENTS)
    return {"changed": bool(changed), "changes": changed}


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "str", "required": True},
            "packages": {"type": "list", "elements": "str", "required": True},
            "headers": {"type": "list", "elements": "str", "default": []},
            "rehearse": {"type": "bool", "default": True},
            "lock_timeout": {"type": "int", "default": 600},
            "cache_valid_time": {"type": "int", "default": 3600},
            "http_proxy": {"type": "str", "default": "", "no_log": True},
            "https_proxy": {"type": "str", "default": "", "no_log": True},
            "no_proxy": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        result = prepare(module)
    except PackageFailure as failure:
        module.fail_json(**failure.result())
    except Refused as refused:
        module.fail_json(**refusal(refused.code, refused.problem))
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
