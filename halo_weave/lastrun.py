"""A note in the data folder of the model in use, so that the next start can say why the last run ended.

llama.cpp maps the file of a model into memory. If somebody cuts the file short meanwhile, the system ends the program at
once, and nothing can be said any more.
"""

from __future__ import annotations

import atexit
import json
import os
from contextlib import suppress
from pathlib import Path

from halo_weave.stores.owners import alive, this_process

FOLDER = "in-use"


def note_model(data: Path, file: str) -> None:
    """Note that this process uses a model, until it ends in good order."""
    note = data / FOLDER / f"{os.getpid()}.json"
    with suppress(OSError):  # nothing depends on it
        note.parent.mkdir(parents=True, exist_ok=True)
        used = {"owner": this_process(), "file": file, "size": Path(file).stat().st_size}
        note.write_text(json.dumps(used), encoding="utf-8")
        atexit.register(note.unlink, missing_ok=True)


def changed_models(data: Path) -> list[str]:
    """A sentence for each model whose file changed under a run that did not end in good order. Said once."""
    sentences = []
    for note in sorted((data / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            used = json.loads(note.read_text(encoding="utf-8"))
            if alive(str(used["owner"])) is not False:
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
