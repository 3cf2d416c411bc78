"""Diagnosis of peer memory modules that do not build or load."""

from __future__ import annotations

import ast
import string
import sys
from pathlib import Path

import pytest

from provision.facts import kernel_module_failures
from provision.facts.kernel_module_failures import _STUB, _SYMPTOMS, CAUSES, UNKNOWN, diagnose
from tests.support.modules import ROLES, load

MODPROBE_INVALID = "modprobe: ERROR: could not insert 'nv_peer_mem': Invalid argument"
MODPROBE_UNKNOWN = (
    "modprobe: ERROR: could not insert 'nv_peer_mem': Unknown symbol in module, or unknown parameter (see dmesg)"
)
PEERMEM_INVALID = "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument"
TAINTS = """
[   71.100001] nv_peer_mem: loading out-of-tree module taints kernel.
[   71.100110] nv_peer_mem: module verification failed: signature and/or required key missing - tainting kernel
"""

BUILDS = [
    (
        "kernel_headers_missing",
        (
            "make -C /lib/modules/3.10.0-957.el7.x86_64/build  M=/root/nv_peer_memory modules\n"
            "make: *** /lib/modules/3.10.0-957.el7.x86_64/build: No such file or directory.  Stop."
        ),
        "kernel-devel-3.10.0-957.el7.x86_64",
    ),
    (
        "kernel_headers_missing",
        "Error! Your kernel headers for kernel 6.1.0-13-amd64 cannot be found at /lib/modules/6.1.0-13-amd64/build.",
        "linux-headers-6.1.0-13-amd64",
    ),
    (
        "kernel_headers_missing",
        (
            "  ERROR: Kernel configuration is invalid.\n"
            "         include/generated/autoconf.h or include/config/auto.conf are missing."
        ),
        "Reinstall them",
    ),
    ("headers_of_other_machine", "/bin/sh: 1: scripts/basic/fixdep: Exec format error", "headers"),
    ("tools_missing", "/bin/sh: 1: gcc-12: not found", "Install gcc-12"),
    ("tools_missing", "make[1]: gcc: Command not found", "Install gcc"),
    ("tools_missing", "make[1]: gcc: No such file or directory", "Install gcc"),
    ("tools_missing", "bash: line 1: make: command not found", "Install make"),
    ("tools_missing", "./create_nv.symvers.sh: line 88: nm: command not found", "Install nm"),
    (
        "tools_missing",
        (
            'Makefile:965: *** "Cannot generate ORC metadata for CONFIG_UNWINDER_ORC=y, please install libelf-dev, '
            'libelf-devel or elfutils-libelf-devel".  Stop.'
        ),
        "libelf-dev",
    ),
    (
        "nvidia_driver_missing",
        "-E- Cannot locate nvidia modules!\nCUDA driver must be installed before this package!",
        "KVER",
    ),
    (
        "nvidia_modules_compressed",
        "nm: /lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst: file format not recognized",
        "zstd -d",
    ),
    (
        "peer_api_missing",
        (
            "/root/nv_peer_memory/nv_peer_mem.c:52:10: fatal error: rdma/peer_mem.h: No such file or directory\n"
            "   52 | #include <rdma/peer_mem.h>\ncompilation terminated."
        ),
        "DOCA-OFED",
    ),
    (
        "peer_api_missing",
        'ERROR: modpost: "ib_register_peer_memory_client" [/root/nv_peer_memory/nv_peer_mem.ko] undefined!',
        "OFED",
    ),
    (
        "ofed_too_old",
        (
            "nv_peer_mem.c:441:37: error: variable \u2018nv_mem_client_ex\u2019 has initializer but incomplete type\n"
            "  441 | static struct peer_memory_client_ex nv_mem_client_ex = {"
        ),
        "newer OFED",
    ),
    (
        "ofed_too_old",
        "nv_peer_mem.c:441:37: error: storage size of \u2018struct peer_memory_client_ex\u2019 isn\u2019t known",
        "nv_peer_mem 1.1",
    ),
    (
        "nvidia_symbols_missing",
        'ERROR: "nvidia_p2p_get_pages" [/root/nv_peer_memory/nv_peer_mem.ko] undefined!',
        "driver",
    ),
    ("module_too_old", "FATAL: modpost: parse error in symbol dump file", "1.1 or newer"),
    (
        "module_too_old",
        (
            "DKMS make.log for nv_peer_mem-1.0-9 for kernel 5.10.0-30-amd64 (x86_64)\nSat Nov 21 17:00:00 UTC 2026\n"
            'ERROR: modpost: "ib_register_peer_memory_client" [/var/lib/dkms/x/nv_peer_mem.ko] undefined!'
        ),
        "peer_memory_source_ref_by_headers",
    ),
    (
        "module_too_old",
        (
            "make -C /lib/modules/6.8.0-45-generic/build  M=/var/lib/dkms/nv_peer_mem/1.0-9/build modules\n"
            'ERROR: modpost: "nvidia_p2p_get_pages" [nv_peer_mem.ko] undefined!'
        ),
        "1.3-0",
    ),
    (
        "gpl_only_symbol",
        "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol '__rcu_read_lock'",
        "open kernel modules",
    ),
    (
        "compiler_mismatch",
        "gcc: error: unrecognized command-line option \u2018-ftrivial-auto-var-init=zero\u2019",
        "/proc/version",
    ),
    (
        "api_changed",
        "nv_peer_mem.c:120:20: error: \u2018struct mm_struct\u2019 has no member named \u2018mmap_sem\u2019",
        "nvidia-peermem",
    ),
    ("api_changed", "nv_peer_mem.c:88:9: error: too few arguments to function 'get_user_pages'", "nvidia-peermem"),
    ("api_changed", "nv-p2p.h:30:10: fatal error: stdarg.h: No such file or directory", "nvidia-peermem"),
    ("disk_full", "/tmp/ccx1.s: fatal error: error writing to /tmp/ccx1.s: No space left on device", "df -h"),
]

