"""The text of a file: plain text here, PDF and DOCX in a confined process, so that a hostile one costs a sentence."""

from __future__ import annotations

import base64
import re
from importlib.util import find_spec
from pathlib import Path, PurePosixPath, PureWindowsPath

from halo_weave.confined.process import ConfinedProcess, ProcessStopped
from halo_weave.errors import DocumentRefused

_TASK = Path(__file__).with_name("document_task.py")
_MEMORY = 512 << 20  # bytes for the confined process, next to what the file itself takes
_UNPACKED = 64 << 20  # bytes that the text of a DOCX may have
_LONGEST_NAME = 120
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_UNREADABLE = 0.02  # share of control characters from which on a text is none
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def document_name(path: str) -> str:
    """A file's name without its folders, on one line, without characters that could hide what it is."""
    name = PurePosixPath(PureWindowsPath(path).as_posix()).name
    name = " ".join(_INVISIBLE.sub(" ", name.encode(errors="replace").decode()).split())
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 21]}…{name[-20:]}"
    return name or "file"


def document_text(name: str, data: bytes, *, characters: int, seconds: float) -> str:
    """What a file says, at most so many characters. Raises DocumentRefused."""
    if not data.strip():
        raise DocumentRefused(f"{name} is empty. Attach another file.")
    if data.startswith(_OLD_OFFICE):
        raise DocumentRefused(
            f"{name} is protected by a password, or of an old version of Office. Save it as DOCX without a password."
        )
    if b"%PDF-" in data[:1024]:
        text = _confined(name, "pdf", data, characters, seconds)
    elif data.startswith(b"PK\x03\x04"):
        text = _confined(name, "docx", data, characters, seconds)
    else:
        text = _plain(name, data)
    text = _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).strip("\n")
    if not text.strip():
        raise DocumentRefused(
            f"There is no text in {name}. If its pages are pictures, only their text can be read."
        )
    if len(text) > characters:
        raise DocumentRefused(
            f"{name} has more text than may be attached. Attach a part of it, or raise document_tokens in the settings."
        )
    return text


def _plain(name: str, data: bytes) -> str:
    marks = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    form = marks.get(data[:2], "utf-8-sig")
    try:
        text = data.decode(form)
    except UnicodeDecodeError:
        if b"\0" in data[:4096] or len(_CONTROLS.findall(data[:4096].decode("latin-1"))) > 40:
            raise DocumentRefused(
                f"{name} is not a text, a PDF or a DOCX. Only those can be attached."
            ) from None
        raise DocumentRefused(
            f"{name} is not in UTF-8, so its letters cannot be told for sure. Save it as UTF-8, then attach it."
        ) from None
    if len(_CONTROLS.findall(text[:65_536])) > _UNREADABLE * len(text[:65_536]):
        raise DocumentRefused(f"{name} is not a text, a PDF or a DOCX. Only those can be attached.")
    return text


def _confined(name: str, kind: str, data: bytes, characters: int, seconds: float) -> str:
    question = {
        "kind": kind,
        "data": base64.b64encode(data).decode("ascii"),
        "characters": characters,
        "unpacked": _UNPACKED,
    }
    setup = _folders(name) if kind == "pdf" else []
    try:
        with ConfinedProcess(_TASK, setup, memory_bytes=_MEMORY + 8 * len(data)) as process:
            answer: dict[str, str] = process.ask(question, seconds)
    except ProcessStopped as error:
        raise DocumentRefused(f"{name} could not be read: its reading {error} Attach it as text.") from None
    except OSError as error:
        raise DocumentRefused(
            f"{name} could not be read: no process could be started for it: {error.strerror or error}."
        ) from error
    if "error" in answer:
        raise DocumentRefused(f"{name} {answer['error']}")
    return answer["text"]


def _folders(name: str) -> list[str]:
    """Where pypdf lies."""
    spec = find_spec("pypdf")
    if spec is None or spec.origin is None:
        raise DocumentRefused(f"{name} is a PDF. Reading those needs: pip install 'halo-weave[documents]'")
    return [str(Path(spec.origin).parents[1])]
