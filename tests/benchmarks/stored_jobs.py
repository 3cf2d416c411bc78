"""Makes many finished jobs of one, on a node: ``python3 - FOLDER-OF-NODE-PROGRAMS NAME COUNT``, as root.

Each has what the job supervisor wrote for the one, under a name and an id of its own. Where the one is in the queue (on
the node that keeps it), the name is taken by the node program's own ``reserve``.
"""

import json
import shutil
import sys
from pathlib import Path

folder, one, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, folder)
from provision.node.files import read_json, write_json  # noqa: E402 - the archive is an argument
from provision.node.jobs.queue import reserve  # noqa: E402
from provision.node.jobs.records import ROOT  # noqa: E402

there = Path(ROOT) / one
job, queue = read_json(there / "job.json"), read_json(there / "queue.json")
for number in range(count):
    name, token = f"stored-{number}", f"{number:012x}"
    own = json.loads(json.dumps(job).replace(one, name).replace(job["id"], token))
    if queue:
        reserve({"name": name, "job": own, "queue": queue})
    else:
        (there.parent / name).mkdir(mode=0o700)
        write_json(there.parent / name / "job.json", own)
    for path in sorted(there.rglob("*")):
        copy = there.parent / name / str(path.relative_to(there)).replace(one, name)
        if path.is_dir():
            copy.mkdir(mode=0o700, exist_ok=True)
        elif path.name not in {"job.json", "queue.json"}:
            text = path.read_text(encoding="utf-8", errors="replace")
            copy.write_text(text.replace(one, name).replace(job["id"], token), encoding="utf-8")
            shutil.copymode(path, copy)
