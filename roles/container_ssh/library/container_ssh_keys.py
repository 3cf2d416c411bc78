#!/usr/bin/python
"""Ansible module: the SSH keys of a container, made inside it, and what is known of it."""

DOCUMENTATION = r"""
module: container_ssh_keys
short_description: Make a container's SSH keys inside it and return the public halves
description:
  - Keys that are there and readable are kept. The private halves never leave the node.
  - Whatever comes out of the container is checked before it is used. Its account has the folder of the keys and nothing
    else; the keys are made by that account, so that a link which it puts there leads nowhere that it could not go itself.
options:
  container: {description: Name of the container., type: str, required: true}
  folder: {description: The node's folder that the container reads at /etc/provision/ssh., type: path, required: true}
  address: {description: Address on which sshd is to listen., type: str, required: true}
  port: {description: Port on which sshd is to listen., type: int, required: true}
author: [provision]
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
removal: {description: "Whether a list of algorithms can be given as what to remove (OpenSSH 7.5 or newer).", returned: when ready, type: bool}
listening: {description: Whether an sshd answers., returned: when ready, type: bool}
configured: {description: Whether there are settings that an sshd can have read., returned: when ready, type: bool}
loaded: {description: Which settings the running sshd has read; empty when none or unknown., returned: when ready, type: str}
"""

import json
import os
import re
import socket
import stat

from ansible.module_utils.basic import AnsibleModule

MOUNT = "/etc/provision/ssh"
KEYS = MOUNT + "/keys"
PAIRS = ("ssh_host_ed25519_key", "id_ed25519")
PROGRAMS = ("sshd", "ssh", "ssh-keygen")
SECONDS = 120
PATTERNS = {
    **dict.fromkeys(PROGRAMS, re.compile(r"/[A-Za-z0-9._/-]+")),
    "user": re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"),
    "uid": re.compile(r"[0-9]{1,10}"),
    "gid": re.compile(r"[0-9]{1,10}"),
    "loaded": re.compile(r"[0-9a-f]{12}"),
}
KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]+")
LINE = re.compile(r"^(?:\S+ )?ssh-ed25519 [A-Za-z0-9+/=]+ (\S+)$")
# NAME, or a value such as https://user:password@host.
SECRET = re.compile(
    r"secret|token(?!iz)|passw|passphrase|pass(?![a-z])|pwd|credential|private"
    r"|(?:^|_|api|access)keys?(?![a-z])|auth(?!ors?(?:_|$))|dsn(?![a-z])",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"://[^/@]*:[^/@]*@")
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

# Both need sh and OpenSSH in the container and nothing else; $1 is "make" or "look".
# As root: who the account is ($2: name or UID, "" = root), and its folder becomes its own. No link is followed.
ROOT_SCRIPT = r"""
folder=/etc/provision/ssh/keys
PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
wanted=${2%%:*}
wanted=${wanted:-0}
while IFS=: read -r name _ uid gid _; do
    if [ "$name" = "$wanted" ] || [ "$uid" = "$wanted" ]; then
        echo "user=$name"; echo "uid=$uid"; echo "gid=$gid"; break
    fi
    uid=
done </etc/passwd
for program in sshd ssh ssh-keygen; do echo "$program=$(command -v $program)"; done
[ -n "$uid" ] && [ "$1" = make ] || exit 0
for path in "$folder" "$folder/ssh_host_ed25519_key" "$folder/id_ed25519"; do
    [ ! -e "$path" ] || [ "$(stat -c %u:%g "$path")" = "$uid:$gid" ] || { chown -h "$uid:$gid" "$path"; echo changed=owner; }
done
"""
# As the account: makes the keys, says their public halves, and which settings its sshd has read (the name of the file
# with its process id, which sshd removes when it goes or reads its settings again).
ACCOUNT_SCRIPT = r"""
folder=/etc/provision/ssh/keys
PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
regular() { [ -f "$1" ] && [ ! -h "$1" ]; }
make_key() {
    regular "$folder/$1" && [ -s "$folder/$1" ] && ssh-keygen -y -P '' -f "$folder/$1" >/dev/null 2>&1 && return
    echo "changed=$1"
    [ "$2" = make ] || return
    rm -rf "$folder/$1" "$folder/$1.pub" "$folder/new-$1" "$folder/new-$1.pub"
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$folder/new-$1" || { echo "failed=$1"; return; }
    sync
    mv "$folder/new-$1.pub" "$folder/$1.pub" && mv "$folder/new-$1" "$folder/$1"
}
private() {
    [ "$(stat -c %a "$1")" = "$2" ] || { echo changed=mode; [ "$3" != make ] || chmod "$2" "$1"; }
}
umask 077
private "$folder" 700 "$1"
for key in ssh_host_ed25519_key id_ed25519; do
    ! regular "$folder/$key" || private "$folder/$key" 600 "$1"
    make_key $key "$1"
    ! regular "$folder/$key" || echo "$key=$(ssh-keygen -y -P '' -f "$folder/$key")"
done
for file in "$folder"/sshd-*.pid; do
    regular "$file" && read -r pid <"$file" && read -r name <"/proc/$pid/comm" && [ "$name" = sshd ] || continue
    name=${file##*/sshd-}
    echo "loaded=${name%.pid}"
done 2>/dev/null
! regular "$folder/ssh_host_ed25519_key" || {
    ! sshd -t -f /dev/null -h "$folder/ssh_host_ed25519_key" -o SetEnv=A=b 2>/dev/null || echo setenv=yes
    ! sshd -t -f /dev/null -h "$folder/ssh_host_ed25519_key" -o 'MACs=-*sha1*' 2>/dev/null || echo removal=yes
}
"""


