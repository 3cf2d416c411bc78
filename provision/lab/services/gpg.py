"""The key that signs the lab's packages and repositories."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from provision.errors import LabError


class Gpg:
    """gpg with a separate home directory, whose path is short enough for its agent's socket."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def run(self, arguments: Sequence[str]) -> str:
        """Run gpg without prompts and return its output."""
        return run_program(["gpg", "--homedir", str(self._home), "--batch", "--yes", "--quiet", *arguments])

    def make_key(self, user: str) -> tuple[str, str]:
        """Create a signing key; return its public and private part, armored.

        It is an RSA key, because the rpm of Enterprise Linux 8 does not support newer ones.
        """
        self.run(["--passphrase", "", "--quick-generate-key", user, "rsa3072", "sign", "never"])
        return self.run(["--armor", "--export"]), self.run(["--armor", "--export-secret-keys"])

    def rpm_macros(self) -> list[str]:
        """Return options of rpm with which it signs by the only secret key."""
        lines = self.run(["--with-colons", "--list-secret-keys"]).splitlines()
        fingerprint = next(line.split(":")[9] for line in lines if line.startswith("fpr:"))
        macros = {"__gpg": "/usr/bin/gpg", "_gpg_path": str(self._home), "_gpg_name": fingerprint}
        return [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]

    def close(self) -> None:
        """Stop the agent that gpg started."""
        subprocess.run(
            ["gpgconf", "--homedir", str(self._home), "--kill", "all"],
            capture_output=True,
            check=False,
        )


def run_program(argv: Sequence[str], cwd: Path | None = None) -> str:
    """Run a program and return its output.

    Raises:
        LabError: it failed.
    """
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise LabError(f"{argv[0]} failed while making the lab's package repository", output=done.stderr)
    return done.stdout
