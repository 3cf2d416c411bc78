"""What a node does for GPUDirect RDMA: check, load, build, and one status file that says how it went.

Run at boot by provision-peer-memory.service, by the package system when a kernel or its headers are installed, and by
the role. Needs the standard library alone.
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
    from ansible.module_utils.peer_memory_look import SYMBOL, Look
except ImportError:  # on the node, where these files lie beside each other
    import peer_memory_elf as elf
    from peer_memory_look import SYMBOL, Look
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
START_SECONDS = 110  # of the unit's 120: what is left is for the status file
EXIT_READY, EXIT_NOT = 0, 1


class Problem(Exception):
    """Why the node is not ready.

    Args:
        cause: a word that stays the same over versions.
        explanation: what is wrong, one sentence.
        remedy: what to do.
    """

    def __init__(self, cause, explanation, remedy):
        """Keep the three parts."""
        super().__init__(explanation)
        self.cause, self.explanation, self.remedy = cause, explanation, remedy

    def parts(self):
        """Return the parts as the status file has them."""
        return {"cause": self.cause, "explanation": self.explanation, "remedy": self.remedy}


NOTHING_WRONG = {"cause": "", "explanation": "", "remedy": ""}


class Runner:
    """Runs programs, none longer than what is left until a deadline; one that cannot be ended is left behind."""

    def __init__(self, seconds=None):
        """Start the clock; without `seconds` only each program's own limit counts."""
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.current = None

    def run(self, argv, seconds):
        """Return exit code (None when the limit was reached) and output."""
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
                self.end()
            self.current = None
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def end(self):
        """End the program that runs, with all that it started; one in the kernel's hands goes when the kernel lets it."""
        if self.current is None:
            return
        try:
            os.killpg(self.current.pid, signal.SIGKILL)
            self.current.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            pass


