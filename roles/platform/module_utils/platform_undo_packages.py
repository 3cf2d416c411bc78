"""Reset packages: remove those that transactions of the roles installed, unless something else requires them."""

import os

PASSWD, GROUP = "/etc/passwd", "/etc/group"
FIRST_USER_ID = 1000  # IDs from here belong to people; scripts of packages create lower ones
# Backup files of the programs that manage accounts.
BACKUPS = ("/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-")


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
    """Return packages with all their dependencies, by name or by what a package provides."""
    pending, closed, providers = list(names), set(), {}
    for package, entry in known.items():
        for item in entry["names"]:
            providers.setdefault(item, []).append(package)
    while pending:
        name = pending.pop()
        if name not in closed and name in known:
            closed.add(name)
            needs = [item for group in known[name]["needs"] for item in group]
            pending += [one for item in needs for one in ([item] if item in known else providers.get(item, ()))]
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


def replaced_packages(records, known):
    """Return the pre-existing packages that were removed for packages of the roles."""
    names = {name for doc in records for name in doc["managed"].get("removed", [])}
    return sorted(name for name in names if known.get(name, {}).get("status") != "installed")


def leftovers(records):
    """Return the users, groups and files in /etc that packages leave behind."""
    remains = {"users": [], "groups": [], "etc": []}
    for doc in records:
        remains["users"] += [name for name in doc["managed"].get("users", []) if name in _system_names(PASSWD)]
        remains["groups"] += [name for name in doc["managed"].get("groups", []) if name in _system_names(GROUP)]
        remains["etc"] += [path for path in doc["managed"].get("etc", []) if os.path.lexists(path)]
    return remains


def remove_leftovers(module, manager, records):
    """Remove the leftovers of removed packages; return a sentence for each one that stays.

    Files that another package owns or that were changed since stay, and so do groups with members.
    """
    left, known = [], manager.partly_installed()
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
        if is_unchanged and not manager.owns(path):
            os.unlink(path)
    manager.remove_stale_keys({key for doc in removed for key in doc["managed"].get("keys", [])})
    return left


def saved_files(manager, records):
    """Return the files to which a removal of packages may move changed configuration files, and which do not exist yet.

    Each has the time when the transaction ended that installed the file.
    """
    ends = [
        (manager.saved_configuration(path), os.stat(doc["base"] + ".ours").st_mtime)
        for doc in records
        for path in doc["managed"].get("etc", [])
    ]
    first = dict(sorted(ends, reverse=True))
    return {path: end for path, end in first.items() if path and not os.path.lexists(path)}


def remove_saved(saved):
    """Remove saved configuration files without edits since their transactions; return a sentence for others."""
    left = []
    for path, end in saved.items():
        if os.path.lexists(path) and os.lstat(path).st_mtime <= end + 1:
            os.unlink(path)
        elif os.path.lexists(path):
            left.append(f"leave {path}: it was edited since it was installed")
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
