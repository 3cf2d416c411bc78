"""Diagnose why a peer memory module (nv_peer_mem, nvidia-peermem) does not build, load or unload, from program output.

This file is the only copy: ``roles/platform/module_utils/platform_kernel_module_failures.py`` is a link to it, so that
a role's Ansible module and a check report the same::

    from ansible.module_utils.platform_kernel_module_failures import diagnose   # on a node
    from provision.facts.kernel_module_failures import diagnose                 # in provision

It imports only the standard library of Python 3.6, and is one file because of its table.
"""

import re
from typing import Iterable, List, Match, NamedTuple, Optional, Tuple

UNKNOWN = "unknown"
_SHOWN = 3
_LINE_LIMIT = 300
_LINE_BUFFER = 4000


class Diagnosis(NamedTuple):
    """The diagnosis of a failure; Ansible modules return its ``_asdict()``."""

    cause: str
    """One of ``CAUSES``, or ``unknown``; a stable code that others may match."""
    explanation: str
    """One or two sentences for a person."""
    remedy: str
    """A sentence with commands that fix the failure."""
    evidence: str
    """The line that shows the cause; the last relevant lines if it is unknown; may be empty."""


class Symptom(NamedTuple):
    """A line that shows a cause. Named groups of the pattern (``symbol2`` as ``symbol``) fill the texts."""

    cause: str
    pattern: str
    explanation: str
    remedy: str
    beside: Tuple[str, ...] = ()
    """Patterns that other lines, or the same line, must match too: what was built, and for what."""


def diagnose(*, make: str = "", dmesg: Optional[str] = None, modprobe: str = "") -> Diagnosis:
    """Return the cause of a failure, from the output of the programs and the kernel.

    Call it only after a failure: it always returns a cause, even for harmless output.

    Args:
        make: The output of the build, stdout and stderr (make, dkms, package scripts); empty if nothing was built.
        dmesg: The kernel's lines since the attempt began; None if they could not be read. Do not pass the whole log: an
           older attempt in it may have failed for another reason.
        modprobe: The stderr of modprobe, insmod, rmmod, depmod, or of the service that calls them.

    Returns:
        The first symptom of the table that any line shows. Causes come before their consequences: "Invalid argument"
        counts only without a better match. Without a match, the cause is ``unknown``, with the last relevant lines as
        evidence. It never raises.
    """
    texts = [_lines(text) for text in (make, dmesg or "", modprobe)]
    lines = [line for text in texts for line in text]
    for symptom, pattern, beside in _TABLE:
        if not all(any(other.search(line) for line in lines) for other in beside):
            continue
        for line in lines:
            match = pattern.search(line)
            if match:
                return _diagnosis(symptom, match, line)
    silent = dmesg is not None and not any(_PEERMEM.search(line) and not _HARMLESS.search(line) for line in texts[1])
    rejection = next((line for line in lines if _REFUSED_STUB.search(line)), None)
    if silent and rejection:
        return Diagnosis(_STUB.cause, _STUB.explanation, _STUB.remedy, rejection[:_LINE_LIMIT])
    return _unknown(*texts)


def compiler_line(lines: Iterable[str]) -> str:
    """Return the first line of a build with an error of the compiler; empty if there is none."""
    return next((line.strip() for line in lines if _COMPILER.search(line)), "")


def _lines(text: str) -> List[str]:
    """Split into non-blank lines without colours and with plain quotes."""
    plain = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).translate(_QUOTES)
    return [line.strip()[:_LINE_BUFFER] for line in plain.splitlines() if line.strip()]


def _diagnosis(symptom: Symptom, match: Match[str], line: str) -> Diagnosis:
    values = dict(_DEFAULTS)
    values.update((name.rstrip("2"), value.strip()) for name, value in match.groupdict().items() if value)
    texts = (symptom.explanation.format(**values), symptom.remedy.format(**values))
    return Diagnosis(symptom.cause, texts[0], texts[1], line[:_LINE_LIMIT])


