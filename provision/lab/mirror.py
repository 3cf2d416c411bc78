"""The controller's mirror of a system's archive, for lab images and lab nodes.

The mirror is read at run time from the controller's apt sources. If the controller runs another release, the release
names in the suites are replaced.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provision.errors import LabError
from provision.lab.systems import LabSystem

_USERINFO = re.compile(r"(?<=://)[^\s\"]*@")
_SUITE = re.compile(r"([a-z]+)(-updates|-security|/updates|)")
_MIRROR_SETTINGS = re.compile(
    r"Acquire::(Check-Valid-Until|Check-Date|Retries|(http|https)::(Proxy|Timeout|Verify-Peer|Verify-Host)(::\S+)?)$"
)


@dataclass(frozen=True)
class Stanza:
    """One apt source: URIs, suites, components."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


@dataclass(frozen=True)
class MirrorSources:
    """The apt sources of one system, for mmdebstrap and for a node."""

    system: LabSystem
    stanzas: tuple[Stanza, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """The controller's apt settings for access to the mirror: proxy, date checks, retries."""

    @property
    def lines(self) -> tuple[str, ...]:
        """One-line sources for mmdebstrap (``deb [signed-by=...] URI SUITE COMPONENTS``)."""
        return tuple(
            f"deb [signed-by={self.system.keyring}] {uri} {suite} {' '.join(stanza.components)}"
            for stanza in self.stanzas
            for uri in stanza.uris
            for suite in stanza.suites
        )

    @property
    def deb822(self) -> str:
        """Text of the system's `sources_file` for a node, without credentials."""
        return "\n".join(
            f"Types: deb\nURIs: {public(' '.join(stanza.uris))}\nSuites: {' '.join(stanza.suites)}\n"
            f"Components: {' '.join(stanza.components)}\nSigned-By: {self.system.keyring}\n"
            for stanza in self.stanzas
        )

    @property
    def apt_conf(self) -> str:
        """Text of an ``/etc/apt/apt.conf.d`` file for a node, without credentials; may be empty."""
        return public("".join(f'{name} "{value}";\n' for name, value in self.settings))

    @property
    def private(self) -> bool:
        """Whether a source or a proxy contains a user name or a password."""
        return any(public(text) != text for text in (*self.lines, *self.aptopts))

    def arguments(self, scratch: Path) -> tuple[list[str], list[str]]:
        """Return mmdebstrap's apt options and its sources.

        With credentials, they are private files in `scratch`, because all users can read command lines. mmdebstrap
        copies them into the new system; the builder of the image removes them there.
        """
        if not self.private:
            return [f"--aptopt={option}" for option in self.aptopts], list(self.lines)
        options, sources = scratch / "apt.conf", scratch / "mirror.list"
        texts = {options: "".join(f"{option};\n" for option in self.aptopts), sources: "\n".join(self.lines) + "\n"}
        for path, text in texts.items():
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                stream.write(text)
        return [f"--aptopt={options}"], [str(sources)]

    @property
    def aptopts(self) -> tuple[str, ...]:
        """The settings as values for mmdebstrap's ``--aptopt``."""
        return tuple(f'{name} "{value}"' for name, value in self.settings)


def public(text: str) -> str:
    """Return `text` without user names and passwords in URLs."""
    return _USERINFO.sub("", text)


def mirror_sources(system: LabSystem, *, etc_apt: Path = Path("/etc/apt")) -> MirrorSources:
    """Return the sources of a system's archive, based on the controller's apt sources.

    Raises:
        LabError: the controller has no source of the archive, and no mirror was given.
    """
    suite, variable = system.suite, system.mirror_variable
    mirror = system.mirror or os.environ.get(variable, "")
    if mirror:
        stanzas: tuple[Stanza, ...] = (Stanza((mirror,), (suite, f"{suite}-updates"), system.areas),)
    else:
        stanzas = _for_release(suite, [stanza for stanza in _read_all(etc_apt) if _is_of_archive(stanza, system)])
    if not stanzas:
        archive = system.archive.capitalize()
        raise LabError(
            f"{etc_apt}: no {archive} mirror in the controller's apt sources; cannot build a {suite} image",
            remedy=f"Add {archive}'s repository to {etc_apt}/sources.list.d, or set {variable} to a mirror's URL.",
        )
    return MirrorSources(system, stanzas, tuple(_settings()))


def require_keyring(system: LabSystem) -> None:
    """Check that this machine has the keys of a system's archive.

    Raises:
        LabError: it does not.
    """
    if not Path(system.keyring).is_file():
        raise LabError(
            f"{system.keyring}: no such file; a {system.suite} image needs the keys of the archive",
            remedy="Install the package that contains it: apt-get install debian-archive-keyring ubuntu-keyring",
        )


def parse_deb822(text: str) -> list[Stanza]:
    """Parse a ``.sources`` file without disabled and source-package stanzas."""
    stanzas = []
    for block in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields = _fields(block)
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in {"no", "false"}:
            stanzas.append(_stanza(fields))
    return stanzas


def parse_one_line(text: str) -> list[Stanza]:
    """Parse a ``sources.list`` file without comments and ``deb-src``."""
    stanzas = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<rest>\S.*)", line.split("#", 1)[0].strip())
        if not match:
            continue
        words = match["rest"].split()
        signed = re.search(r"signed-by=(\S+)", match["options"] or "")
        stanzas.append(Stanza(tuple(words[:1]), tuple(words[1:2]), tuple(words[2:]), signed.group(1) if signed else ""))
    return stanzas


