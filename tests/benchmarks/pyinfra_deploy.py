"""What the roles manage on container nodes, for pyinfra; BENCH_WANTED: a document of `node_state` by address.

All contents are ready-made, also those of keys and known hosts.
"""

import base64
import io
import json
import os
from pathlib import Path

from pyinfra import host
from pyinfra.facts.files import Block
from pyinfra.operations import apt, docker, files, server, systemd
from pyinfra.operations.util import any_changed

wanted = json.loads(Path(os.environ["BENCH_WANTED"]).read_text(encoding="utf-8"))[host.name]


def put(path):
    """Write a file."""
    mode, content = wanted["files"][path]
    source = io.BytesIO(base64.b64decode(content))
    return files.put(name=path, src=source, dest=path, user="root", group="root", mode=mode)


for folder, mode in sorted(wanted["directories"].items()):
    files.directory(name=folder, path=folder, mode=mode)
sources = [put(path) for path in sorted(wanted["files"]) if path.startswith("/etc/apt/")]
apt.update(name="package lists", _if=any_changed(*sources))
apt.packages(name="packages", packages=wanted["packages"], no_recommends=True)
written = {path: put(path) for path in sorted(wanted["files"]) if not path.startswith("/etc/apt/")}
for path, lines in wanted["blocks"].items():
    # `files.block` replaces the file, which the engine of the lab mounted: one command writes it in place.
    if host.get_fact(Block, path=path, marker="# {mark} provision") != lines:
        text = "\n".join(["# BEGIN provision", *lines, "# END provision"])
        rest = f"sed '/^# BEGIN provision$/,/^# END provision$/d' {path}"
        server.shell(name=path, commands=[f"{{ echo '{text}'; {rest}; }} >/run/block && cat /run/block >{path}"])
manager = [change for path, change in written.items() if path.startswith("/etc/systemd/system")]
server.shell(name="manager configuration", commands=["systemctl daemon-reexec"], _if=any_changed(*manager))
for unit, (active, _) in sorted(wanted["units"].items()):
    if active == "active":
        systemd.service(name=unit, service=unit, running=True, enabled=True)
    else:
        systemd.service(name=unit, service=unit, running=None, enabled=True)
        server.shell(name=f"{unit} once", commands=[f"systemctl start {unit}"], _if=any_changed(*manager))
systemd.service(
    name="engine with its settings", service="docker", restarted=True,
    _if=written["/etc/docker/daemon.json"].did_change,
)  # fmt: skip
for image in wanted["images"]:
    docker.image(name=image, image=image, present=True)
for name, settings in wanted["containers"].items():
    ulimits = [f"--ulimit={one['Name']}={one['Soft']}:{one['Hard']}" for one in settings["Ulimits"]]
    logs = [f"--log-opt={key}={value}" for key, value in settings["LogConfig"]["Config"].items()]
    capabilities = [f"--cap-add={one}" for one in settings["CapAdd"]] + [
        f"--cap-drop={one}" for one in settings["CapDrop"]
    ]
    docker.container(
        name=name,
        container=name,
        image=settings["Image"],
        networks=[settings["NetworkMode"]],
        volumes=settings["Binds"],
        env_vars=settings["Env"],
        entrypoint=settings["Entrypoint"][0],
        restart_policy=settings["RestartPolicy"]["Name"],
        extra_args=["--init", f"--shm-size={settings['ShmSize']}", *ulimits, *logs, *capabilities],
    )
