"""SIMULATED kernel modules: RDMA stacks with peer memory, a GPU driver, and nv_peer_mem's source tree.

All are marked as SIMULATED in ``modinfo`` and dmesg, but they are real modules: nodes build them with DKMS, their
symbols have checksums that can differ, they load or fail to load, and a reboot unloads them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.errors import LabError
from provision.lab.marks import mark
from provision.lab.package_managers import APT, DNF, PackageManager
from provision.lab.services.stand_in import StandIn
from provision.resources import package_path

GIT_FOLDER = "git/nv_peer_memory.git"
"""The path of nv_peer_mem's git repository below the URL of the lab's repository."""

_FILES = package_path("lab", "files", "kernel")
_AUTHOR = "provision lab <root@localhost> 1704067200 +0000"

_OLD_MEMBERS = """\
	void *(*get_context_private_data)(u64 peer_id);
	void (*put_context_private_data)(void *context);
"""
_EXTENSION = """
enum { PEER_MEM_INVALIDATE_UNMAPS = 1 << 0 };

struct peer_memory_client_ex {
	struct peer_memory_client client;
	size_t ex_size;
	u32 flags;
};
"""


@dataclass(frozen=True)
class _Module:
    """A package of DKMS sources."""

    package: str
    dkms_name: str
    mark: str
    """The name under which it is marked as SIMULATED for `verify`."""
    version: str
    """The version in DKMS and modinfo; that of the package ends in ``~simulated``."""
    summary: str
    folder: str
    tree: Mapping[str, str]
    """Path in the source tree -> file below ``files/kernel/FOLDER``."""
    replacements: Mapping[str, str]
    """Placeholder between @ signs in the sources -> its replacement."""
    fields: Mapping[str, str] = field(default_factory=dict)
    leftovers: str = ""
    """A folder that the build creates and the removal of the package deletes."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Additional files: path on the node -> content."""


_OFED_INFO = """\
#!/bin/sh
# SIMULATED: says which RDMA stack is installed, as the real one's program does.
echo "MLNX_OFED_LINUX-{version}-0.0.0.0-simulated:"
"""
_OFED_TREE = {
    "Makefile": "Makefile",
    "dkms.conf": "dkms.conf",
    "publish": "publish",
    "ib_peer_mem.c": "ib_peer_mem.c",
    "include/rdma/peer_mem.h": "peer_mem.h",
}
_NVIDIA_TREE = {
    "Makefile": "Makefile",
    "dkms.conf": "dkms.conf",
    "nvidia.c": "nvidia.c",
    "nvidia-peermem.c": "nvidia-peermem.c",
    "nvidia/nv-p2p.h": "nv-p2p.h",
}


def _ofed(version: str, members: str, extension: str, name: str = "mlnx-ofed-kernel") -> _Module:
    return _Module(
        package=f"{name}-dkms",
        dkms_name=name,
        mark=name,
        version=version,
        summary=f"kernel half of an RDMA stack with peer memory, as OFED {version}",
        folder="mlnx_ofed",
        tree=_OFED_TREE,
        replacements={"NAME": name, "VERSION": version, "MEMBERS": members, "EXTENSION": extension},
        leftovers="/usr/src/ofa_kernel",
        files={"/usr/bin/ofed_info": _OFED_INFO.format(version=version)},
    )


def _nvidia(package: str, driver: str, flavour: str, licence: str, members: str) -> _Module:
    return _Module(
        package=package,
        dkms_name="nvidia",
        mark="nvidia-driver",
        version=driver,
        summary=f"kernel modules of GPU driver {driver}, {'open' if 'GPL' in licence else 'proprietary'}",
        folder="nvidia",
        tree=_NVIDIA_TREE,
        replacements={"DRIVER": driver, "FLAVOUR": flavour, "LICENSE": licence, "MEMBERS": members},
        fields={"Provides": "nvidia-kernel-simulated", "Conflicts": "nvidia-kernel-simulated"},
    )


