"""Versions of the training software in an image, and of the drivers on its host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

THINGS = (
    *("os", "python", "torch", "cuda", "cudnn", "nccl", "mpi", "horovod", "lightcc"),
    *("ofed", "rdma-core", "rdma-driver", "sshd"),
)
"""In display order. ``rdma-driver``: in an image, the cards that it has libraries for; on a host, the kernel drivers of
its cards."""

_PYTHON = """
import sys
print("python=" + sys.version.split()[0])
try:
    import torch
    print("torch=" + torch.__version__)
    print("cuda=" + str(torch.version.cuda or ""))
    print("cudnn=" + str(torch.backends.cudnn.version() or ""))
    if torch.version.cuda:
        version = torch.cuda.nccl.version()
        print("nccl=" + (".".join(map(str, version)) if isinstance(version, tuple) else str(version)))
except Exception:
    pass
try:
    from importlib.metadata import version
    for name in ("horovod", "lightcc"):
        try:
            print(name + "=" + version(name))
        except Exception:
            pass
except ImportError:
    pass
"""

HOST_SCRIPT = """
ofed=$(ofed_info -n 2>/dev/null) || ofed=
echo "ofed=$ofed"
version=$( (dpkg-query -W -f '${Version}' rdma-core || rpm -q --qf '%{VERSION}' rdma-core) 2>/dev/null) || version=
echo "rdma-core=$version"
"""
"""A shell script for a host or the inside of an image."""

CARDS_SCRIPT = """
drivers=
for device in /sys/class/infiniband/*; do
  [ -e "$device" ] || continue
  name=$(readlink "$device/device/driver") || { [ -e "$device/parent" ] && name=rxe; } || continue
  name=${name##*/}; name=${name%_core}
  case ",$drivers," in *",$name,"*) ;; *) drivers=$drivers${drivers:+,}$name;; esac
done
echo "rdma-driver=$drivers"
"""
"""A shell script for a host that prints the drivers of its RDMA devices, named like their libraries."""

_LIBRARIES = """
drivers=
for file in /etc/libibverbs.d/*.driver; do
  name=${file##*/}; name=${name%.driver}
  case $name in mlx4|mlx5|irdma|bnxt_re|efa|hns|erdma|rxe|siw) drivers=$drivers${drivers:+,}$name;; esac
done
echo "rdma-driver=$drivers"
"""

IMAGE_SCRIPT = (
    """
[ ! -r /etc/os-release ] || . /etc/os-release
echo "os=$PRETTY_NAME"
mpi=$(mpirun --version 2>/dev/null | head -n 1) || mpi=
echo "mpi=$mpi"
command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ] && echo "sshd=yes"
[ ! -r /usr/local/cuda/version.txt ] || echo "cuda=$(sed -n 's/^CUDA Version //p' /usr/local/cuda/version.txt)"
"""
    + HOST_SCRIPT
    + _LIBRARIES
    + f"""
python=$(command -v python3 || command -v python) || exit 0
"$python" - 2>/dev/null <<'PROGRAM'
{_PYTHON}
PROGRAM
exit 0
"""
)
"""A shell script for the inside of an image."""


@dataclass(frozen=True)
class ImageContents:
    """Component -> version; missing components have no entry."""

    versions: Mapping[str, str]


def image_contents(text: str) -> ImageContents:
    """Parse the output of the scripts; the last non-empty value of a component counts."""
    versions: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name in THINGS and value.strip():
            versions[name] = value.strip()
    return ImageContents(versions)


def mismatch(image: ImageContents, host: ImageContents) -> str:
    """Return how the image's RDMA libraries differ from the host's driver; empty if they match or are unknown."""
    available, needed = (contents.versions.get("rdma-driver", "").split(",") for contents in (image, host))
    lacking = [name for name in needed if name and name not in available]
    if lacking and image.versions:
        return f"the image has no library for the RDMA driver {', '.join(lacking)} and would use TCP there"
    inside, outside = (_release(contents.versions.get("ofed", "")) for contents in (image, host))
    if inside and outside and inside != outside:
        return f"the image has OFED {inside}, the host OFED {outside}"
    if inside and not outside and host.versions:
        return f"the image has OFED {inside}, the host the distribution's own RDMA drivers"
    return ""


def _release(text: str) -> str:
    match = re.search(r"\d{1,9}\.\d{1,9}", text)
    return match[0] if match else ""
