#!/usr/bin/python
"""Ansible module: the SSH keys of a container, made inside it, and what is known of it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_ssh_keys
short_description: Make a container's SSH keys inside it and return the public halves
description:
  - Keys that are there and readable are kept. The private halves never leave the node.
options:
  container: {description: Name of the container., type: str, required: true}
  folder: {description: The node's folder that the container has at /etc/provision/ssh., type: path, required: true}
  address: {description: Address on which sshd is to listen., type: str, required: true}
  port: {description: Port on which sshd is to listen., type: int, required: true}
author: [provision]
"""

EXAMPLES = r"""
- name: Make the keys
  container_ssh_keys:
    container: provision-training
    folder: /var/lib/provision/container_ssh
    address: 10.77.0.11
    port: 2222
"""

RETURN = r"""
ready: {description: Whether sshd can run in the container., returned: always, type: bool}
reason: {description: Why not, and what to do., returned: when not ready, type: str}
user: {description: The account that sshd serves., returned: when ready, type: str}
host_key: {description: Public host key; empty in check mode when there is none., returned: when ready, type: str}
client_key: {description: Public client key., returned: when ready, type: str}
known_hosts: {description: The present lines by node., returned: when ready, type: dict}
authorized_keys: {description: The present lines by node., returned: when ready, type: dict}
environment: {description: What a login should have of the container's environment., returned: when ready, type: dict}
listening: {description: Whether an sshd answers., returned: when ready, type: bool}
"""

import json
import os
import re
import socket

from ansible.module_utils.basic import AnsibleModule

MOUNT = "/etc/provision/ssh"
KEY = re.compile(r"^ssh-ed25519 [A-Za-z0-9+/=]+$")
LINE = re.compile(r"^(?:\S+ )?ssh-ed25519 [A-Za-z0-9+/=]+ (\S+)$")
SECRET = re.compile(r"secret|token|passw|credential|private|api_?key|access_?key", re.IGNORECASE)
OF_A_LOGIN = {
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "HOSTNAME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "MAIL",
    "DEBIAN_FRONTEND",
}

# Runs as root in the container, with sh and OpenSSH and nothing else: $1 account or UID ("" = root), $2 "make" or "look".
SCRIPT = r"""
folder=/etc/provision/ssh
PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
wanted=${1%%:*}
wanted=${wanted:-0}
while IFS=: read -r name _ uid gid _; do
    if [ "$name" = "$wanted" ] || [ "$uid" = "$wanted" ]; then
        echo "user=$name"; echo "uid=$uid"; echo "gid=$gid"; break
    fi
    uid=
done </etc/passwd
for program in sshd ssh ssh-keygen; do echo "$program=$(command -v $program)"; done
[ -n "$uid" ] && command -v ssh-keygen >/dev/null && command -v sshd >/dev/null || exit 0
make_key() {
    [ -s "$folder/$1" ] && ssh-keygen -y -P '' -f "$folder/$1" >/dev/null 2>&1 && return
    echo "changed=$1"
    [ "$2" = make ] || return
    rm -f "$folder/$1" "$folder/$1.pub" "$folder/new-$1" "$folder/new-$1.pub"
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$folder/new-$1" || { echo "failed=$1"; return; }
    sync
    mv "$folder/new-$1.pub" "$folder/$1.pub" && mv "$folder/new-$1" "$folder/$1"
}
owned() {
    [ "$(stat -c %u:%g:%a "$1")" = "$uid:$gid:$2" ] && return
    [ "$3" = make ] || return
    chown "$uid:$gid" "$1" && chmod "$2" "$1"
}
umask 077
for key in ssh_host_ed25519_key id_ed25519; do make_key $key "$2"; done
owned "$folder" 700 "$2"
for key in ssh_host_ed25519_key id_ed25519; do
    [ -f "$folder/$key" ] || continue
    owned "$folder/$key" 600 "$2"
    echo "$key=$(ssh-keygen -y -P '' -f "$folder/$key")"
done
[ ! -f "$folder/ssh_host_ed25519_key" ] ||
    ! sshd -t -f /dev/null -h "$folder/ssh_host_ed25519_key" -o SetEnv=A=b 2>/dev/null || echo setenv=yes
[ ! -r /etc/shadow ] || while IFS=: read -r name password _; do
    case "$name:$password" in "root:!"*) echo "locked=yes" ;; esac
done </etc/shadow
"""


