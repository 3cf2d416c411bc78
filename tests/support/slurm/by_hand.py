"""Configures Slurm on lab nodes by hand: the first is the controller and a compute node, the others are configless.

The GPUs are device files without a driver (SIMULATED), as the lab's stand-in of nvidia-smi.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = "munge slurmd slurm-client"
_INSTALL = """set -e
export DEBIAN_FRONTEND=noninteractive
if ! dpkg -s {first} >/dev/null 2>&1; then
  apt-get update -qq >/dev/null
  apt-get install -y -qq --no-install-recommends {packages} >/dev/null 2>&1
fi
mkdir -p /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm /etc/slurm
chown slurm: /var/lib/slurm/slurmctld /var/log/slurm
for minor in $(seq 0 {last}); do [ -e /dev/nvidia$minor ] || mknod -m 666 /dev/nvidia$minor c 195 $minor; done
"""
_CONFIGLESS = """set -e
mkdir -p /etc/systemd/system/slurmd.service.d
printf '[Unit]\\nConditionPathExists=\\n' >/etc/systemd/system/slurmd.service.d/configless.conf
printf 'SLURMD_OPTIONS="--conf-server {controller}:6817"\\n' >/etc/default/slurmd
systemctl daemon-reload
"""


def configure(
    run: Callable[[str, str], str], names: Sequence[str], *, gpus: int, types: bool = True, cpus: int = 2
) -> None:
    """Make a Slurm cluster of lab nodes.

    Args:
        run: runs a shell script as root on a node and returns its output.
        names: the nodes; the first one is the controller.
        gpus: GPUs of each node.
        types: whether each GPU has a type of its own (g0, g1, ...), so that jobs can ask for exact GPUs.
        cpus: processors of each node that Slurm counts, whatever the node has.
    """
    controller = names[0]
    for name in names:
        own = f"slurmctld {PACKAGES}" if name == controller else PACKAGES
        run(name, _INSTALL.format(first=own.split(maxsplit=1)[0], packages=own, last=gpus - 1))
    key = run(controller, "base64 -w0 /etc/munge/munge.key").strip()
    for name in names[1:]:
        run(name, f"echo {key} | base64 -d >/etc/munge/munge.key && systemctl restart munge")
    for file, text in files(names, gpus, types=types, cpus=cpus).items():
        packed = base64.b64encode(text.encode()).decode()
        run(controller, f"echo {packed} | base64 -d >/etc/slurm/{file}")
    run(controller, "systemctl restart munge && systemctl restart slurmctld")
    for name in names[1:]:
        run(name, _CONFIGLESS.format(controller=controller))
    for name in names:
        run(name, "systemctl restart slurmd")


def files(names: Sequence[str], gpus: int, *, types: bool = True, cpus: int = 2) -> dict[str, str]:
    """Return the configuration files of the controller."""
    listed = ",".join(names)
    gres = ",".join(f"gpu:g{index}:1" for index in range(gpus)) if types else f"gpu:{gpus}"
    base = (HERE / "slurm.conf").read_text(encoding="utf-8")
    size = f"Sockets=2 CoresPerSocket={cpus // 2} ThreadsPerCore=1 RealMemory=8000"
    nodes = f"NodeName={listed} {size} Gres={gres} State=UNKNOWN\n"
    partition = f"PartitionName=all Nodes={listed} Default=YES MaxTime=INFINITE DefaultTime=7-0 State=UP\n"
    lines = [
        f"NodeName={listed} Name=gpu {f'Type=g{index} ' if types else ''}File=/dev/nvidia{index}"
        for index in range(gpus)
    ]
    return {
        "slurm.conf": f"SlurmctldHost={names[0]}\n{base}{nodes}{partition}",
        "gres.conf": "\n".join(["AutoDetect=off", *lines, ""]),
        "cgroup.conf": (HERE / "cgroup.conf").read_text(encoding="utf-8"),
    }
