"""Finds and loads the shared library of llama.cpp, once per process and file."""

from __future__ import annotations

import collections
import ctypes
import importlib.util
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halo_weave.engines.llama import bindings
from halo_weave.errors import LibraryUnusable

LIBRARY_VARIABLE = "HALO_WEAVE_LIBLLAMA"
SPIN_COUNT = "4000"


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The loaded llama.cpp library. `c` has its functions with their signatures."""

    c: Any
    path: Path
    log_errors: collections.deque[str]  # the last warnings and errors that llama.cpp logged
    log: Any = field(repr=False)  # the callback must live as long as the library

    def error_detail(self) -> str:
        """The last errors that llama.cpp logged, as the end of a sentence. Clears them."""
        text = " ".join(line.strip() for line in self.log_errors if line.strip())
        self.log_errors.clear()
        return f" (llama.cpp says: {text})" if text else ""


_loaded: dict[Path, Library] = {}
_load_lock = threading.Lock()


def load(named: str | None = None) -> Library:
    """The library named by `named` or HALO_WEAVE_LIBLLAMA (a path or a package), else xllamacpp, else llama_cpp."""
    name = named or os.environ.get(LIBRARY_VARIABLE, "")
    with _load_lock:
        if name:
            return _open_library(_named_file(name))
        files = [path for path in (package_file("xllamacpp"), package_file("llama_cpp")) if path]
        if not files:
            raise LibraryUnusable(f"llama.cpp is not installed. {bindings.INSTALL_ADVICE}")
        for path in files[:-1]:
            try:
                return _open_library(path)
            except LibraryUnusable:
                continue
        return _open_library(files[-1])


def _named_file(name: str) -> Path:
    package = {"xllamacpp": "xllamacpp", "llama-cpp-python": "llama_cpp", "llama_cpp": "llama_cpp"}.get(name)
    if package:
        path = package_file(package)
        if path is None:
            raise LibraryUnusable(f"{name} is not installed. {bindings.INSTALL_ADVICE}")
        return path
    path = Path(name).expanduser()
    if not path.is_file():
        raise LibraryUnusable(
            f"{LIBRARY_VARIABLE} names {path}, and there is no such file. {bindings.INSTALL_ADVICE}"
        )
    return path


def package_file(package: str) -> Path | None:
    """The shared library inside an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        patterns = (
            ("xllamacpp*.so", "xllamacpp*.pyd") if package == "xllamacpp" else tuple(
                f"lib/{name}" for name in ("libllama.so", "libllama.dylib", "llama.dll", "libllama.dll")
            )
        )  # fmt: skip
        for pattern in patterns:
            for path in sorted(Path(folder).glob(pattern)):
                return path
    return None


def _open_library(path: Path) -> Library:
    path = path.resolve()
    if path in _loaded:
        return _loaded[path]
    if sys.platform == "win32":
        os.add_dll_directory(str(path.parent))
    _shorten_spinning()
    try:
        c = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryUnusable(f"{path} cannot be loaded: {error}. {bindings.INSTALL_ADVICE}") from error
    bindings.declare_functions(c, str(path))
    log_errors: collections.deque[str] = collections.deque(maxlen=4)
    continues_error = False

    def note(level: int, text: bytes | None, _: object) -> None:
        nonlocal continues_error
        line = (text or b"").decode("utf-8", errors="replace")
        if level == bindings.LOG_CONTINUED:
            if continues_error and log_errors:
                log_errors[-1] += line
            return
        continues_error = level == bindings.LOG_ERROR
        if continues_error:
            log_errors.append(line)

    log = bindings.LogCallback(note)
    c.llama_log_set(log, None)
    c.llama_backend_init()
    _find_devices(c, path)
    _loaded[path] = Library(c, path, log_errors, log)
    return _loaded[path]


def _shorten_spinning() -> None:
    """Let OpenMP threads spin only for microseconds while they wait, unless the user has configured this.

    The default is milliseconds. If the machine has other work to do, each token then takes ten times as long.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def _find_devices(c: Any, path: Path) -> None:
    """Load backends that are separate files beside the library, if it was built that way."""
    try:
        count, load_all = c.ggml_backend_dev_count, c.ggml_backend_load_all_from_path
    except AttributeError:
        return
    count.restype, load_all.argtypes = ctypes.c_size_t, (ctypes.c_char_p,)
    if not count():
        load_all(os.fsencode(path.parent))
    if not count():
        raise LibraryUnusable(f"{path} found no processor to compute on. {bindings.INSTALL_ADVICE}")
