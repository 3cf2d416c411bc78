"""What the roles manage on container nodes, said to pyinfra; BENCH_WANTED names what `container_nodes` found there."""

import base64
import io
import json
import os
from pathlib import Path

from pyinfra.operations import apt, docker, files, systemd

wanted = json.loads(Path(os.environ["BENCH_WANTED"]).read_text(encoding="utf-8"))

apt.packages(name="packages", packages=sorted(set(wanted["packages"])))
for path, (mode, content) in sorted(wanted["files"].items()):
    files.put(
        name=path,
        src=io.BytesIO(base64.b64decode(content)),
        dest=path,
        user="root",
        group="root",
        mode=mode.lstrip("0"),
    )
for unit in sorted(set(wanted["units"])):
    systemd.service(name=unit, service=unit, running=True, enabled=True)
for image in sorted(set(wanted["images"])):
    docker.image(name=image, image=image, present=True)
docker.container(name="training container", container="provision-training", image=wanted["images"][0], present=True)
