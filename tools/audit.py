"""Report known vulnerabilities of the packages in a lock file; part of `make check`.

pip-audit asks OSV, or the service at AUDIT_OSV_URL. Where that cannot be reached, nothing is known about the packages:
the output says so, and the exit code is 0, or 1 with AUDIT_STRICT=1. A vulnerability is always exit code 1, and so is
any other failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import requests

OSV = "https://api.osv.dev/v1/query"
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not apply to this project: id -> why."""
_GATEWAY_ERRORS = (502, 503, 504)
_SECONDS = 15


def main(lock: str) -> int:
    """Return the exit code."""
    url = os.environ.get("AUDIT_OSV_URL") or OSV
    count = sum(line[:1].isalnum() for line in Path(lock).read_text(encoding="utf-8").splitlines())
    problem = unreachable(url)
    if problem:
        strict = os.environ.get("AUDIT_STRICT", "") not in ("", "0")
        print(f"not checked: {count} packages of {lock}: {url} cannot be reached ({problem})", flush=True)
        return int(strict)
    ignored = [word for name in ACCEPTED for word in ("--ignore-vuln", name)]
    argv = ["pip-audit", "--vulnerability-service", "osv", "--osv-url", url, "--disable-pip", "--require-hashes"]
    argv += ["--strict", "--progress-spinner", "off", "--requirement", lock, *ignored]
    code = subprocess.run([str(Path(sys.executable).with_name(argv[0])), *argv[1:]], check=False).returncode
    if not code:
        print(f"checked: {count} packages of {lock}", flush=True)
    return int(code != 0)


def unreachable(url: str) -> str:
    """Return why the service cannot be reached, nothing where it answers."""
    question = {"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "0"}
    try:
        status = requests.post(url, json=question, timeout=_SECONDS).status_code
    except (requests.ConnectionError, requests.Timeout) as error:
        return type(error).__name__
    return f"HTTP {status}" if status in _GATEWAY_ERRORS else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
