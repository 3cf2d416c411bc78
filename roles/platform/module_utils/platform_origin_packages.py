"""Record the state before and after a package transaction, so that a reset knows all its effects."""

import os

from ansible.module_utils.platform_origin import (
    load_json,
    record,
    record_data_folder,
    record_names,
    record_path,
    records,
    write_private_json,
)


def names_in(path):
    """Return the first field of each line of a file such as /etc/passwd."""
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        return [line.split(":")[0] for line in stream if ":" in line]


def etc_files():
    """Return all files and links of /etc."""
    return [os.path.join(folder, name) for folder, _, names in os.walk("/etc") for name in names]


def recorded_keys():
    """Return the signing keys that transactions of the roles added to the trusted keys of the package manager."""
    return {key for doc in records("packages") for key in doc["managed"].get("keys", [])}


def begin_packages(manager, requested, folders):
    """Record the packages, accounts and files of /etc before a transaction; return the record's name for `end_packages`."""
    for path in folders:
        record_data_folder(path)
    manager.remove_stale_keys(recorded_keys())
    number = len([name for name in record_names("packages") if name.endswith(".json")])
    name = f"transaction {number}"
    before = {"groups": names_in("/etc/group"), "users": names_in("/etc/passwd"), "etc": etc_files()}
    before.update(installed=manager.partly_installed(), keys=manager.keys())
    record("packages", name, {"requested": requested, **before})
    return name


def end_packages(manager, name):
    """Record the effects of a transaction."""
    before, after = load_json(record_path("packages", name) + ".json"), manager.partly_installed()
    write_private_json(
        record_path("packages", name) + ".ours",
        {
            "installed": sorted(set(after) - set(before["installed"])),
            "removed": sorted(set(before["installed"]) - set(after)),
            "upgraded": {
                key: [version, after[key]]
                for key, version in before["installed"].items()
                if after.get(key, version) != version
            },
            "groups": sorted(set(names_in("/etc/group")) - set(before["groups"])),
            "users": sorted(set(names_in("/etc/passwd")) - set(before["users"])),
            "etc": sorted(set(etc_files()) - set(before["etc"])),
            "keys": sorted(set(manager.keys()) - set(before.get("keys", []))),
        },
    )
