"""Make a node of SIMULATED Enterprise Linux of a Debian file system; runs in it, while mmdebstrap makes the image.

Packages of Debian become packages of rpm under the names of Enterprise Linux. rpm's database gets those that the node
has, and one that provides all its other files, so that dnf resolves dependencies. Then apt and dpkg are removed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

WORK = Path("/var/tmp/lab-el")  # noqa: S108 # nosec B108 # the image is being made, there are no other users
ARCHIVES = Path("/var/cache/apt/archives")
LISTS = Path("/var/lib/dpkg/info")
LAB_PYTHON = Path("/usr/libexec/lab-python")
"""The interpreter of Debian's files, which dnf and the programs of the lab run on."""
BUNDLE = "/usr/lib/lab-python"
"""Begins the folder of an interpreter with libraries that only it uses."""
ELF = b"\x7fELF"
UNIT = re.compile(r"/usr/lib/systemd/system/[^/@]+\.(service|socket|timer)")
LIBRARY = re.compile(r"\.so(\.|$)")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
LEFT_OUT = (
    "/etc/default/*",
    "/etc/init.d/*",
    "/usr/share/bug/*",
    "/usr/share/doc/*",
    "/usr/share/doc-base/*",
    "/usr/share/docker.io/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
)
REMOVED = re.compile(
    r"(apt|debconf|debian-archive-keyring|dpkg|init-system-helpers|libapt-pkg[0-9.]+(t64)?|patchelf)(:\w+)?\.list"
)
REMOVED_FOLDERS = (
    "/etc/apt",
    "/etc/debian_version",
    "/etc/dpkg",
    "/usr/lib/apt",
    "/usr/lib/dpkg",
    "/usr/share/debconf",
    "/usr/share/dpkg",
    "/var/cache/apt",
    "/var/cache/debconf",
    "/var/lib/apt",
    "/var/lib/dpkg",
)
MADE_FOLDERS = (
    "/etc/pki/ca-trust/source/anchors",
    "/etc/pki/rpm-gpg",
    "/etc/sysconfig",
    "/etc/yum.repos.d",
    "/usr/libexec",
)
EXPECTED_BY_MMDEBSTRAP = ("/sbin/start-stop-daemon", "/usr/sbin/start-stop-daemon")
MACROS = {
    "_topdir": f"{WORK}/rpmbuild",
    "_fileattrsdir": f"{WORK}/attributes",  # dependencies of libraries only
    "_binary_payload": "w1.gzdio",
    "_buildhost": "lab",
    "_build_id_links": "none",
    "__os_install_post": "%{nil}",
    "debug_package": "%{nil}",
}


def main(plan_file: str) -> None:
    """Make the node that the file describes."""
    plan = json.loads(Path(plan_file).read_text(encoding="utf-8"))
    for folder in MADE_FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
    make_libraries_executable()
    packages = [Package(entry) for entry in plan["packages"]]
    debs = download(packages, plan["unused_debs"])
    assign(packages, debs, set(run("dpkg-query", "--show", "--showformat", "${Package}\\n").split()))
    for deb in debs.values():
        unpack(deb, packages)
    build(plan, packages, debs)
    install_in_database(plan, packages)
    set_up_python(plan)
    rename_ssh()
    remove_init_scripts()
    remove_debian()
    run("dnf", "--quiet", "check", "--dependencies")


class Deb:
    """A package of Debian."""

    def __init__(self, path: Path) -> None:
        fields = run("dpkg-deb", "--field", str(path), "Package", "Version", "Depends")
        values = dict(line.split(": ", 1) for line in fields.splitlines() if ": " in line)
        self.path = path
        self.name = values["Package"]
        self.version = upstream(values["Version"])
        self.depends = [name for words in values.get("Depends", "").split(",") for name in alternatives(words)]