class Node:
    """One node and what it should be.

    Args:
        root: prefix of every path; other than "/" in tests.
        runner: runs programs.
        config: what is wanted, in place of the configuration file.
    """

    def __init__(self, root="/", runner=None, config=None):
        """Read the configuration; without one nothing is wanted."""
        self.look = Look(root)
        self.runner = runner or Runner()
        self.config = self._json(CONFIG) if config is None else config
        self.provider = self.config.get("provider", "none")
        self.wanted = MODULES.get(self.provider, "")

    # What is so

    def judge(self, kernel):
        """Check that a kernel would come up with what is wanted. Raises Problem."""
        if self.provider == "dma_buf":
            self._judge_dma_buf(kernel)
        if not self.wanted:
            return
        path = self.look.module_path(kernel, self.wanted)
        module = self.look.module(path) if path else None
        if module is None:
            raise self._absent(kernel, path)
        self.fits(kernel, path, module)
        others = [self.look.module(name) for name in self.look.dependencies(kernel, self.wanted)]
        differing = elf.mismatches(module, [other for other in others if other is not None])
        if differing:
            raise Problem(
                "symbol_mismatch",
                f"{self.wanted} for kernel {kernel} was built against another version of {', '.join(differing)} than "
                "the installed modules have; the RDMA stack or the driver changed after it was built",
                f"Build it anew: {self._by_hand(kernel)}",
            )

    def fits(self, kernel, path, module):
        """Check what a module's file says of itself: kernel, RDMA stack, signature. Raises Problem."""
        release = module.info.get("vermagic", kernel).split(" ")[0]
        if release != kernel:
            raise Problem(
                "other_kernel",
                f"{path} was built for kernel {release}, not for {kernel}",
                f"Build it anew: {self._by_hand(kernel)}",
            )
        if SYMBOL not in module.needs:
            raise Problem(
                "stub",
                f"{self.wanted} for kernel {kernel} was built without the RDMA stack's peer memory interface, "
                "so it refuses to load",
                f"Install the RDMA stack first, then build the driver's modules again: {self._by_hand(kernel)}",
            )
        if self.look.secure_boot() and not module.signed:
            raise self._unsigned(f"{path} is not signed")

    def _judge_dma_buf(self, kernel):
        """Nothing is loaded for DMA-BUF; the driver has to export one, and the RDMA stack to register it."""
        if self.look.gpus_without_modules():
            return
        if not self.look.has_driver(kernel):
            raise self._no_driver(kernel)
        path = self.look.module_path(kernel, "nvidia")
        flavour = self.look.flavour(kernel)
        if not flavour and path:
            raise self._absent(kernel, path)
        if flavour == "proprietary":
            raise Problem(
                "driver_not_open",
                f"the NVIDIA modules for kernel {kernel} are the proprietary ones, which export no DMA-BUF",
                "Install the driver's open kernel modules for this kernel, or set peer_memory_provider to nvidia_peermem "
                "(or auto) and apply again.",
            )
        if kernel == self.look.kernel and self.look.registers_dma_buf() is False:
            raise Problem(
                "no_dma_buf",
                f"the RDMA stack that is loaded on kernel {kernel} cannot register a DMA-BUF: it has no ib_umem_dmabuf_get",
                "Boot kernel 5.12 or newer, or install a current DOCA-OFED; or set peer_memory_provider to nvidia_peermem "
                "(or auto) and apply again.",
            )

    def conflict(self):
        """Check that the other module is not in the way. Raises Problem."""
        other = OTHER.get(self.provider, "")
        if other and self.look.loaded(other):
            raise Problem(
                "both_modules",
                f"{other} is loaded: it and {self.wanted} register under the same name, and only one of them can be",
                f"Stop the jobs, unload it (modprobe -r {other}) and see to it that nothing loads it at boot; "
                f"or set peer_memory_provider: {other}.",
            )

    def kernels(self):
        """Return what is to be said of every installed kernel, the running one first."""
        states = []
        for kernel in self.look.kernels():
            state = {"kernel": kernel, "running": kernel == self.look.kernel, "headers": self.look.has_headers(kernel)}
            try:
                self.judge(kernel)
                states.append({**state, "ok": True, **NOTHING_WRONG})
            except Problem as problem:
                states.append({**state, "ok": False, **problem.parts()})
        return states

    # What is done

    def load(self):
        """Make the running kernel ready: check, load, and build only when that is what is missing. Raises Problem."""
        self.conflict()
        if not self.wanted:
            self.judge(self.look.kernel)
            return
        if self.look.loaded(self.wanted):
            return
        try:
            self.judge(self.look.kernel)
        except Problem as problem:
            if problem.cause not in ("not_built", "symbol_mismatch", "other_kernel", "stub"):
                raise
            self._last_resort(problem)
        before = self._dmesg()
        for name in ("ib_uverbs", self.look.modprobe_name(self.look.kernel, self.wanted)):
            code, output = self.runner.run(["modprobe", name], LOAD_SECONDS)
            if code is None:
                raise Problem(
                    "load_hangs",
                    f"modprobe {name} did not return within its limit",
                    "Look at what the kernel says (dmesg) and at `ps -o stat,wchan:30,cmd -C modprobe`. A modprobe in "
                    "state D goes only with a reboot.",
                )
            if code != 0 and name != "ib_uverbs":
                raise self._diagnose(f"modprobe {name} failed", modprobe=output, dmesg=self._said_since(before))
        if not self.look.loaded(self.wanted):
            raise Problem(
                "not_loaded",
                f"modprobe {self.wanted} says that it went well, and the module is not there",
                f"Look for a line `install {self.wanted}` in /etc/modprobe.d, which puts something else in its place.",
            )

    def _last_resort(self, problem):
        """Build nv_peer_mem, which takes seconds; a driver takes minutes, and cut off half-way it would be worse."""
        kernel = self.look.kernel
        if self.config.get("prebuilt"):
            raise self._not_prebuilt(kernel)
        if self.wanted != DKMS_NAME:
            raise Problem(
                problem.cause,
                f"{problem.explanation}; the driver's modules are not built at boot, because that takes minutes",
                f"{problem.remedy.rstrip('.')}. Then load it: systemctl reload-or-restart {UNIT}. `provision apply --only "
                "peer_memory` does both.",
            )
        if not self.look.module_path(kernel, "nvidia"):
            raise self._no_driver(kernel)
        self.build(kernel)

    def unload(self):
        """Unload what is loaded. Raises Problem when it is in use."""
        if not self.wanted or not self.look.loaded(self.wanted):
            return
        count, holders = self.look.users(self.wanted)
        if count:
            raise Problem(
                "in_use",
                f"{self.wanted} is in use ({count} users{': ' if holders else ''}{', '.join(holders)}): memory of "
                "running jobs is registered through it",
                "Stop the jobs on this node and try again.",
            )
        # A file of another name is not found by modprobe -r; the kernel knows the module by its own.
        plain = self.look.module_path(self.look.kernel, self.wanted).rpartition("/")[2].replace("-", "_")
        argv = ["modprobe", "-r"] if plain.startswith(self.wanted + ".") or not plain else ["rmmod"]
        code, output = self.runner.run([*argv, self.wanted], LOAD_SECONDS)
        if code != 0:
            raise self._diagnose(f"{' '.join(argv)} {self.wanted} failed", modprobe=output)

    def build(self, kernel):
        """Build what is wanted for a kernel. Raises Problem."""
        if not self.wanted:  # nothing that could be built here
            self.judge(kernel)
            return
        if self.config.get("prebuilt"):
            raise self._not_prebuilt(kernel)
        if not self.look.has_headers(kernel):
            raise self._no_headers(kernel)
        if self.look.secure_boot() and not self.config.get("signing"):
            raise self._unsigned(f"a module built here for kernel {kernel} would not be signed")
        if not self.look.module_path(kernel, "nvidia"):
            # The RDMA stack and the driver come first; what DKMS knows of them it builds now. Whether that helped is seen below.
            self.runner.run(["dkms", "autoinstall", "-k", kernel], BUILD_SECONDS)
            self._look_again()
        if self.wanted == "nv_peer_mem":
            self._build_nv_peer_mem(kernel)
        else:
            self._build_driver(kernel)
        self._look_again()
        self.judge(kernel)

    def symvers(self, kernel):
        """Return the driver's functions with their checksums in the form that a kernel's build reads. Raises Problem."""
        path = self.look.module_path(kernel, "nvidia")
        module = self.look.module(path) if path else None
        if module is None:
            raise self._no_driver(kernel)
        older = version_of(kernel) < (5, 4)
        tail = "" if older else "\t"
        return "".join(
            f"0x{checksum:08x}\t{name}\tnvidia\tEXPORT_SYMBOL{tail}\n"
            for name, checksum in sorted(module.gives.items())
            if name.startswith("nvidia_p2p_")
        )

    # The status file

    def write(self, state, problem=None):
        """Write the status file in one step: `state` is loading, ready, failed."""
        status = {
            "format": 1,
            "boot_id": self.look.boot_id,
            "kernel": self.look.kernel,
            "provider": self.provider,
            "module": self.wanted,
            "state": state,
            "ok": state == "ready",
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "simulated": self.look.simulated(),
            **(problem.parts() if problem else NOTHING_WRONG),
            "kernels": [] if state == "loading" else self.kernels(),
        }
        self._write_status(status)

    def status(self):
        """Return the last status, {} when there is none."""
        return self._json(STATUS)

    def note_kernels(self):
        """Renew what the status says of the installed kernels, and nothing else."""
        status = self.status()
        if status and status.get("state") != "loading":
            self._write_status({**status, "kernels": self.kernels()})

    def ended(self, result):
        """Say in the status file that a load was cut off, when it was: for systemd, after the process is gone."""
        status = self.status()
        if status.get("state") != "loading":
            return
        begin = status.get("since", "?")
        cut = Problem(
            "load_hangs",
            f"loading {self.wanted} since {begin}; ended after the limit, before it returned"
            + (f" (systemd: {result})" if result else ""),
            "Look at what the kernel says (dmesg). A modprobe in state D goes only with a reboot.",
        )
        self._write_status({**status, "state": "failed", "ok": False, **cut.parts()})

    # Inside

    def _look_again(self):
        """Forget what was read: something was built."""
        self.look = Look(self.look.root or "/")

    def _build_nv_peer_mem(self, kernel):
        version = self.config.get("version", "")
        if not version or not os.path.isdir(self.look.path(f"/usr/src/{DKMS_NAME}-{version}")):
            raise Problem(
                "no_source",
                "the sources of nv_peer_mem are not on this node",
                "Run `provision apply`; set peer_memory_source_url or peer_memory_source_archive if it asks for it.",
            )
        self.symvers(kernel)
        if not self.look.peer_interface(kernel):
            raise Problem(
                "no_peer_interface",
                f"no RDMA stack with the peer memory interface is installed for kernel {kernel}",
                "Install MLNX_OFED or DOCA-OFED for this kernel (its inbox stack has none), or use dma_buf.",
            )
        self._rebuild(DKMS_NAME, version, kernel)

    def _build_driver(self, kernel):
        """Build the driver's modules again, so that its peermem finds the RDMA stack."""
        tree = self.look.driver_tree(kernel)
        if tree is None:
            version = self.look.driver(kernel)[0] or "of no known version"
            raise Problem(
                "driver_not_dkms",
                f"{self.wanted} belongs to the NVIDIA driver, and DKMS has no sources of the installed one ({version})",
                "Install the driver again, after the RDMA stack.",
            )
        self._rebuild(*tree, kernel)

    def _rebuild(self, name, version, kernel):
        """Build and install by DKMS; what is installed stays until the new one is built."""
        module = ["-m", name, "-v", version, "-k", kernel, "--force"]
        for verb in ("build", "install"):
            code, output = self.runner.run(["dkms", verb, *module], BUILD_SECONDS)
            if code == 0:
                continue
            what = f"building {name} {version} for kernel {kernel} failed"
            if code is None:
                raise Problem(
                    "build_too_long",
                    f"{what}: it took longer than its limit",
                    f"Run it by hand: {self._by_hand(kernel)}",
                )
            log = self.look.text(f"/var/lib/dkms/{name}/{version}/build/make.log")
            # What is built for what goes first, in DKMS's own words: the table of failures tells more by it.
            raise self._diagnose(what, make=f"{name}/{version} for kernel {kernel}\n{output}\n{log}")

    def _dmesg(self):
        code, output = self.runner.run(["dmesg"], 10)
        return output.splitlines() if code == 0 else None

    def _said_since(self, before):
        """Return the kernel's lines that are new, None when they cannot be read."""
        after = self._dmesg()
        if before is None or after is None:
            return None
        return "\n".join(after[after.index(before[-1]) + 1 :] if before and before[-1] in after else after)

    def _diagnose(self, what, *, make="", modprobe="", dmesg=None):
        """Return the Problem that the table of failures knows for what was printed, else one with the last words."""
        if diagnose is not None:
            diagnosis = diagnose(make=make, modprobe=modprobe, dmesg=dmesg)
            shown = f" ({' / '.join(diagnosis.evidence.splitlines())})" if diagnosis.evidence else ""
            return Problem(diagnosis.cause, f"{what}: {diagnosis.explanation.rstrip('.')}{shown}", diagnosis.remedy)
        words = [line.strip() for line in f"{make}\n{dmesg or ''}\n{modprobe}".splitlines() if line.strip()]
        telling = [line for line in words if re.search(r"error:|unknown symbol|disagrees", line, re.IGNORECASE)]
        return Problem(
            "unknown",
            f"{what}: {'; '.join(telling[:2] or words[-2:] or ['it said nothing'])}",
            "Look at dmesg and at /var/lib/dkms/*/*/build/make.log.",
        )

    def _absent(self, kernel, path):
        if path:
            return self.unreadable(kernel, path, self.look.unreadable(path))
        if not self.look.has_headers(kernel) and not self.config.get("prebuilt"):
            return self._no_headers(kernel)
        return Problem(
            "not_built",
            f"there is no {self.wanted} for kernel {kernel}",
            f"Build it: {self._by_hand(kernel)}",
        )

    def unreadable(self, kernel, path, why):
        """Return the Problem of a module's file that says nothing, `why` as peer_memory_elf has it."""
        if elf.NO_ZSTD in why:
            return Problem(
                "zstd_missing",
                f"what {path} holds cannot be looked at: {why}",
                "Install the package zstd on the node, or put the module there as .ko or .ko.xz.",
            )
        return Problem(
            "unreadable",
            f"{path} cannot be read as a kernel module ({why})",
            "Install it anew."
            if self.config.get("prebuilt") or not self.wanted
            else f"Build it anew: {self._by_hand(kernel)}",
        )

    def _no_headers(self, kernel):
        package = self.config.get("headers", "kernel headers of {kernel}").replace("{kernel}", kernel)
        return Problem(
            "headers_missing",
            f"the headers of kernel {kernel} are not installed, so {self.wanted} cannot be built for it",
            f"Run `provision apply`, or install {package} on the node.",
        )

    def _no_driver(self, kernel):
        return Problem(
            "driver_missing",
            f"there is no NVIDIA module for kernel {kernel}, and {self.provider} rests on it",
            "Install the driver for this kernel first.",
        )

    def _not_prebuilt(self, kernel):
        remedy = f"Put {kernel}/{self.wanted}.ko into that folder and apply again."
        if self.wanted != DKMS_NAME:
            remedy = (
                "That folder is read for nv_peer_mem alone. Install driver packages with modules for this kernel that were "
                "built after the RDMA stack, or set peer_memory_prebuilt to nothing, so that the node builds them."
            )
        return Problem(
            "not_prebuilt", f"nothing is built here, and there is no {self.wanted} that fits kernel {kernel}", remedy
        )

    def _unsigned(self, what):
        carried = "carry signed modules to it (peer_memory_prebuilt)"
        if self.wanted != DKMS_NAME:
            carried = "install a driver whose modules are signed"
        return Problem(
            "secure_boot",
            f"Secure Boot is on and {what}: this kernel would refuse it",
            "Set peer_memory_signing_key and peer_memory_signing_certificate to a key that is enrolled on the node "
            f"(mokutil --import), {carried}, use dma_buf, which loads nothing, or switch Secure Boot off.",
        )

    @staticmethod
    def _by_hand(kernel):
        return f"/usr/local/lib/provision/peer-memory build --kernel {kernel}"

    def _json(self, path, default=None):
        try:
            return json.loads(self.look.text(path))
        except ValueError:
            return {} if default is None else default

    def _write_status(self, status):
        path = self.look.path(STATUS)
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".status-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(status, stream, indent=1)
            stream.write("\n")
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        os.rename(temporary, path)


