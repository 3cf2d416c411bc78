"""Why a peer-memory module (nv_peer_mem, nvidia-peermem) does not build, load or unload: from what was printed.

This file is the one source of truth: ``roles/platform/module_utils/platform_kernel_module_failures.py`` is a link to
it, so that a role's Ansible module says on the node what a check says here::

    from ansible.module_utils.platform_kernel_module_failures import diagnose   # on a node
    from provision.facts.kernel_module_failures import diagnose                 # in provision

It therefore imports the standard library alone, is written for every Python that Ansible takes on a node, and is one
file, long as its table is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["CAUSES", "UNKNOWN", "Diagnosis", "diagnose"]

UNKNOWN = "unknown"
_SHOWN = 3
_LINE_LIMIT = 300
_LOOKED_AT = 4000


class Diagnosis(NamedTuple):
    """What went wrong; ``_asdict()`` is what an Ansible module hands on."""

    cause: str
    """One of ``CAUSES``, or ``unknown``; stable, others may match on it."""
    explanation: str
    """One or two sentences for a person."""
    remedy: str
    """What to do, as a sentence with commands."""
    evidence: str
    """The line that shows the cause; the last meaningful lines when it is unknown; may be empty."""


class Symptom(NamedTuple):
    """A line that shows a cause. Named groups of the pattern (``symbol2`` as ``symbol``) fill the texts' places."""

    cause: str
    pattern: str
    explanation: str
    remedy: str
    beside: tuple[str, ...] = ()
    """Patterns that other lines, or the same one, have to show too: what was built, and for what."""