LOADS = [
    (
        "other_rdma_stack",
        (
            "[ 4724.350512] nv_peer_mem: disagrees about version of symbol ib_register_peer_memory_client\n"
            "[ 4724.350513] nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err -22)"
        ),
        MODPROBE_INVALID,
        "/usr/src/ofa_kernel/default",
    ),
    (
        "peer_api_missing",
        "nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)",
        "",
        "systemctl restart openibd",
    ),
    (
        "other_rdma_stack",
        "[Tue Sep  8 17:16:02 2026] nvidia_peermem: disagrees about version of symbol ib_unregister_peer_memory_client",
        PEERMEM_INVALID,
        "dkms install --force nvidia",
    ),
    (
        "other_rdma_stack",
        "",
        (
            "depmod: WARNING: /lib/modules/3.10.0/extra/nv_peer_mem.ko disagrees about version of symbol "
            "ib_register_peer_memory_client"
        ),
        "make clean",
    ),
    (
        "other_driver",
        (
            "nv_peer_mem: disagrees about version of symbol nvidia_p2p_get_pages\n"
            "nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err -22)"
        ),
        "insmod: ERROR: could not insert module nv_peer_mem.ko: Invalid parameters",
        "Build the module again",
    ),
    (
        "other_kernel",
        "nv_peer_mem: disagrees about version of symbol module_layout",
        MODPROBE_INVALID,
        "dkms autoinstall",
    ),
    (
        "other_kernel",
        (
            "nv_peer_mem: version magic '3.10.0-957.el7.x86_64 SMP mod_unload modversions ' should be "
            "'3.10.0-1160.el7.x86_64 SMP mod_unload modversions '"
        ),
        "modprobe: ERROR: could not insert 'nv_peer_mem': Exec format error",
        "uname -r",
    ),
    (
        "peer_api_missing",
        "[Fri Feb 12 11:47:20 2021] nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)",
        MODPROBE_UNKNOWN,
        "modinfo -n ib_core",
    ),
    (
        "peer_api_missing",
        "nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err -2)",
        MODPROBE_UNKNOWN,
        "OFED",
    ),
    (
        "dependency_not_loaded",
        "nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err 0)",
        "insmod: ERROR: could not insert module nv_peer_mem.ko: Unknown symbol in module",
        "modprobe -a ib_core nvidia",
    ),
    ("symbol_missing", "nv_peer_mem: Unknown symbol get_user_pages_remote (err -2)", MODPROBE_UNKNOWN, "Build"),
    (
        "gpl_only_symbol",
        (
            "nv_peer_mem: module using GPL-only symbols uses symbols nvidia_p2p_get_pages from proprietary module "
            "nvidia.\n"
            "nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err -2)"
        ),
        MODPROBE_UNKNOWN,
        "open kernel modules",
    ),
    (
        "gpl_only_symbol",
        "nv_peer_mem: module using GPL-only symbols uses symbols from proprietary module nvidia.",
        MODPROBE_UNKNOWN,
        "open kernel modules",
    ),
    ("secure_boot", "", "modprobe: ERROR: could not insert 'nv_peer_mem': Required key not available", "mokutil"),
    ("secure_boot", "", "modprobe: ERROR: could not insert 'nvidia_peermem': Key was rejected by service", "mokutil"),
    ("secure_boot", "Loading of unsigned module is rejected", "", "mokutil"),
    (
        "secure_boot",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
        "modprobe: ERROR: could not insert 'nv_peer_mem': Operation not permitted",
        "mokutil",
    ),
    (
        "other_module_loaded",
        "nv_peer_mem: nv_mem_client_init -- error while registering client",
        MODPROBE_INVALID,
        "Use only one",
    ),
    (
        "other_module_loaded",
        "sysfs: cannot create duplicate filename '/kernel/mm/memory_peers/nv_mem'",
        MODPROBE_INVALID,
        "Use only one",
    ),
    ("already_loaded", "", "insmod: ERROR: could not insert module nv_peer_mem.ko: File exists", "modprobe -r"),
    (
        "held_by_peer_memory",
        "",
        "rmmod: ERROR: Module ib_uverbs is in use by: nvidia_peermem",
        "modprobe -r nvidia_peermem",
    ),
    ("module_in_use", "", "rmmod: ERROR: Module nv_peer_mem is in use", "lsmod"),
    ("module_in_use", "", "modprobe: FATAL: Module nvidia_peermem is in use.", "lsmod"),
    (
        "module_missing",
        "",
        "modprobe: FATAL: Module nv_peer_mem not found in directory /lib/modules/6.1.0-13-amd64",
        "dkms autoinstall -k 6.1.0-13-amd64",
    ),
    (
        "module_missing",
        "",
        "modprobe: FATAL: Module nvidia-peermem not found in directory /lib/modules/5.15.0-91-generic",
        "driver",
    ),
    ("module_missing", "", "insmod: ERROR: could not load module nv_peer_mem.ko: No such file or directory", "Build"),
    (
        "nvidia_driver_missing",
        "",
        "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1.0-13-amd64",
        "Install the driver",
    ),
    ("no_gpu", "NVRM: No NVIDIA GPU found.", "modprobe: ERROR: could not insert 'nvidia': No such device", "lspci"),
    ("load_hangs", "INFO: task modprobe:4242 blocked for more than 120 seconds.", "", "reboot"),
    ("load_hangs", "", "gpu-peermem.service: start operation timed out. Terminating.", "openibd"),
    ("wrong_format", "", "modprobe: ERROR: could not insert 'nv_peer_mem': Exec format error", "vermagic"),
    ("not_permitted", "", "modprobe: ERROR: could not insert 'nv_peer_mem': Operation not permitted", "root"),
]


