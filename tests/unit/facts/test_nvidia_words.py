"""Words of NVIDIA's own programs and sources, version 535.261.03, on a machine without a GPU."""

from __future__ import annotations

from provision.facts import RawOutput, Unknown
from provision.facts.gpu import GpusFact
from provision.facts.kernel_module_failures import compiler_line, diagnose
from provision.facts.nvidia_driver import NvidiaDriverFact
from provision.facts.peer_modules import NvidiaModulesFact

MODINFO = {
    "filename": "/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open.ko",
    "version": "535.261.03",
    "license": "Dual MIT/GPL",
    "srcversion": "B5C8059AF6B6CFDF45E832F",
    "signer": "DKMS module signing key",
}
"""Of the open module, built with the headers of Debian 12."""
NO_LIBRARY = """\
NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is \
properly installed and present in your system.
Please also try adding directory that contains libnvidia-ml.so to your system PATH.
"""
BUILD = """\
tree=nvidia-current-open 535.261.03 no
make=/build/conftest/functions.h:75:2: error: #error dma_buf_export() conftest failed!
make=/build/conftest/functions.h:88:2: error: #error wait_on_bit_lock() conftest failed!
make=/build/conftest/functions.h:91:2: error: #error radix_tree_replace_slot() conftest failed!
make=/build/common/inc/nv_stdarg.h:33:14: fatal error: stdarg.h: No such file or directory
make=make[2]: *** [/usr/src/linux-headers-6.1.0-50-common/scripts/Makefile.build:255: /build/nvidia/nv.o] Error 1
make=make[1]: *** [/usr/src/linux-headers-6.1.0-50-common/Makefile:2050: /build] Error 2
make=make: *** [Makefile:137: modules] Error 2
"""
"""A build with headers of another kernel than that of its configuration."""
INSTALL_LINE = """\
modprobe: ERROR: could not insert 'nvidia_current_open': No such device
modprobe: ERROR: ../libkmod/libkmod-module.c:1084 command_do() Error running install command 'modprobe -i \
nvidia-current-open ' for module nvidia: retcode 1
modprobe: ERROR: could not insert 'nvidia': Invalid argument
"""
"""modprobe follows Debian's `install` line for nvidia."""


def test_the_open_module_of_debian_is_the_driver() -> None:
    """Its file has another name than the module."""
    lines = [f"nvidia-current-open.{key}={value}" for key, value in MODINFO.items()]
    install = "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS"
    modules = NvidiaModulesFact().parse(RawOutput("\n".join([*lines, install, "dkms=yes"]), 0))

    assert (modules.loaded, modules.installed, modules.flavor) == ("", "535.261.03", "open")
    assert modules.signers == {"nvidia": "DKMS module signing key"}


def test_a_tool_without_its_library_is_a_failure() -> None:
    """A driver whose packages are incomplete; the tool exits with 12."""
    gpus = GpusFact().parse(RawOutput(NO_LIBRARY, 12))

    assert isinstance(gpus, Unknown)
    assert "libnvidia-ml.so" in gpus.reason


def test_a_failed_build_is_named_by_the_first_line_of_the_compiler() -> None:
    """The cause is read from all lines."""
    [tree] = NvidiaDriverFact().parse(RawOutput(BUILD, 0)).trees

    assert (tree.name, tree.version, tree.built) == ("nvidia-current-open", "535.261.03", False)
    assert compiler_line(tree.errors).endswith("error: #error dma_buf_export() conftest failed!")
    assert diagnose(make="\n".join(tree.errors)).cause == "api_changed"


def test_a_build_can_end_without_an_error_of_the_compiler() -> None:
    """make itself has nothing to do, for example."""
    line = "make: *** No rule to make target 'modules'.  Stop."

    assert compiler_line((line,)) == ""
    assert diagnose(make=line).cause == "kernel_headers_missing"


def test_a_module_without_a_device_has_that_cause() -> None:
    """By the words of modprobe alone, or of the kernel."""
    assert diagnose(modprobe=INSTALL_LINE).cause == "no_gpu"
    assert diagnose(dmesg="[   11.9] NVRM: No NVIDIA GPU found.").cause == "no_gpu"
    assert diagnose(modprobe="modprobe: ERROR: could not insert 'nvidia_peermem': No such device").cause != "no_gpu"
