"""Check, load and build the modules of a node for GPUDirect RDMA, and write the result to a status file.

Run at boot by provision-peer-memory.service, by the package system when a kernel or its headers are installed, and by
the role. Requires only the standard library.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

try:
    from ansible.module_utils import peer_memory_elf as elf
    from ansible.module_utils.peer_memory_look import SYMBOL, NodeFiles
except ImportError:  # on the node, where these files are in the same folder
    import peer_memory_elf as elf
    from peer_memory_look import SYMBOL, NodeFiles
try:
    from ansible.module_utils.platform_kernel_module_failures import diagnose
except ImportError:
    try:
        from platform_kernel_module_failures import diagnose
    except ImportError:
        diagnose = None

CONFIG = "/etc/provision/peer_memory.json"
STATUS = "/var/lib/provision/peer_memory/status.json"
SOURCE_MARK = ".provision.json"
UNIT = "provision-peer-memory.service"
DKMS_NAME = "nv_peer_mem"
MODULES = {"nvidia_peermem": "nvidia_peermem", "nv_peer_mem": "nv_peer_mem", "dma_buf": "", "none": ""}
OTHER = {"nvidia_peermem": "nv_peer_mem", "nv_peer_mem": "nvidia_peermem"}
BUILD_SECONDS = 1500
LOAD_SECONDS = 60
START_SECONDS = 110  # of the 120 seconds of the unit; the rest is for the status file
EXIT_READY, EXIT_NOT_READY = 0, 1


class Problem(Exception):
    """Why the node is not ready.

    Args:
        cause: a stable code.
        explanation: the problem, in one sentence.
        remedy: the remedy, in the imperative.
    """

    def __init__(self, cause, explanation, remedy):
        """Set the parts."""
        super().__init__(explanation)
        self.cause, self.explanation, self.remedy = cause, explanation, remedy

    def parts(self):
        """Return the parts in the form of the status file."""
        return {"cause": self.cause, "explanation": self.explanation, "remedy": self.remedy}


NO_PROBLEM = {"cause": "", "explanation": "", "remedy": ""}


class Runner:
    """Runs programs until a common deadline. A program that cannot be killed is abandoned."""

    def __init__(self, seconds=None):
        """Set the deadline. Without `seconds`, only the limit of each program applies."""
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.current = None

    def run(self, argv, seconds):
        """Return the exit code (None after a timeout) and the output."""
        if self.deadline is not None:
            seconds = max(1, min(seconds, self.deadline - time.monotonic()))
        with tempfile.TemporaryFile() as output:
            try:
                self.current = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, "LC_ALL": "C"},
                )
            except OSError as error:
                return 127, f"{argv[0]}: {error.strerror}"
            try:
                code = self.current.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
                self.kill()
            self.current = None
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def kill(self):
        """Kill the running program and its children. One that waits in the kernel ends when the kernel returns."""
        if self.current is None:
            return
        try:
            os.killpg(self.current.pid, signal.SIGKILL)
            self.current.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            pass


class Node:
    """One node and its desired state.

    Args:
        root: prefix of every path; other than "/" in tests.
        runner: runs programs.
        config: settings that replace the configuration file.
    """

    def __init__(self, root="/", runner=None, config=None):
        """Read the configuration. Without one, the node needs no module."""
        self.files = NodeFiles(root)
        self.runner = runner or Runner()
        self.config = self._json(CONFIG) if config is None else config
        self.provider = self.config.get("provider", "none")
        self.module_name = MODULES.get(self.provider, "")

    # Checks

    def check_kernel(self, kernel):
        """Check that a kernel has the required module. Raise Problem if it does not."""
        if self.provider == "dma_buf":
            self._check_dma_buf(kernel)
        if not self.module_name:
            return
        path = self.files.module_path(kernel, self.module_name)
        module = self.files.module(path) if path else None
        if module is None:
            raise self._missing_module(kernel, path)
        self.check_module(kernel, path, module)
        others = [self.files.module(name) for name in self.files.dependencies(kernel, self.module_name)]
        differing = elf.mismatches(module, [other for other in others if other is not None])
        if differing:
            raise Problem(
                "symbol_mismatch",
                f"{self.module_name} for kernel {kernel} was built with another version of {', '.join(differing)} than "
                "the installed modules have, because the RDMA stack or the driver changed after the build",
                f"Build it again: {self._build_command(kernel)}",
            )

    def check_module(self, kernel, path, module):
        """Check the file of a module: kernel, RDMA stack, signature. Raise Problem if it is unusable."""
        release = module.info.get("vermagic", kernel).split(" ")[0]
        if release != kernel:
            raise Problem(
                "other_kernel",
                f"{path} was built for kernel {release}, not for {kernel}",
                f"Build it again: {self._build_command(kernel)}",
            )
        if SYMBOL not in module.needs:
            raise Problem(
                "stub",
                f"{self.module_name} for kernel {kernel} was built without the RDMA stack's peer memory interface, "
                "so it refuses to load",
                f"Install the RDMA stack first, then build the driver's modules again: {self._build_command(kernel)}",
            )
        if self.files.secure_boot() and not module.is_signed:
            raise self._unsigned(f"{path} is not signed")

    def _check_dma_buf(self, kernel):
        """Check that the driver can export a DMA-BUF and that the RDMA stack can register it. DMA-BUF requires no module."""
        if self.files.gpus_without_modules():
            return
        if not self.files.has_driver(kernel):
            raise self._no_driver(kernel)
        path = self.files.module_path(kernel, "nvidia")
        flavour = self.files.flavour(kernel)
        if not flavour and path:
            raise self._missing_module(kernel, path)
        if flavour == "proprietary":
            raise Problem(
                "driver_not_open",
                f"the NVIDIA modules for kernel {kernel} are proprietary and cannot export a DMA-BUF",
                "Install the driver's open kernel modules for this kernel, or set peer_memory_provider to nvidia_peermem "
                "(or auto) and apply again.",
            )
        if kernel == self.files.kernel and self.files.registers_dma_buf() is False:
            raise Problem(
                "no_dma_buf",
                f"the loaded RDMA stack of kernel {kernel} cannot register a DMA-BUF: it has no ib_umem_dmabuf_get",
                "Boot kernel 5.12 or newer, or install a current DOCA-OFED; or set peer_memory_provider to nvidia_peermem "
                "(or auto) and apply again.",
            )

    def check_conflict(self):
        """Check that the other module is not loaded. Raise Problem if it is."""
        other = OTHER.get(self.provider, "")
        if other and self.files.is_loaded(other):
            raise Problem(
                "both_modules",
                f"{other} is loaded, and it registers under the same name as {self.module_name}",
                f"Stop the jobs, unload it (modprobe -r {other}) and make sure that nothing loads it at boot; "
                f"or set peer_memory_provider: {other}.",
            )

    def kernels(self):
        """Return the state of every installed kernel, the running one first."""
        states = []
        for kernel in self.files.kernels():
            state = {
                "kernel": kernel,
                "running": kernel == self.files.kernel,
                "headers": self.files.has_headers(kernel),
            }
            try:
                self.check_kernel(kernel)
                states.append({**state, "ok": True, **NO_PROBLEM})
            except Problem as problem:
                states.append({**state, "ok": False, **problem.parts()})
        return states

    # Actions

    def load(self):
        """Check and load the module of the running kernel, and build it if it is missing. Raise Problem on failure."""
        self.check_conflict()
        if not self.module_name:
            self.check_kernel(self.files.kernel)
            return
        if self.files.is_loaded(self.module_name):
            return
        try:
            self.check_kernel(self.files.kernel)
        except Problem as problem:
            if problem.cause not in ("not_built", "symbol_mismatch", "other_kernel", "stub"):
                raise
            self._last_resort(problem)
        before = self._dmesg()
        for name in ("ib_uverbs", self.files.modprobe_name(self.files.kernel, self.module_name)):
            code, output = self.runner.run(["modprobe", name], LOAD_SECONDS)
            if code is None:
                raise Problem(
                    "load_hangs",
                    f"modprobe {name} did not return within its limit",
                    "Read dmesg and `ps -o stat,wchan:30,cmd -C modprobe`. A modprobe in state D ends only with a "
                    "reboot.",
                )
            if code != 0 and name != "ib_uverbs":
                raise self._diagnose(f"modprobe {name} failed", modprobe=output, dmesg=self._dmesg_since(before))
        if not self.files.is_loaded(self.module_name):
            raise Problem(
                "not_loaded",
                f"modprobe {self.module_name} succeeded, but the module is not loaded",
                f"Find a line `install {self.module_name}` in /etc/modprobe.d, which replaces the module, and remove it.",
            )

    def _last_resort(self, problem):
        """Build nv_peer_mem, which takes seconds. The build of a driver takes minutes and must not be interrupted."""
        kernel = self.files.kernel
        if self.config.get("prebuilt"):
            raise self._not_prebuilt(kernel)
        if self.module_name != DKMS_NAME:
            raise Problem(
                problem.cause,
                f"{problem.explanation}; the modules of the driver are not built at boot, because that takes minutes",
                f"{problem.remedy.rstrip('.')}. Then load it: systemctl reload-or-restart {UNIT}. `provision apply --only "
                "peer_memory` does both.",
            )
        if not self.files.module_path(kernel, "nvidia"):
            raise self._no_driver(kernel)
        self.build(kernel)

    def unload(self):
        """Unload the module. Raise Problem if it is in use."""
        if not self.module_name or not self.files.is_loaded(self.module_name):
            return
        count, holders = self.files.users(self.module_name)
        if count:
            raise Problem(
                "in_use",
                f"{self.module_name} is in use ({count} users{': ' if holders else ''}{', '.join(holders)}): running jobs have "
                "registered memory with it",
                "Stop the jobs on this node and try again.",
            )
        # modprobe -r does not find a module whose file has another name; rmmod uses the name of the module.
        file_name = self.files.module_path(self.files.kernel, self.module_name).rpartition("/")[2].replace("-", "_")
        argv = ["modprobe", "-r"] if file_name.startswith(self.module_name + ".") or not file_name else ["rmmod"]
        code, output = self.runner.run([*argv, self.module_name], LOAD_SECONDS)
        if code != 0:
            raise self._diagnose(f"{' '.join(argv)} {self.module_name} failed", modprobe=output)

    def build(self, kernel):
        """Build the module for a kernel. Raise Problem on failure."""
        if not self.module_name:  # the provider requires no build
            self.check_kernel(kernel)
            return
        if self.config.get("prebuilt"):
            raise self._not_prebuilt(kernel)
        if not self.files.has_headers(kernel):
            raise self._no_headers(kernel)
        if self.files.secure_boot() and not self.config.get("signing"):
            raise self._unsigned(f"a module built here for kernel {kernel} would not be signed")
        if not self.files.module_path(kernel, "nvidia"):
            # DKMS builds the RDMA stack and the driver first. The checks below show whether that was sufficient.
            self.runner.run(["dkms", "autoinstall", "-k", kernel], BUILD_SECONDS)
            self._clear_cache()
        if self.module_name == "nv_peer_mem":
            self._build_nv_peer_mem(kernel)
        else:
            self._build_driver(kernel)
        self._clear_cache()
        self.check_kernel(kernel)

    def symvers(self, kernel):
        """Return the functions of the driver and their checksums in the form of Module.symvers. Raise Problem without a driver."""
        path = self.files.module_path(kernel, "nvidia")
        module = self.files.module(path) if path else None
        if module is None:
            raise self._no_driver(kernel)
        has_no_namespace = version_of(kernel) < (5, 4)
        tail = "" if has_no_namespace else "\t"
        return "".join(
            f"0x{checksum:08x}\t{name}\tnvidia\tEXPORT_SYMBOL{tail}\n"
            for name, checksum in sorted(module.exports.items())
            if name.startswith("nvidia_p2p_")
        )

    # The status file

    def write(self, state, problem=None):
        """Write the status file atomically. `state` is loading, ready or failed."""
        status = {
            "format": 1,
            "boot_id": self.files.boot_id,
            "kernel": self.files.kernel,
            "provider": self.provider,
            "module": self.module_name,
            "state": state,
            "ok": state == "ready",
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "simulated": self.files.simulated(),
            **(problem.parts() if problem else NO_PROBLEM),
            "kernels": [] if state == "loading" else self.kernels(),
        }
        self._write_status(status)

    def status(self):
        """Return the last status, {} if there is none."""
        return self._json(STATUS)

    def update_kernels(self):
        """Update the states of the installed kernels in the status file."""
        status = self.status()
        if status and status.get("state") != "loading":
            self._write_status({**status, "kernels": self.kernels()})

    def record_interruption(self, result):
        """Record an interrupted load in the status file. systemd calls this after the process has ended."""
        status = self.status()
        if status.get("state") != "loading":
            return
        begin = status.get("since", "?")
        problem = Problem(
            "load_hangs",
            f"loading {self.module_name} since {begin} was interrupted by the time limit"
            + (f" (systemd: {result})" if result else ""),
            "Read dmesg. A modprobe in state D ends only with a reboot.",
        )
        self._write_status({**status, "state": "failed", "ok": False, **problem.parts()})

    # Internal

    def _clear_cache(self):
        """Clear the cached facts after a build."""
        self.files = NodeFiles(self.files.root or "/")

    def _build_nv_peer_mem(self, kernel):
        version = self.config.get("version", "")
        if not version or not os.path.isdir(self.files.path(f"/usr/src/{DKMS_NAME}-{version}")):
            raise Problem(
                "no_source",
                "the sources of nv_peer_mem are not on this node",
                "Run `provision apply`. If it fails, set peer_memory_source_url or peer_memory_source_archive.",
            )
        self.symvers(kernel)
        if not self.files.peer_interface(kernel):
            raise Problem(
                "no_peer_interface",
                f"no RDMA stack with the peer memory interface is installed for kernel {kernel}",
                "Install MLNX_OFED or DOCA-OFED for this kernel (the inbox stack has no such interface), or use dma_buf.",
            )
        self._rebuild(DKMS_NAME, version, kernel)

    def _build_driver(self, kernel):
        """Build the modules of the driver again, so that nvidia_peermem uses the RDMA stack."""
        tree = self.files.driver_tree(kernel)
        if tree is None:
            version = self.files.driver(kernel)[0] or "unknown version"
            raise Problem(
                "driver_not_dkms",
                f"{self.module_name} is part of the NVIDIA driver, and DKMS has no sources of the installed driver ({version})",
                "Install the driver again, after the RDMA stack.",
            )
        self._rebuild(*tree, kernel)

    def _rebuild(self, name, version, kernel):
        """Build and install a module with DKMS. The installed module stays until the new one is built."""
        module = ["-m", name, "-v", version, "-k", kernel, "--force"]
        for verb in ("build", "install"):
            code, output = self.runner.run(["dkms", verb, *module], BUILD_SECONDS)
            if code == 0:
                continue
            failure = f"building {name} {version} for kernel {kernel} failed"
            if code is None:
                raise Problem(
                    "build_too_long",
                    f"{failure}: it took longer than its limit",
                    f"Run it manually: {self._build_command(kernel)}",
                )
            log = self.files.text(f"/var/lib/dkms/{name}/{version}/build/make.log")
            # The first line has the form of DKMS, from which the table of failures determines module and kernel.
            raise self._diagnose(failure, make=f"{name}/{version} for kernel {kernel}\n{output}\n{log}")

    def _dmesg(self):
        code, output = self.runner.run(["dmesg"], 10)
        return output.splitlines() if code == 0 else None

    def _dmesg_since(self, before):
        """Return the new lines of dmesg, None if it cannot be read."""
        after = self._dmesg()
        if before is None or after is None:
            return None
        return "\n".join(after[after.index(before[-1]) + 1 :] if before and before[-1] in after else after)

    def _diagnose(self, failure, *, make="", modprobe="", dmesg=None):
        """Return the Problem from the table of failures that matches the output, else one with the last lines."""
        if diagnose is not None:
            diagnosis = diagnose(make=make, modprobe=modprobe, dmesg=dmesg)
            evidence = f" ({' / '.join(diagnosis.evidence.splitlines())})" if diagnosis.evidence else ""
            return Problem(
                diagnosis.cause, f"{failure}: {diagnosis.explanation.rstrip('.')}{evidence}", diagnosis.remedy
            )
        lines = [line.strip() for line in f"{make}\n{dmesg or ''}\n{modprobe}".splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"error:|unknown symbol|disagrees", line, re.IGNORECASE)]
        return Problem(
            "unknown",
            f"{failure}: {'; '.join(errors[:2] or lines[-2:] or ['no output'])}",
            "Read dmesg and /var/lib/dkms/*/*/build/make.log.",
        )

    def _missing_module(self, kernel, path):
        if path:
            return self.read_problem(kernel, path, self.files.read_error(path))
        if not self.files.has_headers(kernel) and not self.config.get("prebuilt"):
            return self._no_headers(kernel)
        return Problem(
            "not_built",
            f"{self.module_name} for kernel {kernel} is not built",
            f"Build it: {self._build_command(kernel)}",
        )

    def read_problem(self, kernel, path, cause):
        """Return the Problem of a module file that cannot be read, with the cause from peer_memory_elf."""
        if elf.NO_ZSTD in cause:
            return Problem(
                "zstd_missing",
                f"cannot read {path}: {cause}",
                "Install the package zstd on the node, or provide the module as .ko or .ko.xz.",
            )
        return Problem(
            "unreadable",
            f"{path} cannot be read as a kernel module ({cause})",
            "Install it again."
            if self.config.get("prebuilt") or not self.module_name
            else f"Build it again: {self._build_command(kernel)}",
        )

    def _no_headers(self, kernel):
        package = self.config.get("headers", "kernel headers of {kernel}").replace("{kernel}", kernel)
        return Problem(
            "headers_missing",
            f"the headers of kernel {kernel} are not installed, so {self.module_name} cannot be built for it",
            f"Run `provision apply`, or install {package} on the node.",
        )

    def _no_driver(self, kernel):
        return Problem(
            "driver_missing",
            f"there is no NVIDIA module for kernel {kernel}, which {self.provider} requires",
            "Install the driver for this kernel first.",
        )

    def _not_prebuilt(self, kernel):
        remedy = f"Add {kernel}/{self.module_name}.ko to the folder peer_memory_prebuilt and apply again."
        if self.module_name != DKMS_NAME:
            remedy = (
                "peer_memory_prebuilt supports only nv_peer_mem. Install driver packages with modules for this kernel that "
                "were built after the RDMA stack, or unset peer_memory_prebuilt, so that the node builds them."
            )
        return Problem("not_prebuilt", f"there is no prebuilt {self.module_name} for kernel {kernel}", remedy)

    def _unsigned(self, reason):
        alternative = "provide signed modules (peer_memory_prebuilt)"
        if self.module_name != DKMS_NAME:
            alternative = "install a driver whose modules are signed"
        return Problem(
            "secure_boot",
            f"the kernel would refuse the module: Secure Boot is enabled and {reason}",
            "Set peer_memory_signing_key and peer_memory_signing_certificate to a key that is enrolled on the node "
            f"(mokutil --import), {alternative}, use dma_buf, which loads no module, or disable Secure Boot.",
        )

    @staticmethod
    def _build_command(kernel):
        return f"/usr/local/lib/provision/peer-memory build --kernel {kernel}"

    def _json(self, path, default=None):
        try:
            return json.loads(self.files.text(path))
        except ValueError:
            return {} if default is None else default

    def _write_status(self, status):
        path = self.files.path(STATUS)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".status-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(status, stream, indent=1)
            stream.write("\n")
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        os.rename(temporary, path)


def version_of(kernel):
    """Return the first two numbers of a kernel release."""
    match = re.match(r"(\d+)\.(\d+)", kernel)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def sentence(status):
    """Return a status as one line of text."""
    prefix = "SIMULATED: " if status.get("simulated") else ""
    if not status:
        return "not checked yet"
    if status["ok"]:
        return f"{prefix}{status['provider']} is ready on kernel {status['kernel']}"
    return f"{prefix}{status['provider']} is not ready ({status['cause'] or status['state']}): {status['explanation']}. {status['remedy']}"


def start(node):
    """Write the status, load the module and write the result; return the exit code."""

    def interrupt(*_):
        node.runner.kill()
        node.record_interruption("terminated")
        os._exit(EXIT_NOT_READY)

    node.write("loading")
    signal.signal(signal.SIGTERM, interrupt)
    try:
        node.load()
        node.write("ready")
    except Problem as problem:
        node.write("failed", problem)
    print(sentence(node.status()))
    return EXIT_READY if node.status()["ok"] else EXIT_NOT_READY


def build(node, kernels, *, hook):
    """Build for each kernel that lacks its module. The hook of the package system never fails, because dpkg would fail as well."""
    code = EXIT_READY
    for kernel in kernels:
        try:
            try:
                node.check_kernel(kernel)
            except Problem:
                node.build(kernel)
            print(f"peer memory: kernel {kernel} is ready for {node.provider}")
        except Problem as problem:
            code = EXIT_NOT_READY
            print(f"peer memory: {problem.explanation}. {problem.remedy}")
    node.update_kernels()
    return EXIT_READY if hook else code


def main(arguments=None):
    """Run the program."""
    parser = argparse.ArgumentParser(prog="peer-memory", description="GPUDirect RDMA on this node.")
    parser.add_argument("--root", default="/", help=argparse.SUPPRESS)
    verbs = parser.add_subparsers(dest="verb")
    verbs.required = True  # a parameter in Python 3.7
    verbs.add_parser("check", help="check every installed kernel without a change")
    verbs.add_parser(
        "load", help="load the module of the running kernel (build it if it is missing) and write the status file"
    )
    verbs.add_parser("unload", help="unload the module unless it is in use")
    building = verbs.add_parser("build", help="build the module for one kernel or for all installed ones")
    building.add_argument("--kernel", help="kernel release; default: all")
    building.add_argument("--hook", action="store_true", help="never fail, for the package system")
    verbs.add_parser("status", help="print the status file").add_argument("--json", action="store_true")
    verbs.add_parser("symvers", help=argparse.SUPPRESS).add_argument("kernel")
    verbs.add_parser("ended", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        return act(Node(options.root, Runner(START_SECONDS if options.verb == "load" else None)), options)
    except Problem as problem:
        print(f"peer memory: {problem.explanation}. {problem.remedy}", file=sys.stderr)
        return EXIT_NOT_READY


def act(node, options):
    """Perform the action of the command line; return the exit code."""
    if options.verb == "load":
        return start(node)
    if options.verb == "build":
        return build(node, [options.kernel] if options.kernel else node.files.kernels(), hook=options.hook)
    if options.verb == "check":
        states = node.kernels()
        for kernel in states:
            text = "ready" if kernel["ok"] else "{cause}: {explanation}. {remedy}".format(**kernel)
            print("{}: {}".format(kernel["kernel"], text))
        return EXIT_READY if all(kernel["ok"] for kernel in states) else EXIT_NOT_READY
    if options.verb == "status":
        status = node.status()
        print(json.dumps(status, indent=1) if options.json else sentence(status))
        return EXIT_READY if status.get("ok") else EXIT_NOT_READY
    if options.verb == "symvers":
        print(node.symvers(options.kernel), end="")
    elif options.verb == "unload":
        node.unload()
    else:
        node.record_interruption(os.environ.get("SERVICE_RESULT", ""))
    return EXIT_READY
