"""The command line: one module for each family of commands."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import NoReturn

from rich.console import Console

from halo_weave.cli import chat as chat
from halo_weave.cli import lab as lab
from halo_weave.cli import models as models
from halo_weave.cli import people as people
from halo_weave.cli import search as search
from halo_weave.cli import serve as serve
from halo_weave.cli import store as store
from halo_weave.cli import structured_memory as structured_memory
from halo_weave.cli.app import add_store_option, app
from halo_weave.cli.terminal import plain
from halo_weave.errors import HaloWeaveError

add_store_option(app)


def main() -> None:
    """Run the command line. Errors of the user end with a message and exit code 1, without a traceback."""
    try:
        try:
            app(sys.argv[1:] or ["serve"], prog_name="halo-weave")
        finally:
            if sys.stdout:
                sys.stdout.flush()  # now, while a full disk can still be reported
    except HaloWeaveError as error:
        fail(str(error))
    except UnicodeDecodeError as error:
        fail(f"The input is not {error.encoding.upper()} text. Convert it first, for example with iconv.")
    except UnicodeEncodeError as error:
        fail(
            f"This cannot be written as {error.encoding}. Use a terminal with UTF-8, or PYTHONIOENCODING=utf-8."
        )
    except BrokenPipeError:  # the program that read the output has ended
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        what = f"{error.filename} cannot be used" if error.filename else "The output cannot be written"
        fail(f"{what}: {error.strerror or error}.")
    except KeyboardInterrupt:
        sys.exit(130)


def fail(sentence: str) -> NoReturn:
    Console(stderr=True, highlight=False).print(plain(f"halo-weave: {sentence}", "red"))
    sys.exit(1)


def _drop_output() -> None:
    """Discard the rest of the output. Otherwise Python tries to write it again at exit, and reports an error."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
