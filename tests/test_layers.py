"""Imports point down only, and the core touches nothing outside itself."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "halo_weave"

# From the bottom up. A part may import those below it, and itself.
LAYERS = [
    {"errors"},
    {"sandbox"},
    {"core"},
    {"paths", "settings"},
    {"config"},
    {"models"},  # files of weights
    {"engines", "store"},
    {"search"},  # of what the store holds, by embedders that run on llama.cpp
    {"chat"},
    {"state_file"},
    {"app"},
    {"lab"},
    {"server"},
    {"cli"},  # `halo-weave serve` starts the server
]
TOP = {"__init__", "__main__"}
# Concrete engines, stores and embedders. `app` names them, and they may name each other; no other module does.
ADAPTERS = (
    "halo_weave.engines.kobold",
    "halo_weave.engines.llama",
    "halo_weave.engines.no_model",
    "halo_weave.engines.openai",
    "halo_weave.engines.shadow_model",
    "halo_weave.search.bert_encoder",
    "halo_weave.search.llama_embedder",
    "halo_weave.store.postgres",
    "halo_weave.store.sqlite",
)
IMPURE = {
    "os",
    "io",
    "pathlib",
    "time",
    "random",
    "logging",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "tempfile",
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__"}


@cache
def sources() -> dict[Path, ast.Module]:
    """Each file of the package, parsed once."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(sources()[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of the module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


def upward(part: str, target: str) -> bool:
    """Whether a part reaches up, or sideways to another part of its own layer."""
    return part != target and layer(target) >= layer(part)


def test_imports_point_down():
    for path in sources():
        part = part_of(path)
        if part in TOP:
            continue
        for name in imported(path):
            if name.startswith("halo_weave."):
                target = name.split(".")[1]
                assert target == "__version__" or not upward(part, target), f"{path} imports {name}"


def names_adapter(part: str, name: str) -> bool:
    """Whether a part that may not know concrete engines and stores imports one."""
    adapter = any(name == one or name.startswith(f"{one}.") for one in ADAPTERS)
    return adapter and part not in {"app", "engines", "search", "store"}


def test_only_app_names_concrete_engines_and_stores():
    for path in sources():
        for name in imported(path):
            assert not names_adapter(part_of(path), name), (
                f"{path} imports {name}; let halo_weave.app open it"
            )


def test_the_guard_sees_an_import_of_a_concrete_engine_or_store():
    assert names_adapter("cli", "halo_weave.engines.llama.library")
    assert names_adapter("cli", "halo_weave.engines.llama")
    assert names_adapter("lab", "halo_weave.store.sqlite.SqliteStore")
    assert names_adapter("server", "halo_weave.search.llama_embedder.open_embedder")
    assert not names_adapter("app", "halo_weave.store.sqlite.SqliteStore")
    assert not names_adapter("cli", "halo_weave.store.sql_store.SqlStore")
    assert not names_adapter("server", "halo_weave.engines.openai_like")


def test_the_guard_sees_an_upward_and_a_sideways_import():
    assert upward("core", "store")
    assert upward("store", "engines")
    assert upward("search", "chat")
    assert not upward("chat", "core")
    assert not upward("server", "app")


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=lambda path: path.name)
def test_the_core_is_pure(path):
    for name in imported(path):
        root = name.split(".")[0]
        assert root in {"numpy", "Stemmer", "halo_weave"} or root in sys.stdlib_module_names
        assert root not in IMPURE, f"{path.name} imports {name}"
        assert not name.startswith("numpy.random")
    for node in ast.walk(sources()[path]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, f"{path.name} calls {node.func.id}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"now", "utcnow", "today"}, f"{path.name} asks for the time"


def test_importing_does_nothing():
    """No module reads the environment or a file, or sets up logging, when it is imported."""
    for path, tree in sources().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If):
                continue
            for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
                name = ast.unparse(call.func)
                assert name not in {"open", "os.getenv", "logging.basicConfig"}, f"{path.name}: {name}"
                assert not name.startswith("os.environ"), f"{path.name}: {name}"
