"""What a kernel module's file says of itself: its description, the symbols it gives and those it needs.

Read from the file alone, also for kernels that do not run, compressed or not. The checksums matter: a module whose
needed checksum differs from the given one is refused by the kernel.
"""

import gzip
import lzma
import struct
import subprocess

ABSOLUTE = 0xFFF1
UNDEFINED = 0
SYMBOL_TABLE = 2
NO_BITS = 8
CHECKSUM = "__crc_"
NO_ZSTD = "the program zstd is not installed"
VERSION_ENTRY = 64  # bytes: an unsigned long and a name, in __versions


def content(path):
    """Return a module file's bytes, decompressed. Raises OSError when that cannot be done."""
    with open(path, "rb") as stream:
        data = stream.read()
    try:
        if path.endswith(".xz"):
            return lzma.decompress(data)
        if path.endswith(".gz"):
            return gzip.decompress(data)
    except (lzma.LZMAError, EOFError) as error:
        raise OSError(f"it cannot be decompressed: {error}") from None
    if path.endswith(".zst"):
        try:
            done = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=False)
        except FileNotFoundError:
            raise OSError(f"it is compressed, and {NO_ZSTD}") from None
        if done.returncode:
            raise OSError("it cannot be decompressed: {}".format(done.stderr.decode(errors="replace").strip()))
        return done.stdout
    return data


class Module:
    """A kernel module's file.

    Attributes:
        info: what modinfo prints, such as version, license, vermagic and depends.
        gives: exported symbol -> checksum.
        needs: symbol of another module or the kernel -> the checksum it was built against; 0 where the kernel has none.
    """

    def __init__(self, data):
        """Read the file's bytes. Raises ValueError for anything that is no 64-bit little-endian kernel module."""
        self._data = data
        try:
            self._sections = self._read_sections()
            symbols = list(self._symbols())
        except (struct.error, IndexError, OverflowError) as error:
            raise ValueError(f"the file is cut short or no kernel module ({error})") from None
        self.info = self._info()
        self.gives = {
            name[len(CHECKSUM) :]: self._checksum(section, value)
            for name, section, value in symbols
            if name.startswith(CHECKSUM) and section != UNDEFINED
        }
        self.needs = {name: 0 for name, section, _ in symbols if section == UNDEFINED and name}
        self.needs.update(self._versions())

    @property
    def signed(self):
        """Return whether a signature is appended."""
        return self._data.endswith(b"~Module signature appended~\n")

    def _read_sections(self):
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it is no 64-bit little-endian ELF file")
        offset = struct.unpack_from("<Q", self._data, 0x28)[0]
        size, count, names = struct.unpack_from("<HHH", self._data, 0x3A)
        raw = [struct.unpack_from("<IIQQQQII", self._data, offset + size * index) for index in range(count)]
        table = raw[names][4]
        return [(self._string(table + entry[0]), entry[1], entry[4], entry[5], entry[6]) for entry in raw]

    def _string(self, offset):
        return self._data[offset : self._data.index(b"\0", offset)].decode(errors="replace")

    def _section(self, name):
        for section, kind, offset, size, _ in self._sections:
            if section == name and kind != NO_BITS:
                return self._data[offset : offset + size]
        return b""

    def _symbols(self):
        for _, kind, offset, size, link in self._sections:
            if kind != SYMBOL_TABLE:
                continue
            strings = self._sections[link][2]
            for at in range(offset, offset + size, 24):
                name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self._data, at)
                yield self._string(strings + name), section, value

    def _checksum(self, section, value):
        """Return a checksum: the symbol's value, or (newer kernels) what stands at its place in its section."""
        if section == ABSOLUTE:
            return value & 0xFFFFFFFF
        return struct.unpack_from("<I", self._data, self._sections[section][2] + value)[0]

    def _info(self):
        pairs = [entry.decode(errors="replace").partition("=") for entry in self._section(".modinfo").split(b"\0")]
        return {key: value for key, _, value in pairs if key}

    def _versions(self):
        table = self._section("__versions")
        for at in range(0, len(table) - VERSION_ENTRY + 1, VERSION_ENTRY):
            checksum = struct.unpack_from("<Q", table, at)[0] & 0xFFFFFFFF
            yield table[at + 8 : at + VERSION_ENTRY].split(b"\0")[0].decode(errors="replace"), checksum


def load(path):
    """Return the Module of a file. Raises OSError or ValueError, each saying what is wrong."""
    try:
        return Module(content(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def mismatches(module, others):
    """Return the symbols that `module` was built against otherwise than `others` (Modules) give them now."""
    given = {}
    for other in others:
        given.update(other.gives)
    return sorted(name for name, sum_ in module.needs.items() if sum_ and name in given and given[name] != sum_)