class Package:
    """A package of rpm."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.name: str = entry["name"]
        self.debs: list[str] = entry["debs"]
        self.patterns: list[str] = entry["files"]
        self.is_vendors: bool = entry["is_vendors"]
        self.epoch: int = entry["epoch"]
        self.version: str = entry["version"]
        self.requires: list[str] = entry["requires"]
        self.provides: list[str] = entry["provides"]
        self.links: dict[str, str] = entry["links"]
        self.group: str = entry["group"]
        self.with_dependencies: bool = entry["with_dependencies"]
        self.sources: list[Deb] = []
        self.of_the_base: set[str] = set()
        self.paths = set(self.links)
        self.folders: set[str] = set()
        self.units: list[str] = []
        self.in_image = False

    @property
    def has_libraries(self) -> bool:
        """Whether the cache of libraries changes with it."""
        return any(LIBRARY.search(path) for path in self.paths)


def run(*argv: str, text: str = "") -> str:
    """Run a program and return its output; end with its error output if it fails."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(argv)[:2000]}\nended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def rpm(*words: str) -> str:
    """Run rpm."""
    return run("rpm", *words)


def upstream(version: str) -> str:
    """Return the version without epoch, revision and suffix of Debian: ``20.10.24`` of ``20.10.24+dfsg1-1``."""
    match = re.match(r"(?:\d+:)?(\d[0-9A-Za-z.]*)", version)
    return match.group(1) if match else "1"


def alternatives(words: str) -> list[str]:
    """Return the names in one dependency of Debian: ``iptables`` of ``iptables (>= 1.8) | nftables``."""
    return [re.split(r"[\s(:]", word.strip(), maxsplit=1)[0] for word in words.split("|")]


def download(packages: list[Package], unused: list[str]) -> dict[str, Deb]:
    """Download the packages of Debian, and what they require beyond the packages of the node."""
    available = set(run("apt-cache", "pkgnames").split())
    wanted = {name for package in packages if package.with_dependencies for name in package.debs} & available
    alone = {name for package in packages if not package.with_dependencies for name in package.debs} & available
    run("apt-get", "clean")
    run(
        "apt-get", "--quiet", "--yes", "--no-install-recommends", "--download-only", "--reinstall", "install",
        *sorted(wanted),
    )  # fmt: skip
    run("sh", "-c", 'cd "$0" && exec apt-get --quiet download "$@"', str(ARCHIVES), *sorted(alone))
    debs = [Deb(path) for path in sorted(ARCHIVES.glob("*.deb"))]
    return {deb.name: deb for deb in debs if deb.name not in unused and not deb.name.startswith("perl")}


def assign(packages: list[Package], debs: dict[str, Deb], installed: set[str]) -> None:
    """Set the sources of each package; other debs become packages under their own names."""
    for package in packages:
        package.sources = [debs[name] for name in package.debs if name in debs]
        if package.sources:
            package.version = package.sources[0].version
            package.in_image = all(deb.name in installed for deb in package.sources)
            if not package.in_image:  # its removal would take them from what the node needs
                package.of_the_base = {deb.name for deb in package.sources if deb.name in installed}
    assigned = {deb.name for package in packages for deb in package.sources}
    for name in sorted(set(debs) - assigned):
        entry = {"name": name, "debs": [name], "files": ["*"], "is_vendors": False, "epoch": 0}
        package = Package(
            {
                **entry,
                "version": debs[name].version,
                "requires": [],
                "provides": [],
                "links": {},
                "group": "",
                "with_dependencies": True,
            }
        )
        package.sources = [debs[name]]
        packages.append(package)


def unpack(deb: Deb, packages: list[Package]) -> None:
    """Move the files of a deb into the tree, each for the first package that takes it."""
    takers = [package for package in packages if deb in package.sources and deb.name not in package.of_the_base]
    tree = WORK / "deb"
    run("dpkg-deb", "--extract", str(deb.path), str(tree))
    for folder, folders, names in os.walk(tree):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in [*names, *links]:
            path = merged("/" + str((here / name).relative_to(tree)))
            package = taker(takers, path)
            if package is not None:
                package.paths.add(path)
                if UNIT.fullmatch(path) and not (here / name).is_symlink():
                    package.units.append(name)
                move(here / name, path)
        if not names and not folders and here != tree:
            path = merged("/" + str(here.relative_to(tree)))
            package = taker(takers, path)
            if package is not None and not Path(path).exists():
                package.folders.add(path)
                (WORK / "root" / path[1:]).mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tree)