def _unknown(make: List[str], dmesg: List[str], modprobe: List[str]) -> Diagnosis:
    """Return the last relevant lines: errors of the build, kernel lines about these modules, output of modprobe."""
    built = [line for line in make if not _NOISE.search(line)]
    errors = [line for line in built if re.search(r"error|fatal|fail|cannot|not found", line, re.IGNORECASE)]
    kernel = [line for line in dmesg if _CONCERNED.search(line)]
    last = [part[-_SHOWN:] for part in (errors or built, kernel, modprobe)]
    shown = "\n".join(line[:_LINE_LIMIT] for part in last for line in part)
    evidence = "The last messages are shown." if shown else "No messages were printed."
    return Diagnosis(
        UNKNOWN,
        f"The cause is not known. {evidence}",
        "Read the complete output, and the kernel log of that time: dmesg | tail -n 50",
        shown,
    )


_DEFAULTS = {"kernel": "$(uname -r)", "module": "the module", "symbol": "a symbol", "users": "others"}
_QUOTES = {ord(letter): "'" for letter in "\u2018\u2019`"}
_MODULES = r"(?:nv_peer_mem|nvidia[-_]peermem|nvidia|ib_core|ib_uverbs|mlx5_core|mlx5_ib|mlx4_core|mlx4_ib|mlx_compat)"
_COMPILER = re.compile("error: |No such file or directory|No space left|cannot ")
_PEERMEM = re.compile(r"nv_peer_mem|nvidia[-_]peermem")
_HARMLESS = re.compile(r"module verification failed|loading out-of-tree module taints|module license .{0,80} taints")
"""Kernel messages about a module that loads nevertheless."""
_CONCERNED = re.compile(rf"\b{_MODULES}\b|NVRM|[Mm]odule")
_NOISE = re.compile(r"(?:Entering|Leaving) directory|^make(?:\[\d+\])?: \*\*\* .*Error \d+$|^Error! Bad return status")
_REFUSED_STUB = re.compile(r"could not insert (?:module )?\S*nvidia[-_]peermem\S*: Invalid (?:argument|parameters)")
_OF = rf"\b{_MODULES}(?:\.ko\S*)?:? "
"""The beginning of a line about a module that matters here; other modules may lack symbols of their own."""

_FIRST_VERSION = r"\b(?:nv_peer_mem|nvidia[-_]peer[-_]memory)[-/ ]1\.0(?![\d.])"
"""nv_peer_mem 1.0 as written by DKMS, its folders and the packages; 1.0.1 and 1.01 do not match."""
_SINCE_5_4 = r"(?:/lib/modules/|[Ff]or kernel:? |linux-headers-)(?:5\.(?:[4-9]|\d\d)|[6-9]\.\d|\d\d+\.\d)"
"""A kernel of at least 5.4 as the target of a build."""

_HEADERS = (
    "Install the headers of exactly that kernel (Debian and Ubuntu: linux-headers-{kernel}; EL: kernel-devel-{kernel}, "
    "of an old release from its archive), or reboot into the kernel whose headers are installed."
)
_OFED_FIRST = (
    "Install MLNX_OFED or DOCA-OFED for this kernel (mlnxofedinstall --add-kernel-support), then rebuild the NVIDIA "
    "driver's modules. Without OFED use DMA-BUF, which needs no module: open kernel modules of the driver, kernel 5.12 "
    "or newer, NCCL 2.13 or newer."
)
_REBUILD_OFED = (
    "Reinstall OFED for this kernel (mlnxofedinstall --add-kernel-support), make sure that /usr/src/ofa_kernel/default "
    "points to it, then rebuild: make clean && make && make install && depmod -a; nvidia-peermem: "
    "dkms install --force nvidia/VERSION -k $(uname -r)."
)
_REBUILD = (
    "Build and install it for the running kernel (uname -r), then run depmod -a; with DKMS: "
    "dkms autoinstall -k $(uname -r)."
)
_NEWER = (
    "Use a module that supports this kernel: nvidia-peermem, which comes with the driver since 470, or DMA-BUF (open "
    "kernel modules, kernel 5.12 or newer). nv_peer_mem is no longer maintained; its last version is 1.3."
)
_SECURE_BOOT = (
    "Sign the module with a key that the firmware trusts (mokutil --import, confirmed at the next boot), or use the "
    "distribution's signed driver packages, or disable Secure Boot in the firmware."
)

