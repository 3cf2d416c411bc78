"""docs/security.md and SECURITY.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tests_listed_on_the_security_page_exist() -> None:
    """Each finding of the review is mapped to tests; a renamed test does not leave the map stale."""
    page = (ROOT / "docs/security.md").read_text()
    named = re.findall(r"`(tests/[^`:]+)(?:::(\w+))?`", page)

    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and f"def {name}(" not in (ROOT / path).read_text())
    ]

    assert len(named) > 15
    assert missing == []