def taker(packages: list[Package], path: str) -> Package | None:
    """Return the package that takes a path."""
    if any(fnmatch.fnmatchcase(path, pattern) for pattern in LEFT_OUT):
        return None
    return next((one for one in packages if any(fnmatch.fnmatchcase(path, word) for word in one.patterns)), None)


def merged(path: str) -> str:
    """Return where a path is since ``/bin`` and others are links."""
    return f"/usr{path}" if path.split("/")[1] in MERGED else path


def move(source: Path, path: str) -> None:
    """Move a file into the tree; libraries become executable, without which rpm ignores their dependencies."""
    target = WORK / "root" / path[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
    if LIBRARY.search(path) and not target.is_symlink():
        target.chmod(0o755)


def make_libraries_executable() -> None:
    """As the system has them; rpm lists what executable libraries provide."""
    for path in libraries():
        path.chmod(path.stat().st_mode | 0o111)


def libraries() -> list[Path]:
    """Return the libraries of the node."""
    names = [path for path in Path("/usr/lib").rglob("*.so*") if path.is_file() and not path.is_symlink()]
    return [path for path in names if path.open("rb").read(4) == ELF and not str(path).startswith(BUNDLE)]


def build(plan: dict[str, Any], packages: list[Package], debs: dict[str, Deb]) -> None:
    """Build all packages."""
    attributes = WORK / "attributes"
    attributes.mkdir()
    shutil.copy("/usr/lib/rpm/fileattrs/elf.attr", attributes)
    (WORK / "lists").mkdir()
    (WORK / "root").mkdir(exist_ok=True)
    for package in packages:
        for path, target in package.links.items():
            link = WORK / "root" / path[1:]
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_symlink() or link.exists():
                link.unlink()
            link.symlink_to(target)
        (WORK / "lists" / package.name).write_text(file_list(package), encoding="utf-8")
    names = {deb.name: package.name for package in packages for deb in package.sources}
    spec = WORK / "lab.spec"
    spec.write_text(spec_text(plan, packages, {name: names[name] for name in debs}), encoding="utf-8")
    definitions = [word for name, value in MACROS.items() for word in ("--define", f"{name} {value}")]
    run("rpmbuild", "-bb", *definitions, str(spec))
    for folder in (plan["system_folder"], plan["vendor_folder"]):
        (WORK / folder).mkdir()
    vendors = {package.name for package in packages if package.is_vendors}
    for made in (WORK / "rpmbuild/RPMS").glob("*/*.rpm"):
        folder = plan["vendor_folder"] if made.name.rsplit("-", 2)[0] in vendors else plan["system_folder"]
        made.rename(WORK / folder / made.name)


def file_list(package: Package) -> str:
    """Return the lines of the section %files."""
    folders = {str(parent) for path in package.paths for parent in Path(path).parents} | package.folders
    lines = [f'%dir "{folder}"' for folder in sorted(folders) if not Path(folder).exists()]
    lines += [
        f'%config(noreplace) "{path}"' if path.startswith("/etc/") else f'"{path}"' for path in sorted(package.paths)
    ]
    return "".join(f"{line}\n" for line in lines)


def spec_text(plan: dict[str, Any], packages: list[Package], names: dict[str, str]) -> str:
    """Return the specification of all packages: the first is what every node has."""
    provides = [*plan["in_every_node"], *FILES_OF_EVERY_NODE, f"system-release = {plan['major']}", "rtld(GNU_HASH)"]
    provides += [f"system-release(releasever) = {plan['major']}", *library_provides()]
    lines = [
        "Name: lab-base",
        f"Version: {plan['major']}",
        "Release: 1%{?dist}",
        f"Summary: SIMULATED: what every node has, from {plan['files_of']}",
        "License: as in Debian",
        "AutoReqProv: no",
        *(f"Provides: {word}" for word in provides),
        "%description",
        f"SIMULATED: the files of {plan['files_of']} that every node of {plan['title']} in a provision lab has.",
    ]
    in_image = {package.name for package in packages if package.in_image}
    for package in packages:
        lines += package_lines(plan, package, names, in_image)
    tree = f"{WORK}/root"
    lines += ["%install", 'rm -rf "$RPM_BUILD_ROOT"', 'mkdir -p "${RPM_BUILD_ROOT%/*}"', f'mv {tree} "$RPM_BUILD_ROOT"']
    lines += ["%files"]
    for package in packages:
        content = f" -f {WORK}/lists/{package.name}" if package.paths or package.folders else ""
        lines.append(f"%files -n {package.name}{content}")
        lines += script_lines(package)
    return "".join(f"{line}\n" for line in lines)


FILES_OF_EVERY_NODE = (
    "/bin/bash",
    "/bin/sh",
    "/sbin/ldconfig",
    "/usr/bin/bash",
    "/usr/bin/env",
    "/usr/bin/python3",
    "/usr/bin/sh",
    "/usr/sbin/groupadd",
    "/usr/sbin/ldconfig",
    "/usr/sbin/useradd",
)


def library_provides() -> list[str]:
    """Return what the libraries of the node provide."""
    text = run("/usr/lib/rpm/elfdeps", "--provides", text="".join(f"{path}\n" for path in libraries()))
    return sorted(set(text.splitlines()))


def package_lines(plan: dict[str, Any], package: Package, names: dict[str, str], in_image: set[str]) -> list[str]:
    """Return the header of one package: `names` are the packages with each deb, `in_image` those of every node."""
    debs = ", ".join(deb.name for deb in package.sources)
    source = f"{debs} of {plan['files_of']}" if debs else "nothing but its name"
    sources = package.sources if package.patterns == ["*"] else []  # a part of a package needs less than the whole
    needed = {names[name] for deb in sources for name in deb.depends if name in names} - {package.name}
    if package.in_image:
        needed &= in_image  # the base has the libraries of others
    requires = sorted({*package.requires, *needed})
    return [
        f"%package -n {package.name}",
        f"Summary: SIMULATED: {source}",
        *([f"Epoch: {package.epoch}"] if package.epoch else []),
        f"Version: {package.version}",
        "Release: 1%{?dist}",
        *(["AutoReq: no"] if package.in_image else []),  # some of its parts need libraries that the node lacks
        *(f"Requires: {word}" for word in requires),
        *(f"Provides: {word}" for word in package.provides),
        f"%description -n {package.name}",
        f"SIMULATED: {source}, as {package.name} of {plan['title']} in a provision lab.",
    ]


def script_lines(package: Package) -> list[str]:
    """Return the scripts of one package, which do what those of the system do."""
    units = " ".join(sorted(package.units))
    install = [f"getent group {package.group} >/dev/null || groupadd --system {package.group}"] if package.group else []
    change = ["ldconfig"] if package.has_libraries else []
    remove = []
    if units:
        change.append("systemctl daemon-reload >/dev/null 2>&1 || :")
        install.append(f"systemctl --no-reload preset {units} >/dev/null 2>&1 || :")
        remove.append(f"systemctl --no-reload disable --now {units} >/dev/null 2>&1 || :")
    lines = []
    if install or change:
        first = [f'if [ "$1" -eq 1 ]; then {"; ".join(install)}; fi'] if install else []
        lines += [f"%post -n {package.name}", *change, *first]
    if remove:
        lines += [f"%preun -n {package.name}", f'if [ "$1" -eq 0 ]; then {"; ".join(remove)}; fi']
    if change:
        lines += [f"%postun -n {package.name}", *change]
    return lines


def install_in_database(plan: dict[str, Any], packages: list[Package]) -> None:
    """Record in rpm's database what the node has."""
    Path(plan["database"]).mkdir(parents=True, exist_ok=True)
    rpm("--initdb")
    names = ["lab-base", *(package.name for package in packages if package.in_image)]
    files = [
        str(path)
        for path in (WORK / plan["system_folder"]).glob("*.rpm")
        if path.name.rsplit("-", 2)[0] in names
    ]  # fmt: skip
    rpm("--install", "--justdb", "--noscripts", "--nosignature", *files)


def set_up_python(plan: dict[str, Any]) -> None:
    """Make the interpreters: dnf's is that of the files, modules may run on another one."""
    python = Path("/usr/bin/python3")
    LAB_PYTHON.symlink_to(python.resolve())
    for script in (path for path in Path("/usr/bin").glob("dnf*") if not path.is_symlink()):
        text = script.read_text(encoding="utf-8")
        script.write_text(re.sub(r"\A#!.*python3.*", f"#!{LAB_PYTHON}", text), encoding="utf-8")
    for path in Path("/").glob("usr/lib/python3/dist-packages/dnf-plugins/local.py"):
        path.unlink()  # without createrepo it reports an error in each call
    platform_python = Path("/usr/libexec/platform-python")
    platform_python.symlink_to(LAB_PYTHON)
    if plan["python"]:
        program = use_own_libraries(Path(plan["python"]))
        for link in (platform_python, python, python.with_name(program.name)):
            link.unlink(missing_ok=True)
        platform_python.symlink_to(program)
        python.symlink_to(platform_python)
        python.with_name(program.name).symlink_to(platform_python)


def use_own_libraries(folder: Path) -> Path:
    """Make the interpreter in a folder use the libraries and the loader beside it; return its path."""
    library_folder = folder / "libraries"
    program = next((folder / "bin").glob("python3*"))
    loader = next(library_folder.glob("ld-linux*"))
    path = ("--force-rpath", "--set-rpath", str(library_folder))
    run("patchelf", *path, "--set-interpreter", str(loader), str(program))
    for library in (*folder.rglob("lib-dynload/*.so"), *library_folder.glob("libpython*")):
        run("patchelf", *path, str(library))  # a path of its own would take precedence over the program's
    return program


def rename_ssh() -> None:
    """Give sshd the name of its unit in the system."""
    units, enabled = Path("/usr/lib/systemd/system"), Path("/etc/systemd/system")
    text = (units / "ssh.service").read_text(encoding="utf-8")
    for name in ("sshd.service", "ssh.socket", "rescue-ssh.target"):
        (units / name).unlink(missing_ok=True)
    (units / "ssh.service").unlink()
    (units / "sshd.service").write_text(re.sub(r"(?m)^Alias=.*\n", "", text), encoding="utf-8")
    for link in (enabled / "sshd.service", *enabled.glob("*.wants/ssh.service")):
        link.unlink(missing_ok=True)
    wants = enabled / "multi-user.target.wants/sshd.service"
    wants.parent.mkdir(exist_ok=True)
    wants.symlink_to(units / "sshd.service")


def remove_init_scripts(etc: Path = Path("/etc")) -> None:
    """Remove scripts of System V: systemd would make units of them, for example a second sshd."""
    for script in (*etc.glob("init.d/*"), *etc.glob("rc[0-6S].d/*")):
        script.unlink()


def remove_debian() -> None:
    """Remove apt and dpkg with their data, and the units of apt that nodes would start."""
    for info in [path for path in LISTS.glob("*.list") if REMOVED.fullmatch(path.name)]:
        for line in info.read_text(encoding="utf-8").splitlines():
            path = Path(line)
            is_folder = path.is_dir()  # /lib is a link to one
            if line not in EXPECTED_BY_MMDEBSTRAP and not is_folder:
                path.unlink(missing_ok=True)
    for name in REMOVED_FOLDERS:
        if Path(name).is_dir():
            shutil.rmtree(name)
        else:
            Path(name).unlink(missing_ok=True)
    for link in Path("/etc/systemd/system").glob("*.wants/*"):
        if link.is_symlink() and not link.exists():
            link.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
