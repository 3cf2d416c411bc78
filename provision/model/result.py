"""Results of commands on nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandResult:
    """Output and exit status of one finished command; text is decoded as UTF-8 with replacement."""

    stdout: str
    stderr: str
    exit_code: int

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    def last_lines(self, count: int = 10) -> str:
        """Return the last `count` lines of stderr, or of stdout if stderr is empty."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-count:])
