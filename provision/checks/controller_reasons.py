"""The wording of `provision doctor`: code -> message and remedy."""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_INSTALL = "Install provision again: pip install --force-reinstall gpu-provision"
_APT = "Run: apt-get install --no-install-recommends {packages: }"

CONTROLLER_DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "controller.python": ("the version of Python is supported", "fail"),
    "controller.packages": ("every Python package has a version that this version of provision supports", "fail"),
    "controller.files": ("roles, playbooks and the example inventory are complete", "fail"),
    "controller.ansible": ("ansible-playbook is beside this Python, and starts", "fail"),
    "controller.ssh": ("the OpenSSH client is installed, which Ansible uses", "fail"),
    "controller.ssh_agent": ("an SSH agent has keys, or the account has a private key", "warn"),
    "controller.known_hosts": (
        "known_hosts can be read, only its owner can change it, and every line is valid",
        "fail; warn if there is no file, or a line is invalid",
    ),
    "controller.vault": ("every password file of Ansible Vault that is configured can be used", "fail"),
    "controller.folders": (
        "the state and cache folders can be written, but not by other users",
        "fail",
    ),
    "controller.disk": ("the file system of the state folder has at least 1 GiB free", "warn"),
    "controller.ports": ("a local port can be opened, as port-forward and the lab do", "fail"),
    "controller.code": ("git and rsync are installed, which `--sync-mode` of batch jobs uses", "warn"),
    "controller.docker": ("the lab can use or start a Docker engine for nodes in containers", "warn"),
    "controller.lab_programs": ("the programs that build nodes, packages and images of the lab are installed", "warn"),
    "controller.qemu": ("QEMU and the programs that build virtual machines are installed", "warn"),
    "controller.kvm": ("the lab may try hardware virtualization", "skip"),
}
"""Check id -> when it passes, and its result otherwise."""

CONTROLLER_REASONS: Mapping[str, Wording] = {
    "controller.python.ok": Wording("Python {version}"),
    "controller.python.old": Wording(
        "Python {version} is not supported (oldest: {oldest})", "Install provision with Python {oldest} or newer."
    ),
    "controller.packages.ok": Wording("{n:times package} as required"),
    "controller.packages.wrong": Wording("missing or of another version: {requirements:;}", _INSTALL),
    "controller.packages.unknown": Wording(
        "the installed distribution is unknown (a copy of the sources without metadata)"
    ),
    "controller.files.ok": Wording("complete: {folder}"),
    "controller.files.missing": Wording("{cause}", "{remedy}"),
    "controller.ansible.ok": Wording("ansible-core {version}"),
    "controller.ansible.missing": Wording("{program} is missing (in the folder of {python})", _INSTALL),
    "controller.ansible.broken": Wording("{program} does not start: {cause}", _INSTALL),
    "controller.ssh.ok": Wording("{version}"),
    "controller.ssh.missing": Wording("ssh is not installed", "Run: apt-get install openssh-client"),
    "controller.ssh_agent.keys": Wording("the SSH agent has {n:times key}"),
    "controller.ssh_agent.files": Wording("no SSH agent with keys; ssh uses {files}"),
    "controller.ssh_agent.no_program": Wording(
        "ssh-add is not installed, so that the keys of the SSH agent are unknown",
        "Run: apt-get install openssh-client",
    ),
    "controller.ssh_agent.unreachable": Wording(
        "the SSH agent does not answer (SSH_AUTH_SOCK={socket})",
        'Log in again, or start one: eval "$(ssh-agent)" && ssh-add',
    ),
    "controller.ssh_agent.none": Wording(
        "no SSH agent with keys, and no private key in {folder}",
        "Run: ssh-keygen -t ed25519 and copy the public key to the nodes with ssh-copy-id; or name a key in the "
        "inventory (ansible_ssh_private_key_file).",
    ),
    "controller.known_hosts.ok": Wording("{path} has {n:times key}"),
    "controller.known_hosts.missing": Wording(
        "{path} does not exist: the keys of all nodes are unknown",
        "Let `provision init` show and record the keys of the nodes, or copy the file of another machine.",
    ),
    "controller.known_hosts.folder": Wording(
        "{path} is a folder, so that ssh knows no keys",
        "Remove it if it is empty (rmdir {path}); then let `provision init` record the keys of the nodes.",
    ),
    "controller.known_hosts.unreadable": Wording("{path} cannot be read: {cause}", "Run: chmod 600 {path}"),
    "controller.known_hosts.writable": Wording(
        "other users can change {path} (mode {mode})", "Run: chmod go-w {path} and review its keys."
    ),
    "controller.known_hosts.invalid": Wording(
        "{path} has invalid lines, which ssh ignores: {lines:few}", "Correct or remove these lines."
    ),
    "controller.vault.ok": Wording("{n:times password file} of Ansible Vault"),
    "controller.vault.none": Wording("no password file of Ansible Vault is configured"),
    "controller.vault.unreadable": Wording(
        "{path}: cannot be read: {cause}", "Correct vault_password_file in ansible.cfg, or create the file."
    ),
    "controller.vault.readable_by_others": Wording(
        "{path}: other users can read it (mode {mode})", "Run: chmod 600 {path} and change the password."
    ),
    "controller.vault.settings": Wording("{cause}", "Run this to see the error: ansible-config dump --only-changed"),
    "controller.folders.ok": Wording("state: {state}, cache: {cache}"),
    "controller.folders.unwritable": Wording(
        "{path} cannot be written: {cause}",
        "Correct its owner and mode, or set XDG_STATE_HOME and XDG_CACHE_HOME to other folders.",
    ),
    "controller.folders.writable": Wording(
        "other users can write to {path} (mode {mode})", "Run: chmod go-w {path} and review its content."
    ),
    "controller.disk.ok": Wording("{free} GiB free for {path}"),
    "controller.disk.low": Wording("{free} GiB free for {path}", "Free space, or set XDG_STATE_HOME to another disk."),
    "controller.ports.ok": Wording("local ports can be opened"),
    "controller.ports.none": Wording(
        "no local port can be opened: {cause}",
        "End programs with many connections (ss -s), or widen net.ipv4.ip_local_port_range.",
    ),
    "controller.code.ok": Wording("git and rsync are installed"),
    "controller.code.missing": Wording("not installed: {packages}", _APT),
    "controller.docker.ok": Wording("a Docker engine answers at {host}"),
    "controller.docker.starts": Wording("`provision lab up` starts an engine of its own"),
    "controller.docker.no_sdk": Wording(
        "the Docker SDK is not installed", "Install the extra for the lab: pip install 'gpu-provision[lab]'"
    ),
    "controller.docker.no_engine": Wording(
        "no Docker engine answers at {host}, and {cause}",
        "Run: apt-get install docker.io iptables, and grant this user access, or use the lab as root.",
    ),
    "controller.lab_programs.ok": Wording("all are installed"),
    "controller.lab_programs.missing": Wording("not installed: {packages}", _APT),
    "controller.qemu.ok": Wording("{version}"),
    "controller.qemu.missing": Wording("not installed: {packages}", _APT),
    "controller.kvm.ok": Wording("/dev/kvm can be used; the lab tries it with a test boot"),
    "controller.kvm.none": Wording("/dev/kvm cannot be used: virtual machines are emulated, which is slower"),
}
