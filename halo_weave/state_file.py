"""What the program writes to the data folder for the next run: the model in use, the user's choices, the server's
address."""

from __future__ import annotations

import atexit
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from halo_weave.store.database import is_running, this_process

FOLDER = "in-use"
CHOSEN = "chosen-model.txt"
CHOSEN_EMBEDDER = "chosen-embedder.txt"
IDLE_READING = "idle-reading.json"
log = logging.getLogger(__name__)


def remember_model(data: Path, name: str) -> None:
    """Remember the chosen model. The next run uses it, unless the user names another one."""
    _remember(data, CHOSEN, name)


def remembered_model(data: Path) -> str | None:
    return _remembered(data, CHOSEN)


def remember_embedder(data: Path, name: str) -> None:
    """Remember the embedder of this memory's vectors. The next run uses it, too."""
    _remember(data, CHOSEN_EMBEDDER, name)


def remembered_embedder(data: Path) -> str | None:
    return _remembered(data, CHOSEN_EMBEDDER)


def _remember(data: Path, note: str, name: str) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = Path(name).expanduser()
        name = str(file.absolute()) if file.is_file() else name
        partial = data / f"{note}.partial"
        partial.write_text(name, encoding="utf-8")
        partial.replace(data / note)
    except OSError as error:
        log.warning("The choice of %s could not be stored: %s", name, error.strerror or error)


def _remembered(data: Path, note: str) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        return (data / note).read_text(encoding="utf-8").strip() or None
    return None


def mark_model_in_use(data: Path, file: str) -> None:
    """Write down that this process uses a model file, until it ends normally."""
    note = data / FOLDER / f"{os.getpid()}.json"
    with suppress(OSError):  # the state is optional
        note.parent.mkdir(parents=True, exist_ok=True)
        used = {"owner": this_process(), "file": file, "size": Path(file).stat().st_size}
        note.write_text(json.dumps(used), encoding="utf-8")
        atexit.register(note.unlink, missing_ok=True)


def mark_server_running(data: Path, address: str) -> None:
    """Write down the address at which this process serves the memory, until it ends normally."""
    note = data / FOLDER / f"{os.getpid()}-server.json"
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"owner": this_process(), "address": address}), encoding="utf-8")
        atexit.register(note.unlink, missing_ok=True)


def running_server(data: Path) -> str:
    """The address of a running server of this memory; empty if there is none."""
    for note in sorted((data / FOLDER).glob("*-server.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            server = json.loads(note.read_text(encoding="utf-8"))
            if is_running(str(server["owner"])):
                return str(server["address"])
    return ""


def remember_idle_reading(data: Path, progress: Mapping[str, object]) -> None:
    """Write down how much of the memory the model has read in idle time, for other processes."""
    with suppress(OSError):
        partial = data / f"{IDLE_READING}.partial"
        partial.write_text(json.dumps(progress), encoding="utf-8")
        partial.replace(data / IDLE_READING)


def remembered_idle_reading(data: Path) -> dict[str, Any] | None:
    """This progress as it was written last; None: nothing was read yet."""
    with suppress(OSError, ValueError):
        progress = json.loads((data / IDLE_READING).read_text(encoding="utf-8"))
        return progress if isinstance(progress, dict) else None
    return None


def forget_idle_reading(data: Path) -> None:
    (data / IDLE_READING).unlink(missing_ok=True)


def changed_models(data: Path) -> list[str]:
    """A warning for each model file that has changed since a run that used it and crashed. Each is reported once."""
    sentences = []
    for note in sorted((data / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            used = json.loads(note.read_text(encoding="utf-8"))
            if is_running(str(used["owner"])) is not False:
                continue
            file = Path(used["file"])
            size = file.stat().st_size if file.exists() else 0
            if size != used["size"]:
                sentences.append(
                    f"The last run ended suddenly while it used {file}, which had {used['size']:,} bytes then and has "
                    f"{size:,} now. A model's file must not change while it is used: copy or download it again."
                )
        with suppress(OSError):
            note.unlink()
    return sentences
