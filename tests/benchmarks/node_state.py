"""Print what the roles manage on this node, as JSON. It runs on nodes, whose receipts have the names.

An argument has the names for a node without receipts: a document of this program, in base64.
"""

import base64
import json
import subprocess
import sys
from pathlib import Path

STATE = "/var/lib/provision"
SETTINGS = ("Binds", "NetworkMode", "RestartPolicy", "ShmSize", "Ulimits", "CapAdd", "CapDrop", "Init", "LogConfig")
"""Settings of a container that are the same for each container of one description."""


def output(*words):
    """Return what a command prints."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout


def names_of_receipts():
    """Return the names of what the receipts list."""
    names = {"packages": set(), "units": set(), "images": set(), "containers": set(), "files": set(), "blocks": set()}
    for path in Path(STATE, "receipts").glob("*.json"):
        receipt = json.loads(path.read_text())
        for section in ("packages", "units", "images", "containers"):
            names[section].update(receipt[section])
        for name, item in receipt["files"].items():
            if item["type"] == "file":
                names["blocks" if item.get("block") else "files"].add(name)
    names["files"].update(name + ".pub" for name in list(names["files"]) if Path(name + ".pub").exists())
    folders = {str(Path(name).parent) for name in names["files"] if name.startswith(STATE)}
    names["directories"] = {STATE, *folders}
    return names


def mode_of(path):
    """Return the permissions of a file, as text."""
    return f"{Path(path).stat().st_mode & 0o7777:o}"


def content_of(path):
    """Return the content of a file in base64."""
    return base64.b64encode(Path(path).read_bytes()).decode()


def block_of(path):
    """Return the lines of the roles' block in a file."""
    lines = Path(path).read_text().splitlines()
    if "# BEGIN provision" not in lines:
        return []
    return lines[lines.index("# BEGIN provision") + 1 : lines.index("# END provision")]


def container(name):
    """Return the settings of a container."""
    one = (json.loads(output("docker", "container", "inspect", name) or "[]") or [{}])[0]
    if not one:
        return {}
    settings = {key: one["HostConfig"][key] for key in SETTINGS}
    settings = {key: sorted(value, key=str) if isinstance(value, list) else value for key, value in settings.items()}
    environment = [text for text in one["Config"]["Env"] if text.startswith("PROVISION_")]
    return dict(
        settings, Image=one["Config"]["Image"], Env=environment, Entrypoint=one["Config"]["Entrypoint"],
        Running=one["State"]["Running"],
    )  # fmt: skip


def main():
    """Print the document."""
    names = json.loads(base64.b64decode(sys.argv[1]).decode()) if len(sys.argv) > 1 else names_of_receipts()
    installed = output("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n").splitlines()
    units = {
        name: [output("systemctl", word, name).strip() for word in ("is-active", "is-enabled")]
        for name in names["units"]
    }
    state = {
        "packages": sorted(name for name in names["packages"] if "installed " + name in installed),
        "units": units,
        "images": sorted(name for name in names["images"] if output("docker", "image", "ls", "-q", name)),
        "directories": {name: mode_of(name) for name in names["directories"] if Path(name).is_dir()},
        "files": {name: [mode_of(name), content_of(name)] for name in names["files"] if Path(name).exists()},
        "blocks": {name: block_of(name) for name in names["blocks"]},
        "containers": {name: container(name) for name in names["containers"]},
    }
    sys.stdout.write(json.dumps(state, sort_keys=True) + "\n")


main()
