"""What a node has for GPUDirect RDMA, per kernel: read from files, so that nothing here can hang or load a module."""

import binascii
import glob
import os
import re

try:
    from ansible.module_utils import peer_memory_elf as elf
except ImportError:  # on the node, where these files lie beside each other
    import peer_memory_elf as elf

SYMBOL = "ib_register_peer_memory_client"
DMA_BUF_SYMBOL = "ib_umem_dmabuf_get"
SIMULATED = "/usr/share/provision/simulated/"
EXTENDED = "peer_memory_client_ex"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
TRUSTED = ("/sys/firmware/efi/efivars/db-*", "/sys/firmware/efi/efivars/MokListRT*")
MODULE_NAMES = ("nvidia", "nvidia_peermem", "nv_peer_mem", "ib_core", "ib_uverbs")
HEADER = "include/rdma/peer_mem.h"
MODPROBE_FILES = tuple(f"{folder}/modprobe.d/*.conf" for folder in ("/etc", "/run", "/usr/lib", "/lib"))
INSTALL_LINE = re.compile(r"^\s*install\s+(\S+)\s+(.*)$", re.MULTILINE)
INSTEAD = re.compile(r"modprobe\s+(?:-\S+\s+)*(?:-i|--ignore-install)\s+(?:-\S+\s+)*([\w-]+)")
BRANCH = r"nvidia_(?:current|legacy|tesla)(?:_open|_\d[a-z0-9]*)*"
OTHER_FILES = {"nvidia": re.compile(BRANCH), "nvidia_peermem": re.compile(BRANCH + "_peermem")}
"""Debian has several drivers side by side: their files are called otherwise than the modules in them."""
DKMS_NAMES = re.compile(r"^\s*(?:BUILT|DEST)_MODULE_NAME\[?\d*\]?=[\"']?([^\"'\s]+)", re.MULTILINE)
DKMS_PACKAGE = re.compile(r"^\s*PACKAGE_NAME=[\"']?([^\"'\s]+)", re.MULTILINE)


