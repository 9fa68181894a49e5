"""Log format of the server, as text or JSON lines. Never logs message text: errors are logged as type and location only."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]


class PrivateFormatter(logging.Formatter):
    """Formats errors as their type and location, since their messages may contain the user's text."""

    def __init__(self, form: LogFormat = "text") -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        args = record.args if isinstance(record.args, tuple) else ()
        safe = tuple(type(arg).__name__ if isinstance(arg, BaseException) else arg for arg in args)
        message = str(record.msg) % safe if safe else record.getMessage()
        if isinstance(record.msg, BaseException):
            message = type(record.msg).__name__
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        figures = getattr(record, "figures", None)
        if figures:
            fields |= figures
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields["error"] = _places(error)
        if self._form == "json":
            return json.dumps(fields, default=str)
        line = " ".join(str(fields[name]) for name in ("time", "level", "logger")) + f": {message}"
        line += "".join(f" {name}={value}" for name, value in (figures or {}).items())
        return line + "".join(f"\n  {place}" for place in fields.get("error", ()))


def configure_logging(form: LogFormat) -> None:
    """Log to stderr. The format `json` also logs the statistics of each turn."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrivateFormatter(form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if form == "json":
        logging.getLogger("halo_weave").setLevel(logging.INFO)


def _places(error: BaseException) -> list[str]:
    """The types of an error and of its causes, and where each was raised."""
    lines: list[str] = []
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        lines.append(type(cause).__name__)
        lines += [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(cause.__traceback__)
        ]
        cause = cause.__cause__ or cause.__context__
    return lines
