"""TensorBoard of a batch job in a real browser, through a forwarded port. Needs chromium and PyPI (160 MB)."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path

import pytest

from provision.connectors import connect
from provision.inventory import load

LAB_PYTHON = "3.11"
"""Of the lab's training image, which is Debian 12."""
IMAGE = "tensorboard-test:1"
LOCAL = 19090
WRITE = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
out = EventFileWriter("/training_logs/run")
for step in range(5):
    value = Summary.Value(tag="mnist_loss", simple_value=1.0 / (step + 1))
    out.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=[value])))
out.close()
"""
MAKE = f"""set -e
cd /root && rm -rf site && mkdir site && tar -xf site.tar -C site
docker rm -f tbmake >/dev/null 2>&1 || true
docker create --name tbmake "$(docker image ls --format '{{{{.ID}}}}' | head -n 1)" true >/dev/null
docker cp site/. tbmake:/usr/local/lib/python{LAB_PYTHON}/dist-packages/
docker cp tensorboard tbmake:/usr/local/bin/tensorboard
docker cp write.py tbmake:/write.py
docker commit tbmake {IMAGE} >/dev/null && docker rm tbmake >/dev/null && rm -rf site site.tar
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium here"),
]


@pytest.fixture(scope="module")
def image(cluster, tmp_path_factory):
    """The training image with TensorBoard in it, on every node; no registry has it."""
    folder = tmp_path_factory.mktemp("tensorboard")
    wheels = ["--python-version", LAB_PYTHON, "--only-binary=:all:", "--target", str(folder / "site"), "tensorboard"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wheels], check=True)
    with tarfile.open(folder / "site.tar", "w") as archive:
        archive.add(folder / "site", arcname=".")
    program = "#!/usr/bin/python3\nfrom tensorboard.main import run_main\nrun_main()\n"
    for name, text in (("tensorboard", program), ("write.py", WRITE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for node in load(Path(cluster["inventory"])).nodes:
        with contextlib.closing(connect(node)) as connector:
            for name in ("site.tar", "tensorboard", "write.py"):
                connector.put(folder / name, f"/root/{name}")
            connector.run("chmod 755 /root/tensorboard", timeout=60)
            done = connector.run(MAKE, timeout=900)
        assert done.exit_code == 0, done.stderr
    return IMAGE


def in_browser(url, folder):
    """The page as a browser has it once its scripts have run."""
    argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    argv += ["--virtual-time-budget=20000", "--dump-dom", url]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False).stdout


def answers(url):
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).status == 200  # noqa: S310 - our own address
    return False


@pytest.mark.row(27, 29, 30)
def test_a_forwarded_tensorboard_shows_the_events_of_the_job(provision, cluster, image, tmp_path):
    """The reference's way: submit with --tensorboard, forward the port, look; it outlives the run and goes with it."""
    place = ["-i", cluster["inventory"]]
    words = ["--name", "tb", "--image", image, "--pull", "never", "--tensorboard", "python3 /write.py"]
    provision.ok("submit", "pytorch", *place, *words)
    provision.ok("wait", "tb", "--for", "succeeded", "--timeout", "5m", *place)
    assert provision.ok("get", "tb", *place).out.strip().splitlines()[-1].startswith("http://")

    url = f"http://127.0.0.1:{LOCAL}/"
    argv = provision.argv("port-forward", "tb", f"{LOCAL}:tensorboard", *place)
    forward = subprocess.Popen(argv, env=provision.environment, cwd=provision.folder)
    try:
        deadline = time.monotonic() + 60
        while not answers(url) and time.monotonic() < deadline:
            time.sleep(1)
        assert "mnist_loss" in in_browser(url, tmp_path / "chromium")
    finally:
        forward.terminate()
        forward.wait(30)
    provision.ok("delete", "tb", *place)
    node = load(Path(cluster["inventory"])).nodes[0]
    with contextlib.closing(connect(node)) as connector:
        assert connector.run("docker ps -aq --filter label=provision.job=tb", timeout=60).stdout.strip() == ""