def version_of(kernel):
    """Return the first two numbers of a kernel's release."""
    match = re.match(r"(\d+)\.(\d+)", kernel)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def sentence(status):
    """Return a status in one line for people."""
    mark = "SIMULATED: " if status.get("simulated") else ""
    if not status:
        return "not checked yet"
    if status["ok"]:
        return f"{mark}{status['provider']} is ready on kernel {status['kernel']}"
    return f"{mark}{status['provider']} is not ready ({status['cause'] or status['state']}): {status['explanation']}. {status['remedy']}"


def start(node):
    """Load, with the status written before, so that it is right whatever happens; return the exit code."""

    def cut_off(*_):
        node.runner.end()
        node.ended("terminated")
        os._exit(EXIT_NOT)

    node.write("loading")
    signal.signal(signal.SIGTERM, cut_off)
    try:
        node.load()
        node.write("ready")
    except Problem as problem:
        node.write("failed", problem)
    print(sentence(node.status()))
    return EXIT_READY if node.status()["ok"] else EXIT_NOT


def build(node, kernels, *, hook):
    """Build for each kernel that lacks its module; the package system's hook never fails, because dpkg would."""
    code = EXIT_READY
    for kernel in kernels:
        try:
            try:
                node.judge(kernel)
            except Problem:
                node.build(kernel)
            print(f"peer memory: kernel {kernel} has what {node.provider} needs")
        except Problem as problem:
            code = EXIT_NOT
            print(f"peer memory: {problem.explanation}. {problem.remedy}")
    node.note_kernels()
    return EXIT_READY if hook else code


