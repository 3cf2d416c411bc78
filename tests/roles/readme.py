"""The variable table in every role's README, made from its meta/argument_specs.yml.

`python tests/roles/readme.py --write` brings the READMEs up to date; without it, outdated ones are listed (exit 1).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"
BEGIN, END = "<!-- variables: made by tests/roles/readme.py -->", "<!-- end of variables -->"


def roles() -> list[Path]:
    """Return the folders of all roles."""
    return sorted(path for path in ROLES.iterdir() if path.is_dir() and path.name[0] not in "._")


def options(role: Path, entry: str = "main") -> dict[str, Any]:
    """Return a role's variables as its argument_specs describe them."""
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    documented: dict[str, Any] = specs["argument_specs"][entry].get("options", {})
    return documented


def table(role: Path) -> str:
    """Return the table of a role's variables."""
    rows = ["| variable | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, option in options(role).items():
        rows.append(f"| `{name}` | {_type(option)} | `{json.dumps(option.get('default'))}` | {_meaning(option)} |")
        rows += [
            f"| `{name}[].{key}` | {_type(below)} | {'required' if below.get('required') else ''} | {_meaning(below)} |"
            for key, below in option.get("options", {}).items()
        ]
    return "\n".join(rows)


def updated(role: Path) -> str:
    """Return the role's README with the table as it should be."""
    path = role / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {role.name}\n"
    if BEGIN not in text:
        text = text.rstrip("\n") + f"\n\n## Variables\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(role)}\n{END}{rest.partition(END)[2]}"


def _type(option: dict[str, Any]) -> str:
    kind = option.get("type", "str")
    return f"{kind} of {option['elements']}" if "elements" in option else str(kind)


def _meaning(option: dict[str, Any]) -> str:
    description = option.get("description", "")
    text = " ".join(description) if isinstance(description, list) else str(description)
    choices = f" One of: {', '.join(str(c) or 'empty' for c in option['choices'])}." if "choices" in option else ""
    return (" ".join(text.split()) + choices).replace("|", "\\|")


def main() -> int:
    """Write, or list what is outdated."""
    write, outdated = "--write" in sys.argv[1:], []
    for role in roles():
        path, text = role / "README.md", updated(role)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            outdated.append(str(path))
            if write:
                path.write_text(text, encoding="utf-8")
    sys.stdout.write("".join(f"{'written' if write else 'outdated'}: {path}\n" for path in outdated))
    return 0 if write or not outdated else 1


if __name__ == "__main__":
    sys.exit(main())
