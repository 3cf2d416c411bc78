"""Package mirrors that fail: the lab's own repository, whose server refuses files at first, and real apt on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.integration.conftest import LAB
from tests.support.command import ROOT

NODE = f"{LAB}-2"
PACKAGE = "nvidia-docker2"
"""The guide's; here it is SIMULATED, and no role wants it unless it is asked for."""
REFUSALS = 4
"""Of each package: one more than apt's own three retries bear."""
BACKUP = "/root/kept"
SAVE = f"""set -e
rm -rf {BACKUP} && mkdir {BACKUP}
cp -a /etc/apt/sources.list.d /var/lib/provision/origins {BACKUP}
mv /var/lib/apt/lists {BACKUP}
rm -f /etc/apt/sources.list.d/debian.sources /var/cache/apt/archives/{PACKAGE}_*
sed -i 's#^URIs: .*#URIs: MIRROR#' /etc/apt/sources.list.d/provision-provision-lab.sources"""
"""From now on the mirror is the node's only source of packages; all that is known of others is put aside."""
RESTORE = f"""apt-get -qq purge -y {PACKAGE} >/dev/null 2>&1
rm -rf /etc/apt/sources.list.d /var/lib/provision/origins /var/lib/apt/lists
mv {BACKUP}/sources.list.d /etc/apt && mv {BACKUP}/origins /var/lib/provision && mv {BACKUP}/lists /var/lib/apt
touch /var/lib/apt/lists/partial
rmdir {BACKUP}"""


@contextmanager
def failing_mirror(folder, address, asked):
    """Serve a repository; each package is refused with 503 until it was asked for `REFUSALS` times."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self):
            asked[self.path] += 1
            if self.path.endswith(".deb") and asked[self.path] <= REFUSALS:
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, *_words):
            pass

    server = ThreadingHTTPServer((address, 0), partial(Handler, directory=folder))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
@pytest.mark.row(46)
def test_a_failed_package_download_is_retried(provision, cluster, ssh_files, on_node):
    """As the roles install it: by apt's retries, and when these were in vain by one more whole try."""
    asked = Counter()
    address = f"{cluster['nodes'][0]['address'].rpartition('.')[0]}.1"
    with failing_mirror(str(ssh_files / "services/repository"), address, asked) as mirror:
        on_node(NODE, SAVE.replace("MIRROR", mirror))
        try:
            done = subprocess.run(
                [
                    Path(sys.executable).with_name("ansible"), NODE, "-i", ssh_files / "inventory/hosts.yml", "-b",
                    "-m", "platform_packages", "-a", json.dumps({"packages": [PACKAGE]}),
                ],
                env={
                    **provision.environment,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "ANSIBLE_LIBRARY": str(ROOT / "roles/platform/library"),
                    "ANSIBLE_MODULE_UTILS": str(ROOT / "roles/platform/module_utils"),
                },
                capture_output=True,
                text=True,
                check=False,
            )  # fmt: skip
            package_status = on_node(NODE, f"dpkg-query -W -f '${{db:Status-Status}}' {PACKAGE} || true")
        finally:
            on_node(NODE, RESTORE)

    assert done.returncode == 0, done.stdout + done.stderr
    assert package_status == "installed"
    packages = {path: count for path, count in asked.items() if path.endswith(".deb")}
    assert packages, "the mirror was asked for the package"
    assert set(packages.values()) == {REFUSALS + 1}