# The second stack and the second driver have other structures and thus other checksums, so that they refuse modules
# built against the first.
_MODULES = (
    _ofed("4.9", _OLD_MEMBERS, ""),
    _ofed("5.8", "", _EXTENSION),
    _nvidia("nvidia-kernel-dkms", "535.183.06", "x86_64", "NVIDIA", ""),
    _nvidia("nvidia-open-kernel-dkms", "550.163.01", "Open", "Dual MIT/GPL", "\tu8 *gpu_uuid;\n\tu32 flags;\n"),
)

_POSTINST = """\
#!/bin/sh
set -e
[ "$1" != configure ] || /usr/lib/dkms/common.postinst {name} {version} /usr/share/{package} "" "$2"
"""
_RPM_POSTINST = """\
dkms add -m {name} -v {version} --rpm_safe_upgrade >/dev/null || :
[ ! -e /lib/modules/$(uname -r)/build ] || dkms install -m {name} -v {version} || :
"""
_PRERM = """\
#!/bin/sh
set -e
dkms remove -m {name} -v {version} --all || true
{clean}
"""

_TREES = {
    "1.0-9": "/usr/src/ofa_kernel/$(KVER) /usr/src/ofa_kernel/default",
    "1.1-0": "/usr/src/ofa_kernel/$(KVER) /usr/src/ofa_kernel/default",
    "1.3-0": "/usr/src/ofa_kernel/$(shell uname -m)/$(KVER) /usr/src/ofa_kernel/$(KVER) /usr/src/ofa_kernel/default",
}
_BUILD = (
    "\t$(MAKE) -C $(KDIR) M=$(CURDIR) OFA_KERNEL=$(OFA_KERNEL) NVIDIA=$(NVIDIA)"
    " KBUILD_EXTRA_SYMBOLS=$(CURDIR)/my.symvers modules\n"
)
_SYMVERS = {
    # The oldest version passes the checksums in a way that newer kernels ignore, like the real one.
    "1.0-9": (
        "\tcat nv.symvers $(OFA_KERNEL)/Module.symvers >Module.symvers\n"
        "\t$(MAKE) -C $(KDIR) M=$(CURDIR) OFA_KERNEL=$(OFA_KERNEL) NVIDIA=$(NVIDIA) modules\n"
    ),
    "1.1-0": "\tcat nv.symvers $(OFA_KERNEL)/Module.symvers >my.symvers\n" + _BUILD,
    "1.3-0": "\tcat nv.symvers $(OFA_KERNEL)/Module.symvers >my.symvers\n" + _BUILD,
}
_CLIENTS = {"1.0-9": "one_client.c", "1.1-0": "one_client.c", "1.3-0": "two_clients.c"}

PEER_MEMORY_TAGS = tuple(_TREES)
"""The tags in nv_peer_mem's history, oldest first."""


@dataclass(frozen=True)
class _Doca:
    """The stand-ins for a release of DOCA: names and versions of the packages for a package manager."""

    version: str
    ofed: str
    """The version of its kernel modules."""
    modules: str
    """The name of the modules in DKMS."""
    service: str
    """The package with openibd."""
    unit_folder: str


