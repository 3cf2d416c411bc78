"""Record the state before and after a package transaction, so that a reset knows all its effects."""

import os

from ansible.module_utils.platform_origin import (
    load_json,
    record,
    record_data_folder,
    record_names,
    record_path,
    write_private_json,
)


def installed_versions(module):
    """Return name -> version of the packages that are at least partly installed."""
    form = "${Package} ${db:Status-Status} ${Version}\\n"
    lines = [line.split() for line in module.run_command(["dpkg-query", "-W", "-f", form])[1].splitlines()]
    return {words[0]: words[2] for words in lines if len(words) == 3 and words[1] != "config-files"}


def names_in(path):
    """Return the first field of each line of a file such as /etc/passwd."""
    with open(path, encoding="utf-8", errors="surrogateescape") as stream:
        return [line.split(":")[0] for line in stream if ":" in line]


def etc_files():
    """Return all files and links of /etc."""
    return [os.path.join(folder, name) for folder, _, names in os.walk("/etc") for name in names]


def begin_packages(module, requested, folders):
    """Record the packages, accounts and files of /etc before a transaction; return the record's name for `end_packages`."""
    for path in folders:
        record_data_folder(path)
    number = len([name for name in record_names("packages") if name.endswith(".json")])
    name = f"transaction {number}"
    before = {"groups": names_in("/etc/group"), "users": names_in("/etc/passwd"), "etc": etc_files()}
    record("packages", name, {"requested": requested, "installed": installed_versions(module), **before})
    return name


def end_packages(module, name):
    """Record the effects of a transaction."""
    before, after = load_json(record_path("packages", name) + ".json"), installed_versions(module)
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
        },
    )
