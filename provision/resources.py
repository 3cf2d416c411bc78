"""Files that belong to this program besides its modules: roles, playbooks, the example inventory, lock file, commit.

An installed package contains them in ``provision/data``, where setup.py copies them. In a checkout they are in the
folder above the package. Files inside packages, such as the machine descriptions of the lab, are in the same places in
both.
"""

from __future__ import annotations

import os
from pathlib import Path

from provision.errors import ProvisionError

_DATA = "data"


def package_path(*parts: str) -> Path:
    """Return the path of a file or folder inside the package ``provision``."""
    from importlib.resources import files  # it costs 5 ms

    return Path(str(files("provision").joinpath(*parts)))


def roles_folder() -> Path:
    """Return the folder of the roles."""
    return _existing("roles", "platform/tasks/main.yml")


def playbooks_folder() -> Path:
    """Return the folder of the playbooks: ``PROVISION_PLAYBOOKS``, else that of this installation."""
    chosen = os.environ.get("PROVISION_PLAYBOOKS")
    if not chosen:
        return _existing("playbooks", "site.yml")
    if not Path(chosen, "site.yml").is_file():
        raise ProvisionError(
            f"{chosen}: playbooks not found (it has no site.yml)",
            remedy="Set PROVISION_PLAYBOOKS to the folder of the playbooks, or unset it.",
        )
    return Path(chosen)


def example_inventory() -> Path:
    """Return the folder of the example inventory, which documents every variable."""
    return _existing("inventories/example", "hosts.yml")


def lock_file() -> Path:
    """Return the file with the versions and hashes of the packages that this program uses."""
    return _existing("requirements.lock")


def checkout() -> Path | None:
    """Return the root of the checkout from which this program runs, None for an installed package."""
    return None if package_path(_DATA).is_dir() else package_path().parent


def built_commit() -> str:
    """Return the commit that an installed package was built from; empty if unknown, and in a checkout."""
    try:
        return package_path(_DATA, "commit").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _existing(name: str, inside: str = "") -> Path:
    path = (checkout() or package_path(_DATA)) / name
    if not (path / inside).exists():
        raise ProvisionError(
            f"{path}: files of this program are missing (the installation is incomplete)",
            remedy="Install it again: pip install --force-reinstall gpu-provision",
        )
    return path