_DOCA: Mapping[PackageManager, _Doca] = {
    APT: _Doca("2.9.0", "24.10", "mlnx-ofed-kernel", "mlnx-ofed-kernel-utils", "/lib/systemd/system"),
    DNF: _Doca("3.2.2", "25.10", "mlnx-ofa_kernel", "mlnx-ofa_kernel", "/usr/lib/systemd/system"),
}
"""The default releases of Debian 12, and of Enterprise Linux."""
DOCA_VERSION = {manager: doca.version for manager, doca in _DOCA.items()}
EL_KERNEL = "5.14.0-427.13.1.el9_4"
"""The kernel whose headers are SIMULATED; its release ends in the architecture."""
_KERNEL_FOLDER = f"/usr/src/kernels/{EL_KERNEL}.x86_64"
_KERNEL_MAKEFILE = """\
# SIMULATED headers of a kernel: nothing is compiled, and a module is a text that no kernel loads.
modules:
\ttouch $(M)/Module.symvers
\tfor source in $(M)/*.c; do echo "SIMULATED: built from $$source" >"$${source%.c}.ko"; done
clean:
\trm -f $(M)/*.ko $(M)/Module.symvers
"""
_OFED_UNIT = """\
# SIMULATED: loads the RDMA stack at boot, as the real one does.
[Unit]
Description=SIMULATED openibd - loads the modules of an RDMA stack
Before=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/init.d/openibd start
ExecStop=/etc/init.d/openibd stop

[Install]
WantedBy=sysinit.target
"""
_OFED_SCRIPT = """\
#!/bin/sh
# SIMULATED: loads and unloads the modules of a vendor's RDMA stack.
case "$1" in
  start) modprobe ib_core && modprobe ib_peer_mem ;;
  stop) ! [ -d /sys/module/ib_peer_mem ] || rmmod ib_peer_mem ;;
  restart) "$0" stop && "$0" start ;;
  status) lsmod | grep ib_peer_mem ;;
esac
"""
_FIRMWARE_SCRIPT = """\
#!/bin/sh
# SIMULATED: the real one updates the firmware of the cards when it is installed, unless this variable says no.
case "$1" in
  configure|1|2) [ "$RUN_FW_UPDATER" = no ] || : >/var/lib/provision-lab-firmware-updated ;;
esac
"""
_FOREIGN_DKMS = """\
#!/bin/sh
# SIMULATED: the dkms of the vendor's repository, which nothing may install in place of the distribution's.
echo 'SIMULATED dkms of the vendor: not the one of the distribution' >&2
exit 1
"""


def doca_stand_ins(manager: PackageManager = APT) -> list[StandIn]:
    """Return the packages of DOCA's repository: a profile, modules, service and scripts, and a dkms of its own.

    The real profile has more packages, among them an rdma-core; here the distribution's is used.
    """
    doca = _DOCA[manager]
    module = _ofed(doca.ofed, "", _EXTENSION, doca.modules)
    info = module.files["/usr/bin/ofed_info"].replace("MLNX_OFED_LINUX", "OFED-internal")
    version = f"{doca.ofed}.OFED.{doca.ofed}.0.7.0.1~simulated"
    names = (module.package, doca.service, "ofed-scripts")
    profile = {"Depends": ", ".join([*(f"{name} (= {version})" for name in names), "mlnx-fw-updater", "rdma-core"])}
    modules = replace(_package(replace(module, files={})), version=version)
    if manager is DNF:
        post = _RPM_POSTINST.format(name=module.dkms_name, version=module.version)
        modules = replace(modules, scripts={**modules.scripts, "postinst": post})
    return [
        modules,
        StandIn(
            doca.service,
            version,
            "service of an RDMA stack",
            {
                f"{doca.unit_folder}/openibd.service": _OFED_UNIT,
                "/etc/init.d/openibd": _OFED_SCRIPT,
                **mark("openibd", "openibd, the service of the RDMA stack"),
            },
        ),
        StandIn(
            "ofed-scripts",
            version,
            "scripts of an RDMA stack",
            {"/usr/bin/ofed_info": info, **mark("ofed-scripts", "ofed_info: which RDMA stack is installed")},
        ),
        StandIn(
            "doca-ofed",
            f"{doca.version}-000001~simulated",
            "profile of DOCA with the RDMA stack",
            mark("doca-ofed", "DOCA-OFED: a profile of stand-ins"),
            profile,
        ),
        StandIn(
            "mlnx-ofed-all",
            f"{doca.ofed}-0.7.0.0~simulated",
            "all packages of MLNX_OFED",
            mark("mlnx-ofed-all", "MLNX_OFED: a profile of stand-ins"),
            profile,
        ),
        StandIn(
            "mlnx-fw-updater",
            f"{doca.ofed}-0.7.0.0~simulated",
            "firmware of RDMA cards",
            mark("mlnx-fw-updater", "the firmware of RDMA cards: there is none"),
            {},
            {"postinst": _FIRMWARE_SCRIPT},
        ),
        StandIn("dkms", "99~simulated", "the dkms of the vendor's repository", {"/usr/sbin/dkms": _FOREIGN_DKMS}),
    ]