@pytest.mark.parametrize(("cause", "make", "remedy"), BUILDS)
def test_failed_builds_are_diagnosed(cause, make, remedy):
    ended = make + "\nmake[1]: *** [Makefile:52: nv_peer_mem.o] Error 1\nmake: *** [Makefile:40: all] Error 2\n"

    diagnosis = diagnose(make=ended)

    assert diagnosis.cause == cause
    assert remedy in diagnosis.remedy


@pytest.mark.parametrize(("cause", "dmesg", "modprobe", "remedy"), LOADS)
def test_failed_loads_are_diagnosed(cause, dmesg, modprobe, remedy):
    """Kernel messages take precedence over modprobe's, and harmless messages are ignored."""
    diagnosis = diagnose(dmesg=TAINTS + dmesg, modprobe=modprobe)

    assert diagnosis.cause == cause
    assert remedy in diagnosis.remedy
    assert diagnosis.evidence in dmesg + modprobe


@pytest.mark.parametrize(
    "built",
    [
        "nv_peer_mem/1.1-0 for kernel 6.1.0-9-amd64",
        "nv_peer_mem-1.0-9 for kernel 4.18.0-553.el8.x86_64",
        "nv_peer_mem-1.0-9 for kernel 5.3.18-24-default",
        "nv_peer_mem-1.0-9",
        "other-1.0-9 for kernel 6.1.0-9-amd64",
    ],
)
def test_only_version_1_0_on_a_newer_kernel_is_too_old(built):
    """With another version or an older kernel, the symbol is missing for lack of the RDMA stack."""
    undefined = 'ERROR: modpost: "ib_register_peer_memory_client" [nv_peer_mem.ko] undefined!'

    assert diagnose(make=f"{built}\n{undefined}").cause == "peer_api_missing"


def test_version_1_0_can_fail_for_other_reasons():
    built = "DKMS make.log for nv_peer_mem-1.0-9 for kernel 6.1.0-9-amd64 (x86_64)"

    assert diagnose(make=f"{built}\nas: No space left on device").cause == "disk_full"
    assert diagnose(make=f"{built}\nfatal error: rdma/peer_mem.h: No such file").cause == "peer_api_missing"


def test_causes_take_precedence_over_their_consequences():
    """A build with harmless warnings ends at a missing header; modprobe's error only follows from it."""
    diagnosis = diagnose(
        make=(
            "warning: the compiler differs from the one used to build the kernel\n"
            "Warning: nv-p2p.h was not found on the system, will use compat_nv-p2p.h\n"
            "Skipping BTF generation for nvidia.ko due to unavailability of vmlinux\n"
            "nv_peer_mem.c:52:10: fatal error: rdma/peer_mem.h: No such file or directory\n"
            "make: *** [Makefile:40: all] Error 2"
        ),
        dmesg=TAINTS,
        modprobe="modprobe: FATAL: Module nv_peer_mem not found in directory /lib/modules/5.15.0-91-generic",
    )

    assert diagnosis.cause == "peer_api_missing"
    assert "rdma/peer_mem.h" in diagnosis.evidence


