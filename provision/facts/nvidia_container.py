"""The programs and specifications that give containers access to GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from provision.facts.base import RawOutput


@dataclass(frozen=True)
class NvidiaContainer:
    """Programs and CDI specifications; package versions are in the fact ``packages``."""

    hook: str
    """Path of nvidia-container-runtime-hook; docker 20.10 to 29.1 need it on the PATH for ``--gpus``."""
    runtime: str
    ctk: str
    cdi_files: tuple[str, ...]


class NvidiaContainerFact:
    """Searches the programs on the PATH without running them."""

    name: ClassVar[str] = "nvidia_container"
    label: ClassVar[str] = "command -v nvidia-container-runtime-hook"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = """
printf hook=; command -v nvidia-container-runtime-hook || echo
printf runtime=; command -v nvidia-container-runtime || echo
printf ctk=; command -v nvidia-ctk || echo
for file in /etc/cdi/*nvidia* /var/run/cdi/*nvidia*; do [ ! -e "$file" ] || echo "cdi $file"; done
exit 0
"""

    def parse(self, raw: RawOutput) -> NvidiaContainer:
        """Return empty strings for missing programs."""
        pairs = raw.pairs()
        files = tuple(line.removeprefix("cdi ") for line in raw.lines() if line.startswith("cdi "))
        return NvidiaContainer(pairs.get("hook", ""), pairs.get("runtime", ""), pairs.get("ctk", ""), files)