_SYMPTOMS = (
    Symptom(
        "disk_full",
        r"No space left on device",
        "The disk is full.",
        "Free disk space (df -h shows where), then build again.",
    ),
    Symptom(
        "kernel_headers_missing",
        r"/lib/modules/(?P<kernel>[^/\s:']+)/(?:build|source)\b.*(?:No such file|not found|does not exist)",
        "The headers of kernel {kernel}, for which the module is built, are missing.",
        _HEADERS,
    ),
    Symptom(
        "kernel_headers_missing",
        r"kernel headers for kernel (?P<kernel>\S+) cannot be found",
        "The headers of kernel {kernel}, for which the module is built, are missing.",
        _HEADERS,
    ),
    Symptom(
        "kernel_headers_missing",
        r"Kernel configuration is invalid|include/(?:generated/autoconf\.h|config/auto\.conf) (?:or|are|is) "
        r"|No rule to make target '?modules'?"
        r"|fatal error: (?:linux/(?:module|kernel|version)|generated/\w+)\.h: No such",
        "The kernel's headers are incomplete.",
        "Reinstall them. " + _HEADERS,
    ),
    Symptom(
        "headers_of_other_machine",
        r"(?:scripts/|objtool|fixdep|modpost|genksyms).*(?:Exec format error|cannot execute binary file)",
        "The kernel's headers contain build tools for another processor architecture.",
        _HEADERS,
    ),
    Symptom(
        "tools_missing",
        r"please install (?P<tool>libelf-dev|elfutils-libelf-devel)|fatal error: (?:gelf|libelf)\.h: No such",
        "The build needs the headers of libelf, which are not installed.",
        "Install them (Debian and Ubuntu: libelf-dev; EL: elfutils-libelf-devel), then build again.",
    ),
    Symptom(
        "tools_missing",
        r"(?:^|[\s/'])(?P<tool>make|g?cc(?:-\d+)?|ld|as|nm|xz|objcopy|objdump|strip|perl|bc|flex|bison|dkms|rpmbuild)"
        r"'?: (?:(?:command )?not found|Command not found|No such file or directory)",
        "The build needs {tool}, which is not installed.",
        "Install {tool} (make, gcc and binutils; a gcc with a number is the compiler of the kernel), then build again.",
    ),
    Symptom(
        "nvidia_driver_missing",
        r"-E- Cannot locate nvidia modules",
        "The NVIDIA driver has no modules for the kernel that this module is built for.",
        "Install the driver for that kernel first (modinfo -k $(uname -r) nvidia must succeed); for another kernel, "
        "set KVER=.",
    ),
    Symptom(
        "nvidia_modules_compressed",
        r"nvidia\S*\.ko\.(?:zst|gz)\b.*not recognized",
        "The driver's modules are compressed in a format that the build of nv_peer_mem cannot read.",
        "Decompress them (zstd -d FILE.ko.zst) and build again, or use nvidia-peermem, which comes with the driver.",
    ),
    Symptom(
        "ofed_too_old",
        r"(?:peer_memory_client_ex|nv_mem_client\w*)'? .*(?:incomplete|undefined|storage size|isn't known)"
        r"|(?:incomplete|undefined|unknown) .*peer_memory_client_ex\b",
        "This version of nv_peer_mem needs a newer OFED than the installed one.",
        "Install a newer OFED, or with OFED 4.9 and early 5.x build nv_peer_mem 1.1.",
    ),
    Symptom(
        "module_too_old",
        r"\b(?P<symbol>ib_(?:un)?register_peer_memory_client|nvidia_p2p_\w+).*undefined!",
        "nv_peer_mem 1.0 passes the location of {symbol} in a way that kernels since 5.4 do not support, so it cannot "
        "be built for them.",
        "Build 1.1-0, or 1.3-0 where the RDMA stack's headers have peer_memory_client_ex: set peer_memory_source_ref, "
        "or leave it at 1.0-9 and let peer_memory_source_ref_by_headers choose.",
        (_FIRST_VERSION, _SINCE_5_4),
    ),
    Symptom(
        "peer_api_missing",
        r"rdma/peer_mem\.h: No such file|ib_(?:un)?register_peer_memory_client.*(?:undeclared|undefined!)"
        r"|implicit declaration of function.*ib_(?:un)?register_peer_memory_client",
        "The RDMA stack that the module is built against has no peer memory interface: it is the kernel's own, or "
        "an OFED without sources for this kernel.",
        _OFED_FIRST,
    ),
    Symptom(
        "nvidia_symbols_missing",
        r"(?P<symbol>nvidia_p2p_\w+).*undefined!",
        "The build could not read the version of {symbol} from the driver's modules for this kernel.",
        "Install the driver for this kernel first; decompress compressed modules (.ko.zst).",
    ),
    Symptom(
        "module_too_old",
        r"parse error in symbol dump file|sym_version invalid",
        "This version of nv_peer_mem writes its symbol table in a format that the build of this kernel cannot read.",
        "Build nv_peer_mem 1.1 or newer. " + _NEWER,
    ),
    Symptom(
        "gpl_only_symbol",
        r"GPL-incompatible module (?P<module>\S+?)(?:\.ko)? uses GPL-only symbol '?(?P<symbol>\w+)",
        "{module} is not under the GPL, and this kernel exports {symbol} only to GPL modules.",
        "Use a newer version of the driver or module that does not need it, or the driver's open kernel modules.",
    ),
    Symptom(
        "gpl_only_symbol",
        r"(?P<module>nv_peer_mem|nvidia[-_]peermem): module using GPL-only symbols uses symbols "
        r"(?P<symbol>\w+ )?from proprietary module",
        "The kernel does not let {module} use GPL-only symbols together with symbols of the proprietary NVIDIA driver.",
        "Use the driver's open kernel modules (driver 515, GPU Turing, or newer) with DMA-BUF, or its nvidia-peermem.",
    ),
    Symptom(
        "compiler_mismatch",
        r"unrecognized command[- ]line option|Compiler version check failed|incompatible gcc/plugin versions"
        r"|[Cc]ompiler lacks asm-goto|non-retpoline compiler|not supported by compiler",
        "The compiler differs from the one that built the kernel and does not support its options.",
        "Install the compiler that built the kernel (cat /proc/version) and build with it: make CC=gcc-VERSION.",
    ),
    Symptom(
        "api_changed",
        r"error: (?:implicit declaration of function|too (?:few|many) arguments to function|conflicting types for"
        r"|unknown type name|.*has no member named|.*incompatible[- ]pointer|.* undeclared)"
        r"|fatal error: (?:stdarg|(?:linux|asm)/[\w/]+)\.h: No such file",
        "The source is not compatible with the kernel or RDMA stack that it is built against: functions or structures "
        "that it uses have changed.",
        _NEWER,
    ),
    Symptom(
        "secure_boot",
        r"Required key not available|Key was rejected by service|Loading of .+ is rejected"
        r"|Lockdown: .*module loading is restricted",
        "The kernel loads only modules signed with a trusted key, as with Secure Boot; this module is not.",
        _SECURE_BOOT,
    ),
    Symptom(
        "other_kernel",
        rf"{_OF}version magic '(?P<built>[^']+)' should be '(?P<running>[^']+)'",
        "The module was built for another kernel: it was built for '{built}', and '{running}' is running.",
        _REBUILD,
    ),
    Symptom(
        "other_kernel",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) module_layout"
        rf"|{_OF}\.gnu\.linkonce\.this_module section size must match",
        "The module was built with the headers of another kernel, or of another build of the same release.",
        _REBUILD,
    ),
    Symptom(
        "other_rdma_stack",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) (?P<symbol>(?:ib|rdma|mlx\d?)_\w+)"
        rf"|{_OF}Unknown symbol (?P<symbol2>(?:ib|rdma|mlx\d?)_\w+) \(err -22\)",
        "The module was built against another RDMA stack than the loaded one: OFED or the kernel was changed "
        "afterwards, or the build used the sources of another OFED.",
        _REBUILD_OFED,
    ),
    Symptom(
        "other_driver",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) (?P<symbol>nvidia_\w+)"
        rf"|{_OF}Unknown symbol (?P<symbol2>nvidia_\w+) \(err -22\)",
        "The module was built against another version of the NVIDIA driver than the loaded one.",
        "Build the module again, and load it after the driver. " + _REBUILD,
    ),
    Symptom(
        "other_kernel",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) (?P<symbol>\w+)",
        "The module was built against another {symbol} than that of the running kernel.",
        _REBUILD,
    ),
    Symptom(
        "peer_api_missing",
        rf"{_OF}(?:Unknown symbol|needs unknown symbol) ib_(?:un)?register_peer_memory_client",
        "The loaded RDMA stack has no peer memory interface: it is the kernel's own, not OFED's.",
        "With OFED installed: modinfo -n ib_core must be under extra/ or updates/; restart it "
        "(systemctl restart openibd; where systemd has no such unit, /etc/init.d/openibd restart) and rebuild the "
        "initramfs (update-initramfs -u -k all, or dracut -f --regenerate-all). " + _OFED_FIRST,
    ),
    Symptom(
        "dependency_not_loaded",
        rf"{_OF}(?:Unknown symbol|needs unknown symbol) (?P<symbol>(?:ib|rdma|nvidia|mlx\d?)_\w+)",
        "The module needs {symbol}, and the module that provides it is not loaded; insmod does not load dependencies.",
        "Install the module (make install, depmod -a) and load it with modprobe; or first: modprobe -a ib_core nvidia",
    ),
    Symptom(
        "symbol_missing",
        rf"{_OF}(?:Unknown symbol|needs unknown symbol) (?P<symbol>\w+)",
        "The module needs {symbol}, which neither this kernel nor any loaded module has.",
        _REBUILD,
    ),
    Symptom(
        "other_module_loaded",
        r"error while registering client|cannot create duplicate filename '[^']*(?:nv_mem|memory_peers|peermem)",
        "Another peer memory module is loaded: nv_peer_mem and nvidia-peermem register the same name, so only one of "
        "them can be loaded.",
        "Use only one. To use nvidia-peermem: systemctl disable --now nv_peer_mem, remove its package, "
        "modprobe -r nv_peer_mem.",
    ),
    Symptom(
        "already_loaded",
        r"could not insert (?:module )?\S+: File exists",
        "A module of this name is already loaded, perhaps an older build of it.",
        "To load the new one, unload the old one first: modprobe -r nvidia_peermem (or nv_peer_mem).",
    ),
    Symptom(
        "held_by_peer_memory",
        r"Module (?P<module>\S+) is in use by:? (?P<users>.*\b(?:nvidia_peermem|nv_peer_mem)\b.*)",
        "{module} cannot be unloaded, because the peer memory module uses it: {users}.",
        "Unload that module first (modprobe -r nvidia_peermem, or nv_peer_mem), and load it again afterwards.",
    ),
    Symptom(
        "module_in_use",
        r"Module (?P<module>[\w-]+) is in use|could not remove '?(?P<module2>[\w-]+)'?: "
        r"(?:Resource temporarily unavailable|Device or resource busy)",
        "{module} cannot be unloaded, because a job or another module still uses it.",
        "End the jobs that use GPUs and RDMA cards, and try again; lsmod, and lsof /dev/infiniband/uverbs*, show the "
        "users.",
    ),
    Symptom(
        "nvidia_driver_missing",
        r"[Mm]odule (?:alias )?'?nvidia'? not found(?: in directory /lib/modules/(?P<kernel>[^/\s]+))?",
        "The NVIDIA driver has no modules for kernel {kernel}.",
        "Install the driver, or build its modules for this kernel: dkms autoinstall -k {kernel}",
    ),
    Symptom(
        "module_missing",
        r"[Mm]odule (?:alias )?'?nvidia[-_]peermem'? not found(?: in directory /lib/modules/(?P<kernel>[^/\s]+))?",
        "The driver's modules for kernel {kernel} do not include nvidia-peermem: the driver is older than 470, or was "
        "not built for this kernel.",
        "Build the driver's modules for this kernel (dkms autoinstall -k {kernel}); with an older driver use "
        "nv_peer_mem.",
    ),
    Symptom(
        "module_missing",
        r"[Mm]odule (?:alias )?'?(?P<module>[\w-]+)'? not found(?: in directory /lib/modules/(?P<kernel>[^/\s]+))?",
        "There is no module {module} for kernel {kernel}: none was built and installed for it.",
        "Build and install it for this kernel (make install, or dkms autoinstall -k {kernel}), then run depmod -a.",
    ),
    Symptom(
        "module_missing",
        r"could not load module (?P<module>\S+): No such file or directory",
        "The file {module} does not exist.",
        _REBUILD,
    ),
    Symptom(
        "no_gpu",
        r"NVRM: No NVIDIA (?:GPU|graphics adapter)"
        r"|could not insert '?nvidia(?:[-_](?:current|legacy|tesla)[\w-]*)?'?: No such device",
        "The NVIDIA driver finds no supported GPU, so modules that need it do not load.",
        "Check that the GPUs are visible (lspci -d 10de:), and that this driver supports them (dmesg | grep NVRM).",
    ),
    Symptom(
        "load_hangs",
        r"task (?:modprobe|insmod|rmmod|kmod|systemd-modules\S*):\d+ blocked for more than \d+ seconds"
        r"|\b(?:modprobe|insmod|nv_peer_mem\S*|\S*peermem\S*)\b.*[Tt]imed[ -]out"
        r"|[Tt]imed[ -]out.*\b(?:modprobe|insmod|nv_peer_mem|\S*peermem)",
        "Loading hangs in the kernel; such a process cannot be killed.",
        "Check the earlier messages (dmesg | grep -e NVRM -e Xid -e mlx), reboot the node, and load the module only "
        "after openibd has started the RDMA stack.",
    ),
    Symptom(
        "wrong_format",
        r"Exec format error|Invalid module format",
        "The kernel rejects the file as a module: it was built for another kernel or processor, or is damaged.",
        "Compare modinfo -F vermagic FILE with uname -r. " + _REBUILD,
    ),
    Symptom(
        "not_permitted",
        r"could not insert .*: Operation not permitted",
        "The kernel does not let this process load modules: it is not root on the machine itself (for example in a "
        "container), or loading was disabled (sysctl kernel.modules_disabled).",
        "Load it as root on the machine itself; if loading was disabled, only a reboot enables it again.",
    ),
)
"""Causes before their consequences; the first symptom that any line shows counts. After a failed build, messages about
loading do not matter, and messages of the kernel come before those of modprobe."""

_STUB = Symptom(
    "peermem_without_api",
    "",
    "nvidia-peermem was built without an RDMA stack that has a peer memory interface; such a module refuses to load "
    "without a kernel message.",
    "Install MLNX_OFED or DOCA-OFED first, then rebuild the driver's modules "
    "(dkms install --force nvidia/VERSION -k $(uname -r)). " + _OFED_FIRST.partition(". ")[2],
)
"""Shown by modprobe's "Invalid argument" without a kernel message about the module."""

_TABLE = tuple(
    (symptom, re.compile(symptom.pattern), tuple(re.compile(other) for other in symptom.beside))
    for symptom in _SYMPTOMS
)
CAUSES = tuple(dict.fromkeys(symptom.cause for symptom in (*_SYMPTOMS, _STUB)))
"""Every known cause, in the order of the table."""