class Look:
    """Reads one node.

    Args:
        root: prefix of every path; other than "/" in tests.
    """

    def __init__(self, root="/"):
        """Remember the prefix; nothing is read before it is asked for."""
        self.root = root.rstrip("/")
        self._read_modules = {}
        self._unreadable = {}
        self._instead = None
        self._dependencies = {}

    def path(self, name):
        """Return where an absolute path of the node is."""
        return self.root + name

    def text(self, name):
        """Return a file's text without spaces around it, empty when it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return ""

    def paths(self, pattern):
        """Return the node's paths that match, sorted."""
        return sorted(name[len(self.root) :] for name in glob.glob(self.path(pattern)))

    @property
    def kernel(self):
        """Return the running kernel's release."""
        return self.text("/proc/sys/kernel/osrelease")

    @property
    def boot_id(self):
        """Return what is different after every boot."""
        return self.text("/proc/sys/kernel/random/boot_id")

    @property
    def architecture(self):
        """Return the machine's name, as OFED's folders have it."""
        return os.uname().machine

    def kernels(self):
        """Return the installed kernels, the running one first. A folder of modules alone is no kernel."""
        releases = [name.rpartition("/")[2] for name in self.paths("/lib/modules/*")]
        images = ("/boot/vmlinuz-{}", "/boot/vmlinux-{}", "/lib/modules/{}/vmlinuz")
        bootable = [name for name in releases if any(os.path.exists(self.path(image.format(name))) for image in images)]
        return [self.kernel, *(name for name in bootable if name != self.kernel)]

    def has_headers(self, kernel):
        """Return whether modules can be built for a kernel."""
        return os.path.exists(self.path(f"/lib/modules/{kernel}/build/Makefile"))

    def module_path(self, kernel, name):
        """Return the file that modprobe would take for a module, empty when there is none.

        modules.dep decides; an `install` line that names another file (Debian's nvidia-current) stands before it.
        """
        return self._modules_dep(kernel).get(self._file_name(kernel, name), ("", ()))[0]

    def dependencies(self, kernel, name):
        """Return the files that modprobe would load before a module."""
        return self._modules_dep(kernel).get(self._file_name(kernel, name), ("", ()))[1]

    def modprobe_name(self, kernel, name):
        """Return the name by which modprobe finds a module: its own, but for another file that no line leads to."""
        return name if name in self._redirected() else self._file_name(kernel, name)

    def module(self, path):
        """Return a module's file as peer_memory_elf.Module, None when it cannot be read."""
        if path not in self._read_modules:
            try:
                self._read_modules[path] = elf.load(self.path(path))
            except (OSError, ValueError) as error:
                self._read_modules[path] = None
                self._unreadable[path] = getattr(error, "strerror", None) or str(error).rpartition(f"{path}: ")[2]
        return self._read_modules[path]

    def unreadable(self, path):
        """Return why a module's file cannot be read, empty when it can."""
        return "" if self.module(path) else self._unreadable[path]

    def loaded(self, name):
        """Return whether a module is loaded (not merely being loaded, or built in)."""
        return self.text(f"/sys/module/{name}/initstate") == "live"

    def users(self, name):
        """Return how many use a loaded module, and the modules among them."""
        holders = [path.rpartition("/")[2] for path in self.paths(f"/sys/module/{name}/holders/*")]
        count = self.text(f"/sys/module/{name}/refcnt")
        return (int(count) if count.isdigit() else 0), holders

    def secure_boot(self):
        """Return whether only signed modules can be loaded."""
        if self.text("/sys/module/module/parameters/sig_enforce") == "Y":
            return True
        mode = re.search(r"\[(\w+)\]", self.text("/sys/kernel/security/lockdown"))
        if mode:  # what the kernel does: after `mokutil --disable-validation` it does not care what the firmware says
            return mode.group(1) != "none"
        return self._bytes(SECURE_BOOT)[-1:] == b"\1"

    def enrolled(self, certificate):
        """Return whether the firmware trusts a certificate (PEM or DER file); None when nobody can tell.

        The lists hold certificates whole, as DER: those of the firmware itself, and those that mokutil enrolled.
        """
        wanted = self._bytes(certificate)
        pem = re.search(rb"-----BEGIN CERTIFICATE-----(.*?)-----END", wanted, re.DOTALL)
        if pem:
            wanted = binascii.a2b_base64(pem.group(1))
        lists = [self._bytes(path) for pattern in TRUSTED for path in self.paths(pattern)]
        return any(wanted in held for held in lists) if wanted and any(lists) else None

    def _bytes(self, name):
        try:
            with open(self.path(name), "rb") as stream:
                return stream.read()
        except OSError:
            return b""

    def ofed_trees(self, kernel):
        """Return the folders in which an RDMA stack keeps what others need to build against it, the best one first."""
        base = "/usr/src/ofa_kernel/"
        names = [base + self.architecture + "/" + kernel, base + kernel, base + "default"]
        names += self.paths("/var/lib/dkms/mlnx-ofed-kernel/*/build")
        names.append(f"/lib/modules/{kernel}/build")  # some distributions' kernels have the interface themselves
        return [name for name in names if os.path.isfile(self.path(name + "/Module.symvers"))]

    def peer_interface(self, kernel):
        """Return whether modules for a kernel can be built against a peer memory interface, and which one.

        Returns:
            ``extended`` (structure peer_memory_client_ex), ``plain`` or empty.
        """
        trees = [tree for tree in self.ofed_trees(kernel) if SYMBOL in self.text(tree + "/Module.symvers")]
        if not trees:
            return ""
        return "extended" if EXTENDED in self.text(f"{trees[0]}/{HEADER}") else "plain"

    def kernel_gives_peer_interface(self):
        """Return whether the running kernel, with what is loaded, has the peer memory interface."""
        return bool(re.search(r"\b" + SYMBOL + r"\b", self.text("/proc/kallsyms")))

    def driver(self, kernel):
        """Return version and flavour (open or proprietary) of the GPU driver's module for a kernel; both can be empty."""
        module = self.module(self.module_path(kernel, "nvidia"))
        if module is None:
            return "", ""
        return module.info.get("version", ""), "open" if "GPL" in module.info.get("license", "") else "proprietary"

    def files_of(self, kernel, name):
        """Return all files of a module below a kernel's folder, whatever modprobe would take of them."""
        folder = f"/lib/modules/{kernel}"
        names = re.compile(re.escape(name).replace("_", "[_-]") + r"\.ko(\.(xz|gz|zst))?")
        return sorted(
            f"{top[len(self.root) :]}/{file}"
            for top, _, files in os.walk(self.path(folder))
            for file in files
            if names.fullmatch(file)
        )

    def dkms_trees(self, module):
        """Return the source trees that DKMS has for a module: (name, version, names of the modules' files in it)."""
        trees = []
        for path in self.paths("/var/lib/dkms/*/*/source/dkms.conf"):
            text = self.text(path)
            package = (DKMS_PACKAGE.findall(text) or [""])[0]
            named = [re.sub(r"\$\{?PACKAGE_NAME\}?", package, name) for name in DKMS_NAMES.findall(text)]
            names = [name.replace("-", "_") for name in named]
            if module in names:
                _, _, _, _, name, version, _, _ = path.split("/")
                trees.append((name, version, names))
        return trees

    def driver_tree(self, kernel):
        """Return name and version, as DKMS has them, of the GPU driver's sources; None without those of this driver.

        The version is that of the module for this kernel, or of the one that runs; without either, the newest one.
        """
        version = self.driver(kernel)[0] or self.driver(self.kernel)[0] or self.text("/sys/module/nvidia/version")
        trees = [tree for tree in self.dkms_trees("nvidia") if not version or tree[1].split("-")[0] == version]
        if not trees:
            return None
        file = self.module_path(kernel, "nvidia") or self.module_path(self.kernel, "nvidia")
        file = file.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
        name, version, _ = max(trees, key=lambda tree: (file in tree[2], numbers(tree[1]), tree[0]))
        return name, version

    def flavour(self, kernel):
        """Return open or proprietary, empty when nobody can tell: the loaded driver's word counts before its file's."""
        said = self.text("/proc/driver/nvidia/version") if kernel == self.kernel else ""
        if said:
            return "open" if "Open Kernel Module" in said else "proprietary"
        return self.driver(kernel)[1]

    def has_driver(self, kernel):
        """Return whether the driver is there for a kernel: as a file, or loaded from wherever it was."""
        return bool(self.module_path(kernel, "nvidia")) or (kernel == self.kernel and self.loaded("nvidia"))

    def registers_dma_buf(self):
        """Return whether the RDMA stack that is loaded can register a DMA-BUF; None before ib_uverbs is there."""
        symbols = self.text("/proc/kallsyms")
        if DMA_BUF_SYMBOL in symbols:
            return True
        return False if symbols and os.path.isdir(self.path("/sys/module/ib_uverbs")) else None

    def gpus_without_modules(self):
        """Return whether the GPUs are a lab's stand-ins that have no kernel modules: no more can be asked of them."""
        stand_in = any(os.path.exists(self.path(SIMULATED + name)) for name in ("gpus", "nvidia-smi"))
        return stand_in and not any(self.has_driver(kernel) for kernel in self.kernels())

    def simulated(self):
        """Return whether stand-ins of a lab are among what is looked at here."""
        names = ("mlnx-ofed-kernel", "nvidia-driver", "gpus")
        return any(os.path.exists(self.path(SIMULATED + name)) for name in names)

    def facts(self):
        """Return all that the controller decides by, as plain data."""
        version, flavour = self.driver(self.kernel)
        return {
            "kernel": self.kernel,
            "boot_id": self.boot_id,
            "kernels": [
                {
                    "kernel": name,
                    "headers": self.has_headers(name),
                    "peer_interface": self.peer_interface(name),
                    "driver": bool(self.module_path(name, "nvidia")),
                }
                for name in self.kernels()
            ],
            "driver_version": version or self.text("/sys/module/nvidia/version"),
            "driver_flavour": flavour,
            "peer_interface_running": self.kernel_gives_peer_interface(),
            "loaded": [name for name in MODULE_NAMES if self.loaded(name)],
            "peermem_shipped": bool(self.module_path(self.kernel, "nvidia_peermem")),
            "peermem_file": self._file_name(self.kernel, "nvidia_peermem"),
            "secure_boot": self.secure_boot(),
            "openibd": any(
                os.path.exists(self.path(folder + "/openibd.service"))
                for folder in ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
            )
            or os.path.exists(self.path("/etc/init.d/openibd")),
            "simulated": self.simulated(),
        }

    def _file_name(self, kernel, name):
        """Return the name that a module's file has, as modules.dep is looked up by."""
        files = self._modules_dep(kernel)
        instead = self._redirected().get(name, "")
        if instead in files:
            return instead
        if name in files or name not in OTHER_FILES:
            return name
        others = sorted(other for other in files if OTHER_FILES[name].fullmatch(other))
        return next((other for other in others if self._calls_itself(files[other][0], name)), name)

    def _calls_itself(self, path, name):
        """Return whether a file can hold a module of this name; older kernels' modules do not say theirs."""
        module = self.module(path)
        return module is None or module.info.get("name", name).replace("-", "_") == name

    def _redirected(self):
        """Return module name -> the file's name that an `install` line loads for it, of those that may hold it."""
        if self._instead is None:
            self._instead = {}
            for path in (path for pattern in MODPROBE_FILES for path in self.paths(pattern)):
                for word, command in INSTALL_LINE.findall(self.text(path)):
                    name = word.replace("-", "_")
                    named = [other.replace("-", "_") for other in INSTEAD.findall(command)]
                    fitting = [other for other in named if name in OTHER_FILES and OTHER_FILES[name].fullmatch(other)]
                    if fitting:
                        self._instead.setdefault(name, fitting[0])
        return self._instead

    def _modules_dep(self, kernel):
        """Return module name -> (path, paths that it depends on) of a kernel."""
        if kernel not in self._dependencies:
            folder = f"/lib/modules/{kernel}/"
            entries = {}
            for line in self.text(folder + "modules.dep").splitlines():
                path, _, needed = line.partition(":")
                name = path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
                paths = [folder + item for item in needed.split()]
                entries.setdefault(name, (folder + path, paths))
            self._dependencies[kernel] = entries
        return self._dependencies[kernel]


def numbers(version):
    """Return a version's numbers, by which it can be compared."""
    return [int(word) for word in re.findall(r"\d+", version)]