def _read_all(etc_apt: Path) -> list[Stanza]:
    stanzas = []
    for path in [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]:
        if path.is_file() and path.suffix == ".sources":
            stanzas += parse_deb822(path.read_text(encoding="utf-8", errors="replace"))
        elif path.is_file() and path.suffix == ".list":
            stanzas += parse_one_line(path.read_text(encoding="utf-8", errors="replace"))
    return stanzas


def _fields(block: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if line[:1].isspace() and name:
            fields[name] += "\n" + line.strip()
        elif ":" in line:
            name, value = line.split(":", 1)
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _stanza(fields: Mapping[str, str]) -> Stanza:
    def words(key: str) -> tuple[str, ...]:
        return tuple(fields.get(key, "").split())

    return Stanza(words("uris"), words("suites"), words("components"), fields.get("signed-by", ""))


def _is_of_archive(stanza: Stanza, system: LabSystem) -> bool:
    """Return whether a stanza is of the system's archive; third parties use the same suite names, but other keys."""
    if set(system.areas).isdisjoint(stanza.components):
        return False
    if stanza.signed_by:
        return f"{system.archive}-archive" in stanza.signed_by
    return all(uri.rstrip("/").rsplit("/", 1)[-1].startswith(system.archive) for uri in stanza.uris)


def _for_release(suite: str, stanzas: Iterable[Stanza]) -> tuple[Stanza, ...]:
    """Return one release's suites, with the release replaced if only another one is configured."""
    entries = [(stanza, match) for stanza in stanzas for name in stanza.suites if (match := _SUITE.fullmatch(name))]
    releases = [match[1] for _, match in entries]
    if not releases:
        return ()
    base = suite if suite in releases else releases[0]
    suites_by_stanza: dict[Stanza, list[str]] = {}
    for stanza, match in entries:
        if match[1] == base:
            suites_by_stanza.setdefault(stanza, []).append(suite + match[2])
    return tuple(replace(stanza, suites=tuple(dict.fromkeys(suites))) for stanza, suites in suites_by_stanza.items())


def _settings() -> Iterable[tuple[str, str]]:
    try:
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for line in dump.splitlines():
        match = re.fullmatch(r'(\S+) "(.*)";', line)
        if match and match[2] and _MIRROR_SETTINGS.match(match[1]):
            yield match[1], match[2]