def main(arguments=None):
    """Run the program."""
    parser = argparse.ArgumentParser(prog="peer-memory", description="GPUDirect RDMA on this node.")
    parser.add_argument("--root", default="/", help=argparse.SUPPRESS)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="say whether every installed kernel has what it needs; change nothing")
    verbs.add_parser("load", help="load for the running kernel, building as a last resort, and write the status file")
    verbs.add_parser("unload", help="unload, unless it is in use")
    building = verbs.add_parser("build", help="build for one kernel, or for all installed ones")
    building.add_argument("--kernel", help="release of the kernel; default: all")
    building.add_argument("--hook", action="store_true", help="never fail: for the package system")
    verbs.add_parser("status", help="say what the status file says").add_argument("--json", action="store_true")
    verbs.add_parser("symvers", help=argparse.SUPPRESS).add_argument("kernel")
    verbs.add_parser("ended", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        return act(Node(options.root, Runner(START_SECONDS if options.verb == "load" else None)), options)
    except Problem as problem:
        print(f"peer memory: {problem.explanation}. {problem.remedy}", file=sys.stderr)
        return EXIT_NOT


def act(node, options):
    """Do what the command line asks; return the exit code."""
    if options.verb == "load":
        return start(node)
    if options.verb == "build":
        return build(node, [options.kernel] if options.kernel else node.look.kernels(), hook=options.hook)
    if options.verb == "check":
        states = node.kernels()
        for kernel in states:
            said = "ready" if kernel["ok"] else "{cause}: {explanation}. {remedy}".format(**kernel)
            print("{}: {}".format(kernel["kernel"], said))
        return EXIT_READY if all(kernel["ok"] for kernel in states) else EXIT_NOT
    if options.verb == "status":
        status = node.status()
        print(json.dumps(status, indent=1) if options.json else sentence(status))
        return EXIT_READY if status.get("ok") else EXIT_NOT
    if options.verb == "symvers":
        print(node.symvers(options.kernel), end="")
    elif options.verb == "unload":
        node.unload()
    else:
        node.ended(os.environ.get("SERVICE_RESULT", ""))
    return EXIT_READY
