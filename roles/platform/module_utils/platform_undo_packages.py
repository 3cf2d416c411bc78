"""What a reset does with packages: what our transactions brought goes, unless something else needs it now."""

import os
import re

LOCK_SECONDS = 600
PASSWD, GROUP = "/etc/passwd", "/etc/group"
PEOPLE = 1000  # from this number on accounts are people's; scripts of packages make lower ones
APT = ["apt-get", "-y", "-q", "-o", "APT::Get::AutomaticRemove=false", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
# What the programs for accounts write beside their files, again and again.
BACKUPS = ("/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-")
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    "APT_LISTCHANGES_FRONTEND": "none",
}
FORM = "${Package}\\t${db:Status-Status}\\t${Version}\\t${Provides}\\t${Pre-Depends}, ${Depends}\\n"


def table(module):
    """Return what dpkg knows of each package: status, version, what it is (with provides), and what it needs."""
    packages = {}
    for line in module.run_command(["dpkg-query", "-W", "-f", FORM])[1].splitlines():
        name, status, version, provides, needs = [*line.split("\t"), "", "", "", ""][:5]
        groups = [[_plain(item) for item in group.split("|")] for group in needs.split(",") if group.strip()]
        names = {name, *(_plain(item) for item in provides.split(",") if item.strip())}
        packages[name] = {"status": status, "version": version, "is": names, "needs": groups}
    return packages


def _plain(item):
    """Return a package's name without version and architecture."""
    return re.split(r"[\s(:\[]", item.strip())[0]


def brought(notes, known):
    """Return the packages that our transactions brought, also of one that a power cut ended."""
    names = set()
    for doc in notes:
        if "installed" in doc["managed"]:
            names |= set(doc["managed"]["installed"])
        else:
            names |= closure(doc["requested"], known) - set(doc["installed"])
    return names


def closure(names, known):
    """Return packages with all that they need."""
    todo, needed = list(names), set()
    while todo:
        name = todo.pop()
        if name not in needed and name in known:
            needed.add(name)
            todo += [item for group in known[name]["needs"] for item in group]
    return needed


def split(ours, manual, known):
    """Return which of our packages can go, and for each other one why it stays."""
    stay = {name: "it was asked for by hand since" for name in sorted(ours & manual) if name in known}
    while True:
        there = {name for name in known if known[name]["status"] == "installed"}
        staying = sorted(there - (ours - set(stay)))
        given = {item for name in staying for item in known[name]["is"]}
        before = len(stay)
        for name in staying:
            for group in known[name]["needs"]:
                if not given & set(group):
                    one = next((item for item in sorted(ours & there) if known[item]["is"] & set(group)), None)
                    if one:
                        stay.setdefault(one, f"{name} needs it")
        if len(stay) == before:
            return sorted(name for name in ours if name in known and name not in stay), stay


def purge(module, names, verb="purge"):
    """Purge exactly these packages; fails, with nothing removed, when apt would take more away or bring some."""
    module.run_command_environ_update = ENVIRONMENT
    code, out, err = module.run_command([*APT, "-s", verb, *names])
    if "dpkg --configure -a" in err:
        module.run_command(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
        code, out, err = module.run_command([*APT, "-s", verb, *names])
    more = {_plain(name) for name in re.findall(r"^(?:Purg|Remv|Inst) (\S+)", out, re.MULTILINE)} - set(names)
    if code == 0 and more:
        module.fail_json(
            msg="with our packages apt would change others too ({}), so none was removed. Look at `apt-get -s purge {}` on "
            "the node.".format(", ".join(sorted(more)), " ".join(names))
        )
    if code == 0:
        code, out, err = module.run_command([*APT, verb, *names])
    if code != 0:
        said = [line for line in (err + out).splitlines() if line.startswith(("E:", "dpkg: error"))]
        module.fail_json(
            msg="the packages could not be removed: {}. See what holds them, and run the reset again.".format(
                "; ".join(said[-3:]) or (err or out).strip()[-400:]
            )
        )


def gone_for_ours(notes, known):
    """Return the packages that stood before and had to go for ours."""
    names = {name for doc in notes for name in doc["managed"].get("removed", [])}
    return sorted(name for name in names if known.get(name, {}).get("status") != "installed")


def bring_back(module, names):
    """Install packages again that had to go for ours; return what stays to be done, as a sentence."""
    module.run_command_environ_update = ENVIRONMENT
    keep = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", "--no-install-recommends"]
    code, out, err = module.run_command([*APT, *keep, "install", *names])
    if code == 0:
        return None
    said = [line for line in (err + out).splitlines() if line.startswith("E:")]
    return f"install {', '.join(names)} again by hand, which stood before: {'; '.join(said[-2:]) or err.strip()[-200:]}"


def rests(notes):
    """Return what packages left or will leave behind: users and groups that are there, and files in /etc."""
    remains = {"users": [], "groups": [], "etc": []}
    for doc in notes:
        remains["users"] += [name for name in doc["managed"].get("users", []) if name in _of_the_system(PASSWD)]
        remains["groups"] += [name for name in doc["managed"].get("groups", []) if name in _of_the_system(GROUP)]
        remains["etc"] += [path for path in doc["managed"].get("etc", []) if os.path.lexists(path)]
    return remains


def remove_rests(module, notes):
    """Remove what is left of packages that are gone; return what stays, as sentences.

    A file that another package owns, or that was changed since, is none of ours, nor is a group that has got members.
    """
    left, known = [], table(module)
    gone = [doc for doc in notes if not any(name in known for name in doc["managed"].get("installed", []))]
    for user in rests(gone)["users"]:
        code, _, err = module.run_command(["userdel", user])
        left += [f"leave the user {user}: {err.strip()}"] if code != 0 else []
    for group in rests(gone)["groups"]:
        members = _members(group)
        code, err = (1, f"it has the members {members}") if members else module.run_command(["groupdel", group])[::2]
        left += [f"leave the group {group}: {err.strip()}"] if code != 0 else []
    for path in rests(gone)["etc"]:
        end = min(os.stat(doc["base"] + ".ours").st_mtime for doc in gone if path in doc["managed"].get("etc", []))
        untouched = path in BACKUPS or os.lstat(path).st_mtime <= end + 1
        if untouched and module.run_command(["dpkg-query", "-S", path])[0] != 0:
            os.unlink(path)
    return left


def _of_the_system(path):
    """Return the accounts or groups that are no person's: one that was made meanwhile by hand is none of a package's."""
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        lines = [line.split(":") for line in stream]
    return [words[0] for words in lines if len(words) > 2 and words[2].isdigit() and int(words[2]) < PEOPLE]


def _members(group):
    with open(GROUP, encoding="utf-8", errors="surrogateescape") as stream:
        lines = [line.rstrip("\n").split(":") for line in stream]
    return next((words[3] for words in lines if words[0] == group and len(words) > 3), "")
