"""Blank the GPU code for other chips in a CUDA shared library, so that it packs small.

Each fat binary in the section .nv_fatbin is a list of entries (kind 1 is PTX, 2 is SASS; an architecture
each). Entries that the driver would never pick on --arch are dropped: the kept ones move to the front of
their fat binary, its size field is set to them, and what is left of its place is zeroed, so that no
address in the file changes. A fat binary with SASS for --arch keeps only that. One without is given the
file's smallest SASS for some other chip, which makes it one of those, and the wheel has many, whose
kernels this chip can't launch.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = 0xBA55ED50
_PTX, _SASS = 1, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """The code for one architecture: where it lies in the file, header included."""

    kind: int
    arch: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FatBinary:
    """One module: where its entries begin, and how many bytes they take."""

    offset: int
    header_size: int
    size: int
    entries: tuple[Entry, ...]


def sections(file: bytes | bytearray) -> Iterator[tuple[str, int, int]]:
    """(name, offset, size) of each section of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", file, 0x28)
    entry_size, count, names_at = struct.unpack_from("<HHH", file, 0x3A)

    def header(number: int) -> tuple[int, ...]:
        return struct.unpack_from("<IIQQQQIIQQ", file, table + number * entry_size)

    names = header(names_at)[4]
    for number in range(count):
        one = header(number)
        start = names + one[0]
        yield bytes(file[start : file.index(b"\0", start)]).decode(), one[4], one[5]


def fat_binaries(file: bytes | bytearray, offset: int, size: int) -> Iterator[FatBinary]:
    """The fat binaries between two offsets; raises ValueError where one is not understood."""
    at, end = offset, offset + size
    while at + 16 <= end:
        magic, _, header_size, length = struct.unpack_from("<IHHQ", file, at)
        if magic != _MAGIC:
            at += 8
            continue
        entries, inside = [], at + header_size
        while inside < at + header_size + length:
            kind, _, entry_header, code = struct.unpack_from("<HHIQ", file, inside)
            if kind not in (_PTX, _SASS) or entry_header < 48:
                raise ValueError(f"no entry of a fat binary at {inside:#x}")
            (arch,) = struct.unpack_from("<I", file, inside + 28)
            entries.append(Entry(kind, arch, inside, entry_header + code))
            inside += entry_header + code
        yield FatBinary(at, header_size, length, tuple(entries))
        at += header_size + length


def slim(file: bytearray, arch: int) -> int:
    """Blank what is for other chips than `arch`; returns how many bytes of code were left.

    Raises ValueError where nothing is for `arch`.
    """
    binaries = [
        one
        for name, offset, size in list(sections(file))
        if name == ".nv_fatbin"
        for one in fat_binaries(file, offset, size)
    ]

    def code(entry: Entry) -> bytes:
        return bytes(file[entry.offset : entry.offset + entry.size])

    foreign = min(
        (code(e) for one in binaries for e in one.entries if e.kind == _SASS and e.arch != arch),
        key=len,
        default=b"",
    )
    kept = 0
    for one in binaries:
        own = b"".join(code(e) for e in one.entries if e.kind == _SASS and e.arch == arch)
        kept += len(own)
        blob = own or foreign
        if len(blob) > one.size:
            raise ValueError(f"no room for a stand-in at {one.offset:#x}")
        struct.pack_into("<Q", file, one.offset + 8, len(blob))
        start = one.offset + one.header_size
        file[start : start + one.size] = blob + bytes(one.size - len(blob))
    if not kept:
        raise ValueError(f"no code for sm_{arch}")
    return kept


def main() -> None:
    """Write OUT, which is IN with the code for one chip only."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    args = parser.parse_args()
    file = bytearray(args.source.read_bytes())
    kept = slim(file, args.arch)
    args.target.write_bytes(file)
    print(f"{args.source.name}: {kept:,} bytes of code for sm_{args.arch}")


if __name__ == "__main__":
    main()