def lines_by_node(path):
    """Return the lines of a key file by the node that their comment names. Follows no link and waits for no pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    with open(handle, encoding="utf-8", errors="replace") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return {}
        lines = stream.read(2**22).split("\n")
    return {match.group(1): line for line in lines if (match := LINE.match(line))}


def environment(pairs):
    """Return what of the container's environment a login gets: no secrets, and nothing that sshd could misread."""
    variables = dict(pair.partition("=")[::2] for pair in pairs)
    return {
        name: value
        for name, value in variables.items()
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        and name not in OF_A_LOGIN
        and not SECRET.search(name)
        and not SECRET_VALUE.search(value)
        and re.fullmatch(r'[^"\\\x00-\x1f]+', value)
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
    """Return why nothing can be done in the container, empty when it runs and has our folders."""
    if not description:
        return f"there is no container {name}. The role training_container makes it: apply it first."
    if not description["State"].get("Running"):
        return f"the container {name} does not run. See `docker logs {name}` on the node, and apply the role training_container."
    mounts = {mount.get("Destination"): mount.get("RW") for mount in description.get("Mounts", [])}
    if mounts.get(MOUNT) is not False or mounts.get(KEYS) is not True:
        return (
            f"the container {name} was not made by this version of the role training_container: it lacks the mounts"
            f" {MOUNT} (read-only) and {KEYS}. Apply that role, which replaces the container."
        )
    return ""


def missing(container, image, user):
    """Return what the image lacks, empty when nothing."""
    if not all(container.get(program) for program in PROGRAMS):
        return f"the image {image} has no OpenSSH. Build it with openssh-server and openssh-client and apply again."
    if not all(container.get(key) for key in ("user", "uid", "gid")):
        return f"the image {image} has no account {user}. Build it with one, or correct training_container_user."
    return ""


def checked(text):
    """Return what a script printed, as key and value, without values that are not what they should be."""
    pairs = dict(line.partition("=")[::2] for line in text.split("\n"))
    return {key: value for key, value in pairs.items() if key not in PATTERNS or PATTERNS[key].fullmatch(value)}


def inside(module, name, user, script, *words):
    """Run a script in the container and return what it printed."""
    mode = "look" if module.check_mode else "make"
    limit = ["timeout", "--kill-after=5", str(SECONDS)]
    command = [*limit, "docker", "exec", "--interactive", "--user", user, name, "sh", "-s", "--", mode, *words]
    code, out, err = module.run_command(command, data=script, errors="replace")
    container = checked(out)
    if code != 0 or "failed" in container:
        said = re.sub(r"[^\x20-\x7e]+", " ", err.strip() or out.strip())[-500:]
        said = f"no answer within {SECONDS} s" if code == 124 else said or "no reason given"
        module.fail_json(
            msg=f"the keys could not be made in the container {name}: {said}. See that the node's disk is not full."
        )
    return container


def keep_older(module, folder):
    """Move the pairs that an older version kept beside the other files to their own folder; return whether any was."""
    moved = False
    for pair in PAIRS:
        for name in (pair + ".pub", pair):
            old, new = os.path.join(folder, name), os.path.join(folder, "keys", name)
            if module.check_mode or not os.path.lexists(old) or not stat.S_ISREG(os.lstat(old).st_mode):
                continue
            if os.path.lexists(new):
                os.unlink(old)
            else:
                os.rename(old, new)
            moved = True
    return moved


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
    container = inside(module, name, "0", ROOT_SCRIPT, user)
    reason = missing(container, description["Config"].get("Image"), user or "root")
    if reason:
        module.exit_json(changed=False, ready=False, reason=reason)
    moved = keep_older(module, folder)
    owned = "changed" in container
    if moved:
        inside(module, name, "0", ROOT_SCRIPT, user)
    account = inside(module, name, f"{container['uid']}:{container['gid']}", ACCOUNT_SCRIPT)
    module.exit_json(
        changed=moved or owned or "changed" in account,
        ready=True,
        user=container["user"],
        host_key=public(account.get("ssh_host_ed25519_key", "")),
        client_key=public(account.get("id_ed25519", "")),
        known_hosts=lines_by_node(os.path.join(folder, "known_hosts")),
        authorized_keys=lines_by_node(os.path.join(folder, "authorized_keys")),
        environment=environment(description["Config"].get("Env") or []) if account.get("setenv") else {},
        removal=account.get("removal") == "yes",
        listening=listening(module.params["address"], module.params["port"]),
        configured=os.path.lexists(os.path.join(folder, "sshd_config")),
        loaded=account.get("loaded", ""),
    )


def public(line):
    """Return the public key without its comment, empty when it is none."""
    words = " ".join(line.split()[:2])
    return words if KEY.fullmatch(words) else ""


if __name__ == "__main__":
    main()
