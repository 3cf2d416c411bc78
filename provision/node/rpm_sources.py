"""The files of dnf that people edit too: their sections, and the addresses of enabled repositories.

The preflight of packages and the role use the same rules, so that both know which repositories a node already has.
Python 3.6 or newer and the standard library only.
"""

import configparser
import glob
import os
import re
from typing import Callable, List, Set


def configuration(path: str) -> configparser.RawConfigParser:
    """Return the sections of a file, none if it cannot be read or is invalid: dnf ignores such a file, too."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            parser.read_file(stream)
    except (OSError, configparser.Error):
        return configparser.RawConfigParser()
    return parser


def enabled_addresses(pattern: str, release: Callable[[], str]) -> List[str]:
    """Return the addresses of enabled repositories that the roles did not write, without variables and final slashes.

    Args:
        pattern: path of the files, with wildcards.
        release: returns the value of ``$releasever``; it is called if an address contains that variable.
    """
    addresses: Set[str] = set()
    for path in sorted(glob.glob(pattern)):
        parser = configuration(path) if "/provision-" not in path else configparser.RawConfigParser()
        for section in parser.sections():
            if parser.get(section, "enabled", fallback="1").strip().lower() in ("1", "true", "yes"):
                addresses.update(parser.get(section, "baseurl", fallback="").replace(",", " ").split())
    return sorted(normalized(url, release) for url in addresses)


def normalized(url: str, release: Callable[[], str]) -> str:
    """Return an address without dnf's variables and the final slash."""
    values = {"basearch": os.uname().machine, "releasever": release() if "releasever" in url else ""}
    for name, value in values.items():
        url = re.sub(r"\$(\{" + name + r"\}|" + name + r"\b)", value or "$" + name, url)
    return url.rstrip("/")
