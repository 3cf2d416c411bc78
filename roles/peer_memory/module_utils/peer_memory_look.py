"""Read the facts of a node for GPUDirect RDMA, per kernel, from files only: nothing here can hang or load a module."""

import binascii
import glob
import os
import re

try:
    from ansible.module_utils import peer_memory_elf as elf
except ImportError:  # on the node, where these files are in the same folder
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
REPLACEMENT = re.compile(r"modprobe\s+(?:-\S+\s+)*(?:-i|--ignore-install)\s+(?:-\S+\s+)*([\w-]+)")
BRANCH = r"nvidia_(?:current|legacy|tesla)(?:_open|_\d[a-z0-9]*)*"
OTHER_FILES = {"nvidia": re.compile(BRANCH), "nvidia_peermem": re.compile(BRANCH + "_peermem")}
"""Debian can have several drivers, whose files have other names than their modules."""
DKMS_NAMES = re.compile(r"^\s*(?:BUILT|DEST)_MODULE_NAME\[?\d*\]?=[\"']?([^\"'\s]+)", re.MULTILINE)
DKMS_PACKAGE = re.compile(r"^\s*PACKAGE_NAME=[\"']?([^\"'\s]+)", re.MULTILINE)


class NodeFiles:
    """The files of one node.

    Args:
        root: prefix of every path; other than "/" in tests.
    """

    def __init__(self, root="/"):
        """Set the prefix. Files are read on demand."""
        self.root = root.rstrip("/")
        self._read_modules = {}
        self._read_errors = {}
        self._replacements = None
        self._dependencies = {}

    def path(self, name):
        """Return the path of a file of the node with the prefix."""
        return self.root + name

    def text(self, name):
        """Return a file's stripped text, empty if it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return ""

    def paths(self, pattern):
        """Return the sorted paths of the node that match a pattern."""
        return sorted(name[len(self.root) :] for name in glob.glob(self.path(pattern)))

    @property
    def kernel(self):
        """Return the running kernel's release."""
        return self.text("/proc/sys/kernel/osrelease")

    @property
    def boot_id(self):
        """Return the ID of the boot."""
        return self.text("/proc/sys/kernel/random/boot_id")

    @property
    def architecture(self):
        """Return the architecture as in folder names of OFED."""
        return os.uname().machine

    def kernels(self):
        """Return the installed kernels, the running one first. A folder with modules but without a kernel image does not count."""
        releases = [name.rpartition("/")[2] for name in self.paths("/lib/modules/*")]
        images = ("/boot/vmlinuz-{}", "/boot/vmlinux-{}", "/lib/modules/{}/vmlinuz")
        bootable = [name for name in releases if any(os.path.exists(self.path(image.format(name))) for image in images)]
        return [self.kernel, *(name for name in bootable if name != self.kernel)]

    def has_headers(self, kernel):
        """Return whether modules can be built for a kernel."""
        return os.path.exists(self.path(f"/lib/modules/{kernel}/build/Makefile"))

    def module_path(self, kernel, name):
        """Return the file that modprobe would use for a module, empty if there is none.

        modules.dep decides. An `install` line with another file (Debian's nvidia-current) has priority.
        """
        return self._modules_dep(kernel).get(self._file_name(kernel, name), ("", ()))[0]

    def dependencies(self, kernel, name):
        """Return the files that modprobe would load before a module."""
        return self._modules_dep(kernel).get(self._file_name(kernel, name), ("", ()))[1]

    def modprobe_name(self, kernel, name):
        """Return the name of a module for modprobe: its own name, or the file name if no `install` line names that file."""
        return name if name in self._install_redirects() else self._file_name(kernel, name)

    def module(self, path):
        """Return the file of a module as peer_memory_elf.Module, None if it cannot be read."""
        if path not in self._read_modules:
            try:
                self._read_modules[path] = elf.load(self.path(path))
            except (OSError, ValueError) as error:
                self._read_modules[path] = None
                self._read_errors[path] = getattr(error, "strerror", None) or str(error).rpartition(f"{path}: ")[2]
        return self._read_modules[path]

    def read_error(self, path):
        """Return why the file of a module cannot be read, empty if it can."""
        return "" if self.module(path) else self._read_errors[path]

    def is_loaded(self, name):
        """Return whether a module is loaded (completely, and not built in)."""
        return self.text(f"/sys/module/{name}/initstate") == "live"

    def users(self, name):
        """Return the number of users of a loaded module, and the modules that use it."""
        holders = [path.rpartition("/")[2] for path in self.paths(f"/sys/module/{name}/holders/*")]
        count = self.text(f"/sys/module/{name}/refcnt")
        return (int(count) if count.isdigit() else 0), holders

    def secure_boot(self):
        """Return whether the kernel loads only signed modules."""
        if self.text("/sys/module/module/parameters/sig_enforce") == "Y":
            return True
        mode = re.search(r"\[(\w+)\]", self.text("/sys/kernel/security/lockdown"))
        if mode:  # the kernel decides: after `mokutil --disable-validation` it ignores the setting of the firmware
            return mode.group(1) != "none"
        return self._bytes(SECURE_BOOT)[-1:] == b"\1"

    def is_enrolled(self, certificate):
        """Return whether the firmware trusts a certificate (PEM or DER file), None if unknown.

        The lists contain complete DER certificates: those of the firmware, and those enrolled with mokutil.
        """
        content = self._bytes(certificate)
        pem = re.search(rb"-----BEGIN CERTIFICATE-----(.*?)-----END", content, re.DOTALL)
        if pem:
            content = binascii.a2b_base64(pem.group(1))
        lists = [self._bytes(path) for pattern in TRUSTED for path in self.paths(pattern)]
        return any(content in certificates for certificates in lists) if content and any(lists) else None

    def _bytes(self, name):
        try:
            with open(self.path(name), "rb") as stream:
                return stream.read()
        except OSError:
            return b""

    def ofed_trees(self, kernel):
        """Return the build folders of RDMA stacks, the best one first."""
        base = "/usr/src/ofa_kernel/"
        names = [base + self.architecture + "/" + kernel, base + kernel, base + "default"]
        names += self.paths("/var/lib/dkms/mlnx-ofed-kernel/*/build")
        names.append(f"/lib/modules/{kernel}/build")  # kernels of some distributions have the interface
        return [name for name in names if os.path.isfile(self.path(name + "/Module.symvers"))]

    def peer_interface(self, kernel):
        """Return the peer memory interface against which modules for a kernel can be built.

        Returns:
            ``extended`` (structure peer_memory_client_ex), ``plain`` or empty.
        """
        trees = [tree for tree in self.ofed_trees(kernel) if SYMBOL in self.text(tree + "/Module.symvers")]
        if not trees:
            return ""
        return "extended" if EXTENDED in self.text(f"{trees[0]}/{HEADER}") else "plain"

    def kernel_has_peer_interface(self):
        """Return whether the running kernel with its loaded modules has the peer memory interface."""
        return bool(re.search(r"\b" + SYMBOL + r"\b", self.text("/proc/kallsyms")))

    def driver(self, kernel):
        """Return version and flavour (open or proprietary) of the GPU driver for a kernel, empty if unknown."""
        module = self.module(self.module_path(kernel, "nvidia"))
        if module is None:
            return "", ""
        return module.info.get("version", ""), "open" if "GPL" in module.info.get("license", "") else "proprietary"

    def files_of(self, kernel, name):
        """Return all files of a module below the folder of a kernel, also those that modprobe ignores."""
        folder = f"/lib/modules/{kernel}"
        names = re.compile(re.escape(name).replace("_", "[_-]") + r"\.ko(\.(xz|gz|zst))?")
        return sorted(
            f"{top[len(self.root) :]}/{file}"
            for top, _, files in os.walk(self.path(folder))
            for file in files
            if names.fullmatch(file)
        )

    def dkms_trees(self, module):
        """Return the source trees of a module in DKMS: (name, version, file names of their modules)."""
        trees = []
        for path in self.paths("/var/lib/dkms/*/*/source/dkms.conf"):
            text = self.text(path)
            package = (DKMS_PACKAGE.findall(text) or [""])[0]
            module_names = [re.sub(r"\$\{?PACKAGE_NAME\}?", package, name) for name in DKMS_NAMES.findall(text)]
            names = [name.replace("-", "_") for name in module_names]
            if module in names:
                _, _, _, _, name, version, _, _ = path.split("/")
                trees.append((name, version, names))
        return trees

    def driver_tree(self, kernel):
        """Return name and version in DKMS of the GPU driver's sources; None if it has none for this version.

        The version is that of the module for this kernel, else of the running kernel, else the newest one.
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
        """Return open or proprietary, empty if unknown. The loaded driver has priority over the file."""
        description = self.text("/proc/driver/nvidia/version") if kernel == self.kernel else ""
        if description:
            return "open" if "Open Kernel Module" in description else "proprietary"
        return self.driver(kernel)[1]

    def has_driver(self, kernel):
        """Return whether the driver for a kernel is installed as a file or loaded."""
        return bool(self.module_path(kernel, "nvidia")) or (kernel == self.kernel and self.is_loaded("nvidia"))

    def registers_dma_buf(self):
        """Return whether the loaded RDMA stack can register a DMA-BUF, None if ib_uverbs is not loaded."""
        symbols = self.text("/proc/kallsyms")
        if DMA_BUF_SYMBOL in symbols:
            return True
        return False if symbols and os.path.isdir(self.path("/sys/module/ib_uverbs")) else None

    def gpus_without_modules(self):
        """Return whether the GPUs are simulated ones of a lab without kernel modules."""
        is_simulated = any(os.path.exists(self.path(SIMULATED + name)) for name in ("gpus", "nvidia-smi"))
        return is_simulated and not any(self.has_driver(kernel) for kernel in self.kernels())

    def simulated(self):
        """Return whether the facts include simulated hardware or software of a lab."""
        names = ("mlnx-ofed-kernel", "nvidia-driver", "gpus")
        return any(os.path.exists(self.path(SIMULATED + name)) for name in names)

    def facts(self):
        """Return the facts from which the controller decides, as plain data."""
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
            "peer_interface_running": self.kernel_has_peer_interface(),
            "loaded": [name for name in MODULE_NAMES if self.is_loaded(name)],
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
        """Return the file name of a module, which is its key in modules.dep."""
        files = self._modules_dep(kernel)
        replacement = self._install_redirects().get(name, "")
        if replacement in files:
            return replacement
        if name in files or name not in OTHER_FILES:
            return name
        others = sorted(other for other in files if OTHER_FILES[name].fullmatch(other))
        return next((other for other in others if self._may_contain(files[other][0], name)), name)

    def _may_contain(self, path, name):
        """Return whether a file can contain a module of this name. Modules of older kernels do not contain their names."""
        module = self.module(path)
        return module is None or module.info.get("name", name).replace("-", "_") == name

    def _install_redirects(self):
        """Return module name -> the possible file name in an `install` line for the module."""
        if self._replacements is None:
            self._replacements = {}
            for path in (path for pattern in MODPROBE_FILES for path in self.paths(pattern)):
                for word, command in INSTALL_LINE.findall(self.text(path)):
                    name = word.replace("-", "_")
                    names = [other.replace("-", "_") for other in REPLACEMENT.findall(command)]
                    matches = [other for other in names if name in OTHER_FILES and OTHER_FILES[name].fullmatch(other)]
                    if matches:
                        self._replacements.setdefault(name, matches[0])
        return self._replacements

    def _modules_dep(self, kernel):
        """Return module name -> (path, paths of its dependencies) of a kernel."""
        if kernel not in self._dependencies:
            folder = f"/lib/modules/{kernel}/"
            entries = {}
            for line in self.text(folder + "modules.dep").splitlines():
                path, _, dependencies = line.partition(":")
                name = path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
                paths = [folder + item for item in dependencies.split()]
                entries.setdefault(name, (folder + path, paths))
            self._dependencies[kernel] = entries
        return self._dependencies[kernel]


def numbers(version):
    """Return the numbers of a version for comparison."""
    return [int(word) for word in re.findall(r"\d+", version)]