def diagnose(*, make: str = "", dmesg: str | None = None, modprobe: str = "") -> Diagnosis:
    """Tell the cause of a failure from what the programs and the kernel said.

    Call it only after something failed: it looks for causes, and takes the failure for granted.

    Args:
        make: all that the build printed, stdout and stderr (make, dkms, a package's scripts), empty when none ran.
        dmesg: the kernel's lines since the attempt began, with any time stamps; None when they could not be read.
            Not the whole log: an older attempt in it may have failed for another reason.
        modprobe: stderr of modprobe, insmod, rmmod, depmod, or of the service that calls them.

    Returns:
        The first symptom of the table that any line shows. The order is from causes to what merely follows from them:
        "Invalid argument" counts only when nothing better was said. What the table does not know is ``unknown`` with
        the last meaningful lines as evidence; nothing is guessed. It never raises.
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
    refused = next((line for line in lines if _REFUSED_STUB.search(line)), None)
    if silent and refused:
        return Diagnosis(_STUB.cause, _STUB.explanation, _STUB.remedy, refused[:_LINE_LIMIT])
    return _unknown(*texts)


def _lines(text: str) -> list[str]:
    """Cut into lines that hold anything, without colours, with plain quotes."""
    plain = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).translate(_QUOTES)
    return [line.strip()[:_LOOKED_AT] for line in plain.splitlines() if line.strip()]


def _diagnosis(symptom: Symptom, match: re.Match[str], line: str) -> Diagnosis:
    values = dict(_DEFAULTS)
    values.update((name.rstrip("2"), value.strip()) for name, value in match.groupdict().items() if value)
    texts = (symptom.explanation.format(**values), symptom.remedy.format(**values))
    return Diagnosis(symptom.cause, texts[0], texts[1], line[:_LINE_LIMIT])


def _unknown(make: list[str], dmesg: list[str], modprobe: list[str]) -> Diagnosis:
    """Show what there is: of the kernel only what concerns the modules, of a build first what calls itself an error."""
    built = [line for line in make if not _NOISE.search(line)]
    errors = [line for line in built if re.search(r"error|fatal|fail|cannot|not found", line, re.IGNORECASE)]
    kernel = [line for line in dmesg if _CONCERNED.search(line)]
    last = [part[-_SHOWN:] for part in (errors or built, kernel, modprobe)]
    shown = "\n".join(line[:_LINE_LIMIT] for part in last for line in part)
    said = "What was said last is shown." if shown else "Nothing was said."
    return Diagnosis(
        UNKNOWN,
        f"The cause is not known. {said}",
        "Read the whole output, and what the kernel said at that moment: dmesg | tail -n 50",
        shown,
    )


_DEFAULTS = {"kernel": "$(uname -r)", "module": "the module", "symbol": "a symbol", "users": "others"}
_QUOTES = {ord(letter): "'" for letter in "\u2018\u2019`"}
_MODULES = r"(?:nv_peer_mem|nvidia[-_]peermem|nvidia|ib_core|ib_uverbs|mlx5_core|mlx5_ib|mlx4_core|mlx4_ib|mlx_compat)"
_PEERMEM = re.compile(r"nv_peer_mem|nvidia[-_]peermem")
_HARMLESS = re.compile(r"module verification failed|loading out-of-tree module taints|module license .{0,80} taints")
"""What the kernel says of a module that it then loads."""
_CONCERNED = re.compile(rf"\b{_MODULES}\b|NVRM|[Mm]odule")
_NOISE = re.compile(r"(?:Entering|Leaving) directory|^make(?:\[\d+\])?: \*\*\* .*Error \d+$|^Error! Bad return status")
_REFUSED_STUB = re.compile(r"could not insert (?:module )?\S*nvidia[-_]peermem\S*: Invalid (?:argument|parameters)")
_OF = rf"\b{_MODULES}(?:\.ko\S*)?:? "
"""How a line begins that speaks of a module which matters here; others have symbols of their own to miss."""

_FIRST_VERSION = r"\b(?:nv_peer_mem|nvidia[-_]peer[-_]memory)[-/ ]1\.0(?![\d.])"
"""nv_peer_mem 1.0 as DKMS, its folders and the packages write it; 1.0.1 or 1.01 would be another."""
_SINCE_5_4 = r"(?:/lib/modules/|[Ff]or kernel:? |linux-headers-)(?:5\.(?:[4-9]|\d\d)|[6-9]\.\d|\d\d+\.\d)"
"""A kernel of at least 5.4 as the target of a build."""

_HEADERS = (
    "Install the headers of exactly that kernel (Debian and Ubuntu: linux-headers-{kernel}; EL: kernel-devel-{kernel}, "
    "of an old release from its archive), or reboot into the kernel whose headers are there."
)
_OFED_FIRST = (
    "Install MLNX_OFED or DOCA-OFED for this kernel (mlnxofedinstall --add-kernel-support), then the NVIDIA driver's "
    "modules anew. Without an OFED use DMA-BUF, which needs no module: open kernel modules of the driver, kernel 5.12 "
    "or newer, NCCL 2.13 or newer."
)
_REBUILD_OFED = (
    "Reinstall OFED for this kernel (mlnxofedinstall --add-kernel-support), see that /usr/src/ofa_kernel/default leads "
    "to it, then build anew: make clean && make && make install && depmod -a; nvidia-peermem: "
    "dkms install --force nvidia/VERSION -k $(uname -r)."
)
_REBUILD = (
    "Build and install it for the kernel that runs (uname -r), then depmod -a; with DKMS: "
    "dkms autoinstall -k $(uname -r)."
)
_NEWER = (
    "Use what fits this kernel: nvidia-peermem, which comes with the driver since 470, or DMA-BUF (open kernel "
    "modules, kernel 5.12 or newer). nv_peer_mem is no longer maintained; its last version is 1.3."
)
_SECURE_BOOT = (
    "Sign the module with a key that the firmware trusts (mokutil --import, confirmed at the next boot), or use the "
    "distribution's signed driver packages, or switch Secure Boot off in the firmware."
)

_SYMPTOMS = (
    Symptom(
        "disk_full",
        r"No space left on device",
        "The disk is full.",
        "Make room (df -h shows where), then build again.",
    ),
    Symptom(
        "kernel_headers_missing",
        r"/lib/modules/(?P<kernel>[^/\s:']+)/(?:build|source)\b.*(?:No such file|not found|does not exist)",
        "The headers of kernel {kernel}, for which the module is built, are not there.",
        _HEADERS,
    ),
    Symptom(
        "kernel_headers_missing",
        r"kernel headers for kernel (?P<kernel>\S+) cannot be found",
        "The headers of kernel {kernel}, for which the module is built, are not there.",
        _HEADERS,
    ),
    Symptom(
        "kernel_headers_missing",
        r"Kernel configuration is invalid|include/(?:generated/autoconf\.h|config/auto\.conf) (?:or|are|is) "
        r"|No rule to make target '?modules'?"
        r"|fatal error: (?:linux/(?:module|kernel|version)|generated/\w+)\.h: No such",
        "The kernel's headers are there only in part.",
        "Reinstall them. " + _HEADERS,
    ),
    Symptom(
        "headers_of_other_machine",
        r"(?:scripts/|objtool|fixdep|modpost|genksyms).*(?:Exec format error|cannot execute binary file)",
        "The kernel's headers hold build tools for another kind of processor.",
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
        "The NVIDIA driver has no modules for the kernel for which this one is built.",
        "Install the driver for that kernel first (modinfo -k $(uname -r) nvidia must find it); for another kernel, "
        "give it as KVER=.",
    ),
    Symptom(
        "nvidia_modules_compressed",
        r"nvidia\S*\.ko\.(?:zst|gz)\b.*not recognized",
        "The driver's modules are compressed in a way that the build of nv_peer_mem cannot read.",
        "Unpack them beside (zstd -d FILE.ko.zst) and build again, or use nvidia-peermem, which comes with the driver.",
    ),
    Symptom(
        "ofed_too_old",
        r"(?:peer_memory_client_ex|nv_mem_client\w*)'? .*(?:incomplete|undefined|storage size|isn't known)"
        r"|(?:incomplete|undefined|unknown) .*peer_memory_client_ex\b",
        "This version of nv_peer_mem needs a newer OFED than the one that is installed.",
        "Install a newer OFED, or with OFED 4.9 and early 5.x build nv_peer_mem 1.1.",
    ),
    Symptom(
        "module_too_old",
        r"\b(?P<symbol>ib_(?:un)?register_peer_memory_client|nvidia_p2p_\w+).*undefined!",
        "nv_peer_mem 1.0 hands over where {symbol} is to be found in a way that kernels since 5.4 no longer read, so "
        "that it cannot be built for them.",
        "Build 1.1-0, or 1.3-0 where the RDMA stack's headers have peer_memory_client_ex: set peer_memory_source_ref, "
        "or leave it at 1.0-9 and let peer_memory_source_ref_by_headers choose.",
        (_FIRST_VERSION, _SINCE_5_4),
    ),
    Symptom(
        "peer_api_missing",
        r"rdma/peer_mem\.h: No such file|ib_(?:un)?register_peer_memory_client.*(?:undeclared|undefined!)"
        r"|implicit declaration of function.*ib_(?:un)?register_peer_memory_client",
        "The RDMA stack that it is built against has no interface for peer memory: it is the kernel's own, or an OFED "
        "without its sources for this kernel.",
        _OFED_FIRST,
    ),
    Symptom(
        "nvidia_symbols_missing",
        r"(?P<symbol>nvidia_p2p_\w+).*undefined!",
        "The build found no version of {symbol}: it could not read the driver's modules for this kernel.",
        "Install the driver for this kernel first; modules that are compressed (.ko.zst) have to be unpacked by hand.",
    ),
    Symptom(
        "module_too_old",
        r"parse error in symbol dump file|sym_version invalid",
        "This version of nv_peer_mem writes its table of symbols in a form that this kernel's build no longer reads.",
        "Build nv_peer_mem 1.1 or newer. " + _NEWER,
    ),
    Symptom(
        "gpl_only_symbol",
        r"GPL-incompatible module (?P<module>\S+?)(?:\.ko)? uses GPL-only symbol '?(?P<symbol>\w+)",
        "{module} is not under the GPL, and this kernel gives {symbol} only to modules that are.",
        "Use a newer version of the driver or module that does without it, or the driver's open kernel modules.",
    ),
    Symptom(
        "gpl_only_symbol",
        r"(?P<module>nv_peer_mem|nvidia[-_]peermem): module using GPL-only symbols uses symbols "
        r"(?P<symbol>\w+ )?from proprietary module",
        "The kernel does not let {module} use GPL-only symbols together with those of the proprietary NVIDIA driver.",
        "Use the driver's open kernel modules (driver 515, GPU Turing, or newer) with DMA-BUF, or its nvidia-peermem.",
    ),
    Symptom(
        "compiler_mismatch",
        r"unrecognized command[- ]line option|Compiler version check failed|incompatible gcc/plugin versions"
        r"|[Cc]ompiler lacks asm-goto|non-retpoline compiler|not supported by compiler",
        "The compiler is another than the one that the kernel was built with, and does not know its options.",
        "Install the compiler that the kernel names (cat /proc/version) and build with it: make CC=gcc-VERSION.",
    ),
    Symptom(
        "api_changed",
        r"error: (?:implicit declaration of function|too (?:few|many) arguments to function|conflicting types for"
        r"|unknown type name|.*has no member named|.*incompatible[- ]pointer|.* undeclared)"
        r"|fatal error: (?:stdarg|(?:linux|asm)/[\w/]+)\.h: No such file",
        "The source does not fit the kernel, or the RDMA stack, that it is built against: functions or structures "
        "that it uses have changed.",
        _NEWER,
    ),
    Symptom(
        "secure_boot",
        r"Required key not available|Key was rejected by service|Loading of .+ is rejected"
        r"|Lockdown: .*module loading is restricted",
        "The kernel takes only modules signed with a key that it knows, as it does under Secure Boot; this one is not.",
        _SECURE_BOOT,
    ),
    Symptom(
        "other_kernel",
        rf"{_OF}version magic '(?P<built>[^']+)' should be '(?P<running>[^']+)'",
        "The module was built for another kernel: it says '{built}', the one that runs is '{running}'.",
        _REBUILD,
    ),
    Symptom(
        "other_kernel",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) module_layout"
        rf"|{_OF}\.gnu\.linkonce\.this_module section size must match",
        "The module was built with the headers of another kernel, or of the same release built another time.",
        _REBUILD,
    ),
    Symptom(
        "other_rdma_stack",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) (?P<symbol>(?:ib|rdma|mlx\d?)_\w+)"
        rf"|{_OF}Unknown symbol (?P<symbol2>(?:ib|rdma|mlx\d?)_\w+) \(err -22\)",
        "The module was built against another RDMA stack than the one that is loaded: OFED or the kernel was changed "
        "afterwards, or the build took the sources of another OFED.",
        _REBUILD_OFED,
    ),
    Symptom(
        "other_driver",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) (?P<symbol>nvidia_\w+)"
        rf"|{_OF}Unknown symbol (?P<symbol2>nvidia_\w+) \(err -22\)",
        "The module was built against another version of the NVIDIA driver than the one that is loaded.",
        "Build the module again, and load it after the driver. " + _REBUILD,
    ),
    Symptom(
        "other_kernel",
        rf"{_OF}(?:disagrees about version of symbol|no symbol version for) (?P<symbol>\w+)",
        "The module was built against another {symbol} than the kernel that runs has.",
        _REBUILD,
    ),
    Symptom(
        "peer_api_missing",
        rf"{_OF}(?:Unknown symbol|needs unknown symbol) ib_(?:un)?register_peer_memory_client",
        "The RDMA stack that is loaded has no interface for peer memory: it is the kernel's own, not OFED's.",
        "With an OFED installed: modinfo -n ib_core must lie under extra/ or updates/; restart it "
        "(systemctl restart openibd; where systemd has no such unit, /etc/init.d/openibd restart) and write the "
        "initramfs anew. " + _OFED_FIRST,
    ),
    Symptom(
        "dependency_not_loaded",
        rf"{_OF}(?:Unknown symbol|needs unknown symbol) (?P<symbol>(?:ib|rdma|nvidia|mlx\d?)_\w+)",
        "The module needs {symbol}, and the module that has it is not loaded; insmod does not see to that.",
        "Install the module (make install, depmod -a) and load it by modprobe; or first: modprobe -a ib_core nvidia",
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
        "Another peer-memory module is loaded: nv_peer_mem and nvidia-peermem register the same name, so that only "
        "one of them can be there.",
        "Keep one. To keep nvidia-peermem: systemctl disable --now nv_peer_mem, remove its package, "
        "modprobe -r nv_peer_mem.",
    ),
    Symptom(
        "already_loaded",
        r"could not insert (?:module )?\S+: File exists",
        "A module of this name is loaded already, perhaps an older build of it.",
        "To load the new one, unload the old one first: modprobe -r nvidia_peermem (or nv_peer_mem).",
    ),
    Symptom(
        "held_by_peer_memory",
        r"Module (?P<module>\S+) is in use by:? (?P<users>.*\b(?:nvidia_peermem|nv_peer_mem)\b.*)",
        "{module} cannot be unloaded, because the peer-memory module holds it: {users}.",
        "Unload that one first (modprobe -r nvidia_peermem, or nv_peer_mem), and load it again afterwards.",
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
        "The driver's modules for kernel {kernel} have no nvidia-peermem among them: the driver is older than 470, or "
        "was not built for this kernel.",
        "Build the driver's modules for this kernel (dkms autoinstall -k {kernel}); with an older driver use "
        "nv_peer_mem.",
    ),
    Symptom(
        "module_missing",
        r"[Mm]odule (?:alias )?'?(?P<module>[\w-]+)'? not found(?: in directory /lib/modules/(?P<kernel>[^/\s]+))?",
        "There is no module {module} for kernel {kernel}: none was built and installed since this kernel was.",
        "Build and install it for this kernel (make install, or dkms autoinstall -k {kernel}), then depmod -a.",
    ),
    Symptom(
        "module_missing",
        r"could not load module (?P<module>\S+): No such file or directory",
        "The file {module} is not there.",
        _REBUILD,
    ),
    Symptom(
        "no_gpu",
        r"NVRM: No NVIDIA (?:GPU|graphics adapter)|could not insert '?nvidia'?: No such device",
        "The NVIDIA driver finds no GPU that it can drive, and so nothing that needs it loads.",
        "See that the GPUs are there (lspci -d 10de:), and that this driver supports them (dmesg | grep NVRM).",
    ),
    Symptom(
        "load_hangs",
        r"task (?:modprobe|insmod|rmmod|kmod|systemd-modules\S*):\d+ blocked for more than \d+ seconds"
        r"|\b(?:modprobe|insmod|nv_peer_mem\S*|\S*peermem\S*)\b.*[Tt]imed[ -]out"
        r"|[Tt]imed[ -]out.*\b(?:modprobe|insmod|nv_peer_mem|\S*peermem)",
        "Loading hangs in the kernel; such a process cannot be ended.",
        "Look for what went before (dmesg | grep -e NVRM -e Xid -e mlx), reboot the node, and load the module only "
        "after openibd has started the RDMA stack.",
    ),
    Symptom(
        "wrong_format",
        r"Exec format error|Invalid module format",
        "The kernel does not take the file for one of its modules: it was built for another kernel or processor, or is "
        "damaged.",
        "Compare modinfo -F vermagic FILE with uname -r. " + _REBUILD,
    ),
    Symptom(
        "not_permitted",
        r"could not insert .*: Operation not permitted",
        "The kernel lets this process load no modules: it is not root of the machine itself (a container is not), or "
        "loading was switched off (sysctl kernel.modules_disabled).",
        "Load it as root on the machine itself; where loading was switched off, only a reboot allows it again.",
    ),
)
"""From causes to what follows from them; the first that any line shows counts. After a build that failed, nothing
that loading says matters; and what the kernel says comes before what modprobe makes of it."""

_STUB = Symptom(
    "peermem_without_api",
    "",
    "nvidia-peermem was built where no RDMA stack with an interface for peer memory was found; such a module refuses "
    "to load without a word from the kernel.",
    "Install MLNX_OFED or DOCA-OFED first, then build the driver's modules anew "
    "(dkms install --force nvidia/VERSION -k $(uname -r)). " + _OFED_FIRST.partition(". ")[2],
)
"""Shown by modprobe's "Invalid argument" and a kernel that says nothing of the module."""

_TABLE = tuple(
    (symptom, re.compile(symptom.pattern), tuple(re.compile(other) for other in symptom.beside))
    for symptom in _SYMPTOMS
)
CAUSES = tuple(dict.fromkeys(symptom.cause for symptom in (*_SYMPTOMS, _STUB)))
"""Every cause that is known, in the order of the table."""