def test_a_rejected_symbol_takes_precedence_over_a_missing_one():
    """The kernel logs why it rejects a symbol, then reports it as unknown; in either order."""
    why = "nv_peer_mem: module using GPL-only symbols uses symbols nvidia_p2p_get_pages from proprietary module nvidia."
    then = "nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err -2)"

    assert {diagnose(dmesg=f"{a}\n{b}").cause for a, b in ((why, then), (then, why))} == {"gpl_only_symbol"}


def test_symbols_of_other_modules_are_ignored():
    diagnosis = diagnose(
        dmesg="snd_hda: disagrees about version of symbol module_layout\nnvme_rdma: Unknown symbol rdma_bind (err 0)",
        modprobe=MODPROBE_INVALID,
    )

    assert diagnosis.cause == UNKNOWN


def test_a_silent_rejection_of_nvidia_peermem_has_its_own_cause():
    diagnosis = diagnose(
        dmesg=TAINTS.replace("nv_peer_mem", "nvidia_peermem") + "eth0: link up", modprobe=PEERMEM_INVALID
    )

    assert diagnosis.cause == "peermem_without_api"
    assert "built anew" not in diagnosis.explanation
    assert "OFED first" in diagnosis.remedy


@pytest.mark.parametrize(
    ("dmesg", "modprobe"),
    [
        pytest.param(None, PEERMEM_INVALID, id="the kernel's log could not be read"),
        pytest.param(
            "nvidia-peermem nv_mem_client_init:700 ERROR something new",
            PEERMEM_INVALID,
            id="the kernel logged an error",
        ),
        pytest.param("", MODPROBE_INVALID, id="nv_peer_mem"),
    ],
)
def test_silence_is_not_assumed_without_a_kernel_log(dmesg, modprobe):
    """It needs nvidia-peermem and a kernel log without messages."""
    diagnosis = diagnose(dmesg=dmesg, modprobe=modprobe)

    assert diagnosis.cause == UNKNOWN
    assert modprobe in diagnosis.evidence


def test_unknown_failures_show_their_evidence():
    diagnosis = diagnose(
        make="  CC [M]  nv_peer_mem.o\nerror: the moon is full\nmake[1]: Leaving directory 'x'\nmake: *** [a] Error 2",
        dmesg="[1.0] usb 1-1: new device\n[2.0] nv_peer_mem: the moon is full",
        modprobe="modprobe: ERROR: could not insert 'nv_peer_mem': Bad moon",
    )

    assert (diagnosis.cause, "not known" in diagnosis.explanation) == (UNKNOWN, True)
    assert diagnosis.evidence.splitlines() == [
        "error: the moon is full",
        "[2.0] nv_peer_mem: the moon is full",
        "modprobe: ERROR: could not insert 'nv_peer_mem': Bad moon",
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "\x00\x1b[31m", "x" * 100_000])
def test_no_input_raises(text):
    assert diagnose(make=text, dmesg=text, modprobe=text).cause == UNKNOWN


def test_every_cause_has_its_own_text():
    """Every symptom has explanation and remedy, and every placeholder has a value."""
    for symptom in (*_SYMPTOMS, _STUB):
        names = {
            name for text in (symptom.explanation, symptom.remedy) for _, name, _, _ in string.Formatter().parse(text)
        }
        given = {"kernel", "module", "symbol", "users", *kernel_module_failures.re.compile(symptom.pattern).groupindex}

        assert names - {None} <= given, symptom.cause
        assert symptom.explanation.endswith(".")
        assert symptom.remedy
    assert len(set(CAUSES)) == len(CAUSES)
    assert UNKNOWN not in CAUSES


def test_every_cause_has_a_test_case():
    assert {case[0] for case in (*BUILDS, *LOADS)} | {"peermem_without_api"} == set(CAUSES)


def test_roles_and_checks_share_the_table():
    path = ROLES / "platform" / "module_utils" / "platform_kernel_module_failures.py"
    on_node = load("platform", path.stem, part="module_utils")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        name.partition(".")[0]
        for item in ast.walk(tree)
        if isinstance(item, ast.Import | ast.ImportFrom)
        for name in ([item.module or ""] if isinstance(item, ast.ImportFrom) else [alias.name for alias in item.names])
    }

    assert path.resolve() == Path(kernel_module_failures.__file__).resolve()
    assert imported <= sys.stdlib_module_names
    assert on_node.diagnose(modprobe="rmmod: ERROR: Module nv_peer_mem is in use")._asdict()["cause"] == "module_in_use"
