"""The documents within a file to import: the file itself, the members of a zip, the card in a PNG."""

from __future__ import annotations

import base64
import binascii
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from halo_weave.errors import ImportRefused

ZIP, PNG = b"PK\x03\x04", b"\x89PNG\r\n\x1a\n"
_RATIO, SMALL = (
    200,
    64 << 20,
)  # a zip may unpack to `SMALL` bytes and `_RATIO` times its size, far more than text does
_MEMBERS = 200_000
_CARD = 32 << 20  # bytes of the text in a PNG
_NEWER = b"ccv3"
_NAMES = {_NEWER, b"chara"}


class ArchiveRefused(ImportRefused):
    """A zip that cannot be read to its end."""


class _Document(NamedTuple):
    """Something to read, and how large it is."""

    name: str  # only to be told
    file: IO[bytes]
    size: int


class _Metered(io.RawIOBase):
    """A member of a zip. What unpacks to far more than its size is refused while it is read."""

    def __init__(self, member: IO[bytes], meter: list[int]) -> None:
        self._member, self._meter = member, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            block = self._member.read(len(buffer))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise ArchiveRefused(
                "The zip is damaged or breaks off, so it was not imported. Get it again."
            ) from error
        self._meter[0] -= len(block)
        if self._meter[0] < 0:
            raise ArchiveRefused(
                f"The zip unpacks to more than {_RATIO} times its size, so it was not imported."
            )
        buffer[: len(block)] = block
        return len(block)


@contextmanager
def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, meter: list[int]) -> Iterator[IO[bytes]]:
    try:
        opened = archive.open(info)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        why = "is encrypted" if info.flag_bits & 1 else "is damaged"
        raise ArchiveRefused(f"{_told(info.filename)} in the zip {why}, so it was not imported.") from error
    with opened, io.BufferedReader(_Metered(opened, meter), 1 << 16) as buffered:
        yield buffered


def _told(name: str) -> str:
    return repr(name[:100])


def documents(source: IO[bytes]) -> Iterator[_Document]:
    """What lies in a file, each open until the next is asked for. It can be asked again from the beginning."""
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    begin = source.read(8)
    source.seek(0)
    if begin.startswith(ZIP):
        yield from _members(source, size)
    elif begin == PNG:
        card = _card(source)
        if card is None:
            raise ImportRefused(
                "The picture has no character card in it (no chunk chara or ccv3), so it was not imported."
            )
        yield _Document("card", io.BytesIO(card), len(card))
    else:
        yield _Document("file", source, size)


def _members(source: IO[bytes], size: int) -> Iterator[_Document]:
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise ArchiveRefused(
            "The zip is damaged or breaks off, so it was not imported. Get it again."
        ) from error
    with archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        if len(infos) > _MEMBERS:
            raise ArchiveRefused(f"The zip has more than {_MEMBERS:,} files, so it was not imported.")
        meter = [SMALL + _RATIO * size]  # what may still be unpacked
        for info in infos:
            with _member(archive, info, meter) as member:
                begin = member.peek(len(PNG))[: len(PNG)]  # type: ignore[attr-defined]
                if begin.startswith(PNG):
                    card = _card(member)
                    if card is not None:
                        yield _Document(info.filename, io.BytesIO(card), len(card))
                        continue
                yield _Document(info.filename, member, info.file_size)


def _card(png: IO[bytes]) -> bytes | None:
    """The JSON of the newest card in a picture, of which nothing else is looked at."""
    found: dict[bytes, bytes] = {}
    png.read(len(PNG))
    while len(head := png.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND" or length > _CARD:
            break
        if kind == b"tEXt":
            name, _, written = png.read(length).partition(b"\0")
            if name.lower() in _NAMES:
                found[name.lower()] = written
            png.read(4)
        else:
            rest = length + 4
            while rest and (block := png.read(min(rest, 1 << 16))):
                rest -= len(block)
    text = found.get(_NEWER, next(iter(found.values()), None))
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=False)
    except binascii.Error as error:
        raise ImportRefused(
            "The character card in the picture is not base64, so it was not imported."
        ) from error