def kernel_headers() -> StandIn:
    """Return the headers of a kernel of Enterprise Linux, with which DKMS builds without a compiler."""
    return StandIn(
        "kernel-devel",
        EL_KERNEL,
        "headers of a kernel, without a compiler",
        {
            f"{_KERNEL_FOLDER}/Makefile": _KERNEL_MAKEFILE,
            f"{_KERNEL_FOLDER}/include/config/kernel.release": f"{EL_KERNEL}.x86_64\n",
            **mark("kernel-devel", f"headers of kernel {EL_KERNEL}.x86_64: modules are texts that no kernel loads"),
        },
        {"Architecture": "x86_64"},
    )


def kernel_stand_ins() -> list[StandIn]:
    """Return the packages of DKMS sources: two RDMA stacks with one name, and two flavours of the GPU driver."""
    return [_package(module) for module in _MODULES]


def peer_memory_tree(tag: str) -> dict[str, str]:
    """Return nv_peer_mem's source tree at `tag`: path -> content."""
    version = tag.partition("-")[0]
    replacements = {
        "VERSION": version,
        "TREES": _TREES[tag],
        "SYMVERS": _SYMVERS[tag],
        "CLIENTS": _text("nv_peer_mem", _CLIENTS[tag], {"VERSION": version}),
    }
    names = ("Makefile", "create_nv.symvers.sh", "nv_peer_mem.c")
    return {name: _text("nv_peer_mem", name, replacements) for name in names}


def build_git(folder: Path) -> None:
    """Create a bare repository in `folder` with one commit and tag per version, to be served over plain HTTP.

    Raises:
        LabError: git is missing or failed.
    """
    if shutil.which("git") is None:
        raise LabError(
            "git is not installed; it is required to publish nv_peer_mem's sources",
            remedy="Run: apt-get install --no-install-recommends git",
        )
    _git(["init", "--quiet", "--bare", "--initial-branch=master", str(folder)])
    _git(["-C", str(folder), "fast-import", "--quiet"], git_history().encode())
    _git(["-C", str(folder), "update-server-info"])


def git_history() -> str:
    """Return the whole history as input for ``git fast-import``; equal texts give equal commits."""
    stream = ""
    for tag in PEER_MEMORY_TAGS:
        stream += f"commit refs/heads/master\ncommitter {_AUTHOR}\n{_data(f'SIMULATED nv_peer_mem {tag}')}deleteall\n"
        for path, text in peer_memory_tree(tag).items():
            stream += f"M {'100755' if path.endswith('.sh') else '100644'} inline {path}\n{_data(text)}"
        stream += f"reset refs/tags/{tag}\nfrom refs/heads/master\n\n"
    return stream


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"


def _git(arguments: list[str], data: bytes = b"") -> None:
    done = subprocess.run(["git", *arguments], input=data, capture_output=True, check=False)
    if done.returncode:
        raise LabError("git failed on nv_peer_mem's sources", output=done.stderr.decode(errors="replace"))


def _package(module: _Module) -> StandIn:
    version = f"{module.version}~simulated"
    source = f"/usr/src/{module.dkms_name}-{module.version}"
    replacements = {
        "name": module.dkms_name,
        "version": module.version,
        "package": module.package,
        "clean": f"rm -rf {module.leftovers}" if module.leftovers else "exit 0",
    }
    files = {f"{source}/{path}": _text(module.folder, name, module.replacements) for path, name in module.tree.items()}
    return StandIn(
        module.package,
        version,
        module.summary,
        {**files, **module.files, **mark(module.mark, f"{module.summary}: it drives no hardware")},
        {"Depends": "dkms", **module.fields},
        {"postinst": _POSTINST.format(**replacements), "prerm": _PRERM.format(**replacements)},
    )


def _text(folder: str, name: str, replacements: Mapping[str, str]) -> str:
    text = (_FILES / folder / name).read_text(encoding="utf-8")
    for word, value in replacements.items():
        text = text.replace(f"@{word}@", value)
    return text
