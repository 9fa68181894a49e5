"""Extract the text of PDF and DOCX files; runs in a sandboxed process and imports nothing of this package."""

from __future__ import annotations

import base64
import codecs
import io
import sys
import zipfile
import zlib  # noqa: F401  zipfile asks for it later, when no file can be opened any more
from collections.abc import Callable
from typing import Any
from xml.parsers import expat

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main "
_STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main "
_DAMAGED = "is damaged, or not what its first bytes say. Open it in its program and save it again."
# A page with one word: reading it imports everything that pypdf needs, before opening files is forbidden.
_WARM_UP = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj\n"
    b"4 0 obj<</Length 34>>stream\nBT /F 12 Tf 1 1 Td (warm) Tj ET    \nendstream endobj\n"
    b"5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R/Size 6>>\nstartxref\n0\n%%EOF"
)


class _Refused(Exception):
    """The file cannot be read. The message is the end of a sentence."""


class _WordReader:
    """Reads the text of a Word document: a blank line after each paragraph, a tab between the cells of a table."""

    def __init__(self, characters: int) -> None:
        self._parts: list[str] = []
        self._size, self._most = 0, characters
        self._in_text, self._cells = False, 0
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._begin
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._heard
        self._parser.StartDoctypeDeclHandler = (
            self._doctype
        )  # entities could expand a small file to a huge one

    def read(self, xml: bytes) -> str:
        self._parser.Parse(xml, True)
        return "".join(self._parts)

    def _doctype(self, *_: object) -> None:
        raise _Refused(_DAMAGED)

    def _add(self, text: str) -> None:
        text = text[: self._most + 1 - self._size]  # one more, to see that there was too much
        self._size += len(text)
        self._parts.append(text)

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        match name.removeprefix(_WORD).removeprefix(_STRICT):
            case "t":
                self._in_text = True
            case "tab":
                self._add("\t")
            case "br" | "cr":
                self._add("\n")
            case "tc":
                self._cells += 1
            case "pStyle":
                style = attributes.get(f"{_WORD}val") or attributes.get(f"{_STRICT}val") or ""
                level = style.removeprefix("Heading")
                if level != style and level.isdecimal() and len(level) == 1 and level in "123456":
                    self._add("#" * int(level) + " ")
                elif style == "Title":
                    self._add("# ")

    def _end(self, name: str) -> None:
        match name.removeprefix(_WORD).removeprefix(_STRICT):
            case "t":
                self._in_text = False
            case "tc":
                self._cells -= 1
                self._add("\t")
            case "tr":
                self._add("\n")
            case "p":
                self._add(" " if self._cells else "\n\n")

    def _heard(self, text: str) -> None:
        if self._in_text:
            self._add(text)


def _docx(data: bytes, characters: int, unpacked: int) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open("word/document.xml") as part:
            xml = part.read(unpacked + 1)
    except KeyError:
        raise _Refused("is a zip, but no DOCX. Unpack it, and attach the texts in it.") from None
    except RuntimeError:  # the file needs a password
        raise _Refused("is protected by a password. Save a copy without one.") from None
    if len(xml) > unpacked:
        raise _Refused(f"unpacks to more than {unpacked >> 20} MB of text. Attach a part of it.")
    return _WordReader(characters).read(xml)


def _pdf(data: bytes, characters: int, unpacked: int) -> str:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        raise _Refused("is protected by a password. Save a copy without one.")
    parts: list[str] = []
    size = 0
    for page in reader.pages:
        parts.append(page.extract_text().strip())
        size += len(parts[-1])
        if size > characters:
            break
    return "\n\n".join(part for part in parts if part)


def prepared(folders: list[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that answers requests; imports pypdf from these folders, if there are any."""
    sys.path[:0] = folders
    for codec in (
        "cp437",
        "utf-16",
        "utf-16-be",
        "latin-1",
        "cp1252",
        "mac-roman",
        "charmap",
        "raw_unicode_escape",
    ):
        codecs.lookup(codec)
    if folders:
        _pdf(_WARM_UP, 100, 0)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        read = {"pdf": _pdf, "docx": _docx}[question["kind"]]
        try:
            data = base64.b64decode(question["data"])
            return {"text": read(data, question["characters"], question["unpacked"])}
        except _Refused as refused:
            return {"error": str(refused)}
        except (MemoryError, RecursionError):
            return {"error": "needs too much memory to be read. Attach it as text."}
        except Exception:
            return {"error": _DAMAGED}

    return answer