def lines_by_node(path):
    """Return the lines of a key file by the node that their comment names. Never follows a link out of the folder."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8", errors="replace") as stream:
            lines = stream.read(2**22).splitlines()
    except OSError:
        return {}
    return {match.group(1): line for line in lines if (match := LINE.match(line))}


def environment(pairs):
    """Return what of the container's environment a login gets: no secrets, and nothing that sshd could misread."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    return {
        name: value
        for name, value in found.items()
        if re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", name)
        and name not in OF_A_LOGIN
        and not SECRET.search(name)
        and re.match(r'^[^"\\\x00-\x1f]+$', value)
    }


def listening(address, port):
    """Return whether an SSH server answers."""
    try:
        with socket.create_connection((address, port), timeout=5) as connection:
            connection.settimeout(5)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def obstacle(description, name):
    """Return why nothing can be done in the container, empty when it runs and has our folder."""
    if not description:
        return f"there is no container {name}. The role training_container makes it: apply it first."
    if not description["State"].get("Running"):
        return f"the container {name} does not run. See `docker logs {name}` on the node, and apply the role training_container."
    if MOUNT not in [mount.get("Destination") for mount in description.get("Mounts", [])]:
        return f"the container {name} was not made by the role training_container: it lacks the mount {MOUNT}. Remove it and apply."
    return ""


def missing(found, image, user):
    """Return what the image lacks, empty when nothing."""
    if not (found.get("sshd") and found.get("ssh") and found.get("ssh-keygen")):
        return f"the image {image} has no OpenSSH. Build it with openssh-server and openssh-client and apply again."
    if not found.get("uid"):
        return f"the image {image} has no account {user}. Build it with one, or correct training_container_user."
    return ""


def inside(module, name, user):
    """Run the script in the container and return what it printed, as key and value."""
    mode = "look" if module.check_mode else "make"
    command = ["docker", "exec", "--interactive", "--user", "0", name, "sh", "-s", "--", user, mode]
    code, out, err = module.run_command(command, data=SCRIPT)
    found = dict(line.partition("=")[::2] for line in out.splitlines())
    if code != 0 or "failed" in found:
        module.fail_json(
            msg="the keys could not be made in the container {}: {}. See that the node's disk is not full.".format(
                name, err.strip() or out.strip() or "no reason given"
            )
        )
    return found


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    name, folder = module.params["container"], module.params["folder"]
    code, out = (
        module.run_command(["docker", "container", "inspect", name])[:2] if module.get_bin_path("docker") else (1, "")
    )
    description = json.loads(out)[0] if code == 0 else {}
    reason = obstacle(description, name)
    if reason:
        module.exit_json(changed=module.check_mode, ready=False, reason=reason)
    user = description["Config"].get("User") or ""
    found = inside(module, name, user)
    reason = missing(found, description["Config"].get("Image"), user or "root")
    if reason:
        module.exit_json(changed=False, ready=False, reason=reason)
    keys = {key: found.get(key, "") for key in ("ssh_host_ed25519_key", "id_ed25519")}
    module.exit_json(
        changed="changed" in found,
        ready=True,
        user=found["user"],
        sshd=found["sshd"],
        host_key=public(keys["ssh_host_ed25519_key"]),
        client_key=public(keys["id_ed25519"]),
        known_hosts=lines_by_node(os.path.join(folder, "known_hosts")),
        authorized_keys=lines_by_node(os.path.join(folder, "authorized_keys")),
        environment=environment(description["Config"].get("Env") or []) if found.get("setenv") else {},
        listening=listening(module.params["address"], module.params["port"]),
    )


def public(line):
    """Return the public key without its comment, empty when it is none."""
    words = " ".join(line.split()[:2])
    return words if KEY.match(words) else ""


if __name__ == "__main__":
    main()
