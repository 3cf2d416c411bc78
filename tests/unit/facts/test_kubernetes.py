"""The prerequisites of a kubelet are read from a node, without credentials of registries."""

from __future__ import annotations

import subprocess

from provision.facts import RawOutput
from provision.facts.base import Unknown
from provision.facts.kubernetes import ContainerdRuntime, KubernetesHostFact

VERSION_2 = """
version = 2
disabled_plugins = []
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "nvidia"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
          BinaryName = "/usr/bin/nvidia-container-runtime"
          SystemdCgroup = true
    [plugins."io.containerd.grpc.v1.cri".registry.configs."r:5000".auth]
      password = "hunter2"
"""
VERSION_3 = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def run(folder, config="", more=""):
    """Run the fact's command with these files of containerd, and programs that answer as on a node."""
    (folder / "containerd/conf.d").mkdir(parents=True)
    if config:
        (folder / "containerd/config.toml").write_text(config)
    if more:
        (folder / "containerd/conf.d/99-nvidia.toml").write_text(more)
    command = KubernetesHostFact.command.replace("/etc/containerd", f"{folder}/containerd")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    return done.stdout


def parse(text, code=0):
    return KubernetesHostFact().parse(RawOutput(text, code))


def test_runtimes_and_their_cgroup_driver_are_read(tmp_path):
    """Of version 2 and 3 of the configuration, and of the files beside it; the later file counts."""
    two = parse(run(tmp_path / "2", VERSION_2))
    three = parse(run(tmp_path / "3", VERSION_3, VERSION_3.replace("false", "true")))

    assert two.default_runtime == "nvidia"
    assert two.runtimes["nvidia"].binary == "/usr/bin/nvidia-container-runtime"
    assert all(one.systemd_cgroup for one in two.runtimes.values())
    assert three.runtimes["runc"].systemd_cgroup


def test_no_credential_leaves_the_node(tmp_path):
    """The configuration can contain passwords of registries."""
    assert "hunter2" not in run(tmp_path, VERSION_2)


def test_the_configuration_of_docker_packages_disables_cri():
    """It is the usual reason why a kubelet does not start on a node with Docker."""
    text = "version=1.7.27\nservice=active\nswap=/dev/sda2\nmodule=overlay\nsysctl.net/ipv4/ip_forward=1\nconfig=/x\n"
    host = parse(text + 'disabled_plugins = ["cri"]\n')

    assert (host.version, host.service, host.cri_disabled, host.swap) == ("1.7.27", "active", True, ("/dev/sda2",))
    assert (host.modules, dict(host.sysctls)) == (frozenset({"overlay"}), {"net.ipv4.ip_forward": "1"})


def test_a_node_without_containerd_has_no_version():
    assert parse("swap=\n").version == ""


MULTILINE = """
disabled_plugins = [
  # of the package
  "io.containerd.grpc.v1.cri",
]
[plugins.\'io.containerd.cri.v1.runtime\'.containerd]
\tdefault_runtime_name\t= \'nvidia\' # GPUs
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes]
nvidia = { options = { BinaryName = "/usr/bin/nvidia-container-runtime", SystemdCgroup = true } }
"""


def test_the_configuration_is_read_as_toml(tmp_path):
    """Lists over several lines, comments, tabs, inline tables, and the names of containerd 2."""
    host = parse(run(tmp_path, MULTILINE))

    assert (host.cri_disabled, host.default_runtime) == (True, "nvidia")
    assert host.runtimes["nvidia"] == ContainerdRuntime("/usr/bin/nvidia-container-runtime", systemd_cgroup=True)


def test_a_comment_disables_nothing(tmp_path):
    assert not parse(run(tmp_path, '# disabled_plugins = ["cri"]\ndisabled_plugins = [] # ["cri"]\n')).cri_disabled


def test_an_invalid_configuration_is_unknown(tmp_path):
    """containerd would not start with it, and a guess would be wrong."""
    assert isinstance(parse(run(tmp_path, "disabled_plugins = [")), Unknown)


def test_credentials_in_inline_tables_stay_on_the_node(tmp_path):
    """The lines are removed on the node; the others are still read."""
    text = 'auth = { username = "u", password = "hunter2" }\nimports = []\ndisabled_plugins = ["cri"]\n'
    printed = run(tmp_path, text)

    assert "hunter2" not in printed
    assert parse(printed).cri_disabled


def test_a_configuration_that_takes_hours_to_read_is_unknown():
    """tomllib needs the square of the parts of a key; a node can send as many as it wants."""
    assert isinstance(parse("config=/x\n" + ".".join("a" * 2000) + "=1\n"), Unknown)
    assert isinstance(parse("config=/x\n" + "a=1\n" * 300_000), Unknown)
