"""What a kubelet needs on a node: containerd and its configuration, swap, kernel modules and sysctls."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from provision.facts.base import RawOutput, Unknown

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CRI = frozenset({"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"})
"""The plugin of the runtimes, in versions 1, 2 and 3 of the configuration."""
_PLUGINS = _CRI | {"io.containerd.cri.v1.images"}
_MOST_RUNTIMES = 64
_MOST_SWAP = 16
_MOST_CHARACTERS, _MOST_DOTS = 1 << 20, 128
"""Of the output, and of a line: tomllib needs the square of the parts of a key."""
MODULES = ("overlay", "br_netfilter")
SYSCTLS = ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables")


@dataclass(frozen=True)
class ContainerdRuntime:
    """A runtime in the configuration of containerd's CRI plugin."""

    binary: str = ""
    systemd_cgroup: bool = False


@dataclass(frozen=True)
class KubernetesHost:
    """The prerequisites of a kubelet."""

    version: str = ""
    """Version of containerd; empty if it is not installed."""
    service: str = ""
    """``active``, or another state of the unit."""
    kubelet: str = ""
    """The state of kubelet's unit."""
    has_config: bool = False
    """Whether containerd has a configuration file; without one its defaults count."""
    cri_disabled: bool = False
    default_runtime: str = "runc"
    runtimes: Mapping[str, ContainerdRuntime] = field(default_factory=dict)
    swap: tuple[str, ...] = ()
    """Active swap devices and files."""
    modules: frozenset[str] = frozenset()
    """Those of `MODULES` that the kernel has loaded or built in."""
    sysctls: Mapping[str, str] = field(default_factory=dict)


class KubernetesHostFact:
    """Reads the configuration of containerd without the lines that can contain credentials of registries."""

    name: ClassVar[str] = "kubernetes_host"
    label: ClassVar[str] = "containerd --version"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = r"""
if command -v containerd >/dev/null; then
  set -- $(containerd --version 2>/dev/null); echo "version=$3"
fi
if command -v systemctl >/dev/null; then
  echo "service=$(systemctl is-active containerd 2>/dev/null)"
  echo "kubelet=$(systemctl is-active kubelet 2>/dev/null)"
fi
while read -r kind system; do [ "${system:-$kind}" != overlay ] || echo module=overlay; done </proc/filesystems
[ ! -d /proc/sys/net/bridge ] || echo module=br_netfilter
for key in net/ipv4/ip_forward net/bridge/bridge-nf-call-iptables; do
  if [ -r /proc/sys/$key ]; then read -r value </proc/sys/$key; echo "sysctl.$key=$value"; fi
done
while read -r file _; do [ "$file" = Filename ] || echo "swap=$file"; done </proc/swaps 2>/dev/null
for file in /etc/containerd/config.toml /etc/containerd/conf.d/*.toml; do
  [ -r "$file" ] || continue
  echo "config=$file"
  head -c 262144 "$file" |
    grep -aviE '(user(name)?|password|auth|token|secret|authorization)["'"'"']?[[:space:]]*='
done
exit 0
"""

    def parse(self, raw: RawOutput) -> KubernetesHost | Unknown:
        """Parse the lines of the command; the text of each file of the configuration follows its ``config=``."""
        pairs: dict[str, list[str]] = {}
        files: list[list[str]] = []
        for line in raw.stdout.splitlines():
            key, equals, value = line.partition("=")
            if files and not line.startswith("config=/"):
                files[-1].append(line)
            elif equals:
                pairs.setdefault(key, []).append(value.strip())
                files += [[]] if key == "config" else []
        if len(raw.stdout) > _MOST_CHARACTERS:
            return Unknown(f"the configuration of containerd is longer than {_MOST_CHARACTERS} characters")
        if raw.exit_code:
            return Unknown(f"the prerequisites of Kubernetes cannot be read: {raw.last_line()}")
        try:
            settings = _settings(["\n".join(lines) for lines in files])
        except (ValueError, RecursionError) as error:
            return Unknown(f"the configuration of containerd cannot be read: {error}")
        return KubernetesHost(
            version=pairs.get("version", [""])[0],
            service=pairs.get("service", [""])[0],
            kubelet=pairs.get("kubelet", [""])[0],
            has_config="config" in pairs,
            cri_disabled=bool(_PLUGINS & set(settings.disabled)),
            default_runtime=settings.default_runtime,
            runtimes=settings.runtimes,
            swap=tuple(pairs.get("swap", ())[:_MOST_SWAP]),
            modules=frozenset(pairs.get("module", ())),
            sysctls={
                key.removeprefix("sysctl.").replace("/", "."): values[0]
                for key, values in pairs.items()
                if key.startswith("sysctl.")
            },
        )


@dataclass(frozen=True)
class _Settings:
    disabled: tuple[str, ...]
    default_runtime: str
    runtimes: Mapping[str, ContainerdRuntime]


def _settings(texts: list[str]) -> _Settings:
    """Read the files of a configuration; a setting of a later file replaces that of an earlier one.

    Raises:
        ValueError: a file is not TOML, or a line has too many dots.
    """
    disabled: list[str] = []
    default = "runc"
    runtimes: dict[str, ContainerdRuntime] = {}
    for text in texts:
        if max(map(_dots, text.splitlines()), default=0) > _MOST_DOTS:
            raise ValueError(f"a line has more than {_MOST_DOTS} dots")
        document = tomllib.loads(text)
        named = document.get("disabled_plugins")
        disabled += [str(one) for one in named] if isinstance(named, list) else []
        for plugin in sorted(_CRI):
            section = _table(document, "plugins", plugin, "containerd")
            given = section.get("default_runtime_name")
            if isinstance(given, str) and _NAME.fullmatch(given):
                default = given
            for name, runtime in list(_table(section, "runtimes").items())[:_MOST_RUNTIMES]:
                if _NAME.fullmatch(name):
                    runtimes[name] = _runtime(_table({"": runtime}, "", "options"), runtimes.get(name))
    return _Settings(tuple(disabled), default, runtimes)


def _dots(line: str) -> int:
    return line.count(".")


def _runtime(options: Mapping[str, Any], earlier: ContainerdRuntime | None) -> ContainerdRuntime:
    """Return a runtime with the settings of an earlier file that these options do not have."""
    before = earlier or ContainerdRuntime()
    binary, systemd = options.get("BinaryName", before.binary), options.get("SystemdCgroup", before.systemd_cgroup)
    return ContainerdRuntime(binary if isinstance(binary, str) else "", systemd is True)


def _table(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a table within a document; an empty one if it is missing or another value."""
    value: Any = document
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
