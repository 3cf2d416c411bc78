"""What of a training job's software an image has, and the host beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CARDS_SCRIPT", "HOST_SCRIPT", "IMAGE_SCRIPT", "THINGS", "ImageContents", "image_contents", "mismatch"]

THINGS = (
    *("os", "python", "torch", "cuda", "cudnn", "nccl", "mpi", "horovod", "lightcc"),
    *("ofed", "rdma-core", "rdma-driver", "sshd"),
)
"""In the order in which they are shown. ``rdma-driver``: of an image, the cards for which it has libraries; of a host,
the kernel's drivers of its cards."""

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
"""A shell script for a host, or the inside of an image."""

CARDS_SCRIPT = """
found=
for device in /sys/class/infiniband/*; do
  [ -e "$device" ] || continue
  name=$(readlink "$device/device/driver") || { [ -e "$device/parent" ] && name=rxe; } || continue
  name=${name##*/}; name=${name%_core}
  case ",$found," in *",$name,"*) ;; *) found=$found${found:+,}$name;; esac
done
echo "rdma-driver=$found"
"""
"""A shell script for a host: the drivers of its RDMA devices, as their libraries are called."""

_LIBRARIES = """
found=
for file in /etc/libibverbs.d/*.driver; do
  name=${file##*/}; name=${name%.driver}
  case $name in mlx4|mlx5|irdma|bnxt_re|efa|hns|erdma|rxe|siw) found=$found${found:+,}$name;; esac
done
echo "rdma-driver=$found"
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
    """What was found; what is not there is missing."""

    versions: Mapping[str, str]


def image_contents(text: str) -> ImageContents:
    """Read what the scripts printed; the last that is said of a thing counts, empty ones are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name in THINGS and value.strip():
            found[name] = value.strip()
    return ImageContents(found)


def mismatch(image: ImageContents, host: ImageContents) -> str:
    """Return what does not fit between an image's RDMA libraries and the host's driver; empty when nothing is known."""
    has, needed = (one.versions.get("rdma-driver", "").split(",") for one in (image, host))
    lacking = [name for name in needed if name and name not in has]
    if lacking and image.versions:
        return f"the image has no library for RDMA cards of the kind {', '.join(lacking)}, and goes by TCP there"
    inside, outside = (_release(one.versions.get("ofed", "")) for one in (image, host))
    if inside and outside and inside != outside:
        return f"the image has OFED {inside}, the host OFED {outside}"
    if inside and not outside and host.versions:
        return f"the image has OFED {inside}, the host the distribution's own RDMA drivers"
    return ""


def _release(text: str) -> str:
    match = re.search(r"\d{1,9}\.\d{1,9}", text)
    return match[0] if match else ""
