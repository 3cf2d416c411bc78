"""Read the file of a kernel module: its description, exported symbols and required symbols.

The file can be compressed and belong to a kernel that does not run. The kernel refuses a module if the checksum of a
required symbol differs from that of the exported symbol.
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
    """Return the decompressed bytes of a module file. Raise OSError if it cannot be read."""
    with open(path, "rb") as stream:
        data = stream.read()
    try:
        if path.endswith(".xz"):
            return lzma.decompress(data)
        if path.endswith(".gz"):
            return gzip.decompress(data)
    except (lzma.LZMAError, EOFError) as error:
        raise OSError(f"decompression failed: {error}") from None
    if path.endswith(".zst"):
        try:
            done = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        except FileNotFoundError:
            raise OSError(f"it is compressed, but {NO_ZSTD}") from None
        if done.returncode:
            raise OSError("decompression failed: {}".format(done.stderr.decode(errors="replace").strip()))
        return done.stdout
    return data


class Module:
    """A kernel module's file.

    Attributes:
        info: the fields of modinfo, e.g. version, license, vermagic and depends.
        exports: exported symbol -> checksum.
        needs: required symbol -> the checksum with which the module was built; 0 if the kernel has no checksums.
    """

    def __init__(self, data):
        """Parse the bytes of the file. Raise ValueError if it is not a 64-bit little-endian kernel module."""
        self._data = data
        try:
            self._sections = self._read_sections()
            symbols = list(self._symbols())
        except (struct.error, IndexError, OverflowError) as error:
            raise ValueError(f"the file is truncated or not a kernel module ({error})") from None
        self.info = self._info()
        self.exports = {
            name[len(CHECKSUM) :]: self._checksum(section, value)
            for name, section, value in symbols
            if name.startswith(CHECKSUM) and section != UNDEFINED
        }
        self.needs = {name: 0 for name, section, _ in symbols if section == UNDEFINED and name}
        self.needs.update(self._versions())

    @property
    def is_signed(self):
        """Return whether the file has a signature."""
        return self._data.endswith(b"~Module signature appended~\n")

    def _read_sections(self):
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it is not a 64-bit little-endian ELF file")
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
            for position in range(offset, offset + size, 24):
                name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self._data, position)
                yield self._string(strings + name), section, value

    def _checksum(self, section, value):
        """Return a checksum: the value of the symbol, or (newer kernels) the number at its position in its section."""
        if section == ABSOLUTE:
            return value & 0xFFFFFFFF
        return struct.unpack_from("<I", self._data, self._sections[section][2] + value)[0]

    def _info(self):
        pairs = [entry.decode(errors="replace").partition("=") for entry in self._section(".modinfo").split(b"\0")]
        return {key: value for key, _, value in pairs if key}

    def _versions(self):
        table = self._section("__versions")
        for position in range(0, len(table) - VERSION_ENTRY + 1, VERSION_ENTRY):
            checksum = struct.unpack_from("<Q", table, position)[0] & 0xFFFFFFFF
            yield table[position + 8 : position + VERSION_ENTRY].split(b"\0")[0].decode(errors="replace"), checksum


def load(path):
    """Return the Module of a file. Raise OSError or ValueError with the cause if it is invalid."""
    try:
        return Module(content(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def mismatches(module, others):
    """Return the symbols with which `module` was built and whose checksums in `others` (Modules) differ."""
    exports = {}
    for other in others:
        exports.update(other.exports)
    return sorted(name for name, sum_ in module.needs.items() if sum_ and name in exports and exports[name] != sum_)
