"""Reset packages: remove those that transactions of the roles installed, unless something else requires them."""

import os
import re

LOCK_SECONDS = 600
PASSWD, GROUP = "/etc/passwd", "/etc/group"
FIRST_USER_ID = 1000  # IDs from here belong to people; scripts of packages create lower ones
APT = ["apt-get", "-y", "-q", "-o", "APT::Get::AutomaticRemove=false", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
# Backup files of the programs that manage accounts.
BACKUPS = ("/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-")
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    "APT_LISTCHANGES_FRONTEND": "none",
}
FORM = "${Package}\\t${db:Status-Status}\\t${Version}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"


def package_table(module):
    """Return the packages of dpkg: status, version, names (with provided ones) and dependencies."""
    packages = {}
    for line in module.run_command(["dpkg-query", "-W", "-f", FORM])[1].splitlines():
        name, status, version, provides, needs = [*line.split("\t"), "", "", "", ""][:5]
        groups = [[_plain(item) for item in group.split("|")] for group in needs.split(",") if group.strip()]
        names = {name, *(_plain(item) for item in provides.split(",") if item.strip())}
        packages[name] = {"status": status, "version": version, "names": names, "needs": groups}
    return packages


def _plain(item):
    """Return a package's name without version and architecture."""
    return re.split(r"[\s(:\[]", item.strip())[0]


def installed_packages(records, known):
    """Return the packages that transactions of the roles installed, also an interrupted one."""
    names = set()
    for doc in records:
        if "installed" in doc["managed"]:
            names |= set(doc["managed"]["installed"])
        else:
            names |= closure(doc["requested"], known) - set(doc["installed"])
    return names


def closure(names, known):
    """Return packages with all their dependencies."""
    pending, closed = list(names), set()
    while pending:
        name = pending.pop()
        if name not in closed and name in known:
            closed.add(name)
            pending += [item for group in known[name]["needs"] for item in group]
    return closed


def split(installed, manual, known):
    """Return the removable packages, and name -> reason for those that stay."""
    stay = {name: "it was requested manually since" for name in sorted(installed & manual) if name in known}
    while True:
        present = {name for name in known if known[name]["status"] == "installed"}
        staying = sorted(present - (installed - set(stay)))
        provided = {item for name in staying for item in known[name]["names"]}
        before = len(stay)
        for name in staying:
            for group in known[name]["needs"]:
                if not provided & set(group):
                    one = next(
                        (item for item in sorted(installed & present) if known[item]["names"] & set(group)), None
                    )
                    if one:
                        stay.setdefault(one, f"{name} requires it")
        if len(stay) == before:
            return sorted(name for name in installed if name in known and name not in stay), stay


def purge(module, names, verb="purge"):
    """Purge exactly these packages. If apt would also change others, fail without a change."""
    module.run_command_environ_update = ENVIRONMENT
    code, out, err = module.run_command([*APT, "-s", verb, *names])
    if "dpkg --configure -a" in err:
        module.run_command(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
        code, out, err = module.run_command([*APT, "-s", verb, *names])
    others = {_plain(name) for name in re.findall(r"^(?:Purg|Remv|Inst) (\S+)", out, re.MULTILINE)} - set(names)
    if code == 0 and others:
        module.fail_json(
            msg="packages: apt would also change others ({}), so none was removed. Read the output of "
            "`apt-get -s purge {}` on the node.".format(", ".join(sorted(others)), " ".join(names))
        )
    if code == 0:
        code, out, err = module.run_command([*APT, verb, *names])
    if code != 0:
        errors = [line for line in (err + out).splitlines() if line.startswith(("E:", "dpkg: error"))]
        module.fail_json(
            msg="packages: cannot remove them ({}). Find out which packages require them, and reset again.".format(
                "; ".join(errors[-3:]) or (err or out).strip()[-400:]
            )
        )


def replaced_packages(records, known):
    """Return the pre-existing packages that were removed for packages of the roles."""
    names = {name for doc in records for name in doc["managed"].get("removed", [])}
    return sorted(name for name in names if known.get(name, {}).get("status") != "installed")


def reinstall(module, names):
    """Install the replaced packages again; return a sentence if that fails."""
    module.run_command_environ_update = ENVIRONMENT
    keep = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", "--no-install-recommends"]
    code, out, err = module.run_command([*APT, *keep, "install", *names])
    if code == 0:
        return None
    errors = [line for line in (err + out).splitlines() if line.startswith("E:")]
    return f"install {', '.join(names)} manually, which existed before: {'; '.join(errors[-2:]) or err.strip()[-200:]}"


def leftovers(records):
    """Return the users, groups and files in /etc that packages leave behind."""
    remains = {"users": [], "groups": [], "etc": []}
    for doc in records:
        remains["users"] += [name for name in doc["managed"].get("users", []) if name in _system_names(PASSWD)]
        remains["groups"] += [name for name in doc["managed"].get("groups", []) if name in _system_names(GROUP)]
        remains["etc"] += [path for path in doc["managed"].get("etc", []) if os.path.lexists(path)]
    return remains


def remove_leftovers(module, records):
    """Remove the leftovers of removed packages; return a sentence for each one that stays.

    Files that another package owns or that were changed since stay, and so do groups with members.
    """
    left, known = [], package_table(module)
    removed = [doc for doc in records if not any(name in known for name in doc["managed"].get("installed", []))]
    for user in leftovers(removed)["users"]:
        code, _, err = module.run_command(["userdel", user])
        left += [f"leave the user {user}: {err.strip()}"] if code != 0 else []
    for group in leftovers(removed)["groups"]:
        members = _members(group)
        code, err = (1, f"it has members ({members})") if members else module.run_command(["groupdel", group])[::2]
        left += [f"leave the group {group}: {err.strip()}"] if code != 0 else []
    for path in leftovers(removed)["etc"]:
        end = min(os.stat(doc["base"] + ".ours").st_mtime for doc in removed if path in doc["managed"].get("etc", []))
        is_unchanged = path in BACKUPS or os.lstat(path).st_mtime <= end + 1
        if is_unchanged and module.run_command(["dpkg-query", "-S", path])[0] != 0:
            os.unlink(path)
    return left


def _system_names(path):
    """Return the system accounts or groups. Others were created manually, not by a package."""
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        lines = [line.split(":") for line in stream]
    return [words[0] for words in lines if len(words) > 2 and words[2].isdigit() and int(words[2]) < FIRST_USER_ID]


def _members(group):
    with open(GROUP, encoding="utf-8", errors="surrogateescape") as stream:
        lines = [line.rstrip("\n").split(":") for line in stream]
    return next((words[3] for words in lines if words[0] == group and len(words) > 3), "")
