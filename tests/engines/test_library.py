"""llama.cpp is found, checked, and refused with a sentence when it does not fit."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halo_weave.engines.llama import bindings, library
from halo_weave.errors import LibraryUnusable


class Function:
    """Stands for a C function that returns a struct: writes `value` into whatever layout is declared for it."""

    def __init__(self, value: ctypes.Structure) -> None:
        self.value, self.restype, self.argtypes = value, type(value), ()

    def __call__(self) -> Any:
        result = self.restype()
        raw = bytes(self.value)
        ctypes.memmove(ctypes.addressof(result), raw, min(len(raw), ctypes.sizeof(result)))
        return result


def defaults(layout: type[ctypes.Structure], known: dict[str, Any]) -> ctypes.Structure:
    params = layout()
    for field, value in known.items():
        setattr(params, field, value)
    return params


def fake(context: ctypes.Structure, model: ctypes.Structure | None = None) -> SimpleNamespace:
    functions: dict[str, Any] = {name: SimpleNamespace() for name in bindings.FUNCTIONS}
    functions["llama_context_default_params"] = Function(context)
    functions["llama_model_default_params"] = Function(
        model or defaults(bindings.ModelParams, bindings.KNOWN_MODEL_PARAMS)
    )
    return SimpleNamespace(**functions)


@pytest.mark.parametrize("layout", bindings.CONTEXT_PARAMS)
def test_each_known_layout_is_recognised(layout: type[ctypes.Structure]) -> None:
    c = fake(defaults(layout, bindings.KNOWN_CONTEXT_PARAMS))
    bindings.declare_functions(c, "lib")
    assert c.llama_context_default_params.restype is layout
    assert c.llama_init_from_model.argtypes[1] is layout


def test_a_layout_with_a_field_more_in_front_is_refused() -> None:
    class Shifted(ctypes.Structure):
        _fields_ = (("news", ctypes.c_uint64), *bindings.FIRST_CONTEXT_FIELDS, *bindings.LAST_CONTEXT_FIELDS)

    with pytest.raises(LibraryUnusable, match=r"does not support.*pip install xllamacpp=="):
        bindings.declare_functions(fake(defaults(Shifted, bindings.KNOWN_CONTEXT_PARAMS)), "lib")


def test_a_layout_with_a_field_more_before_the_flags_is_refused() -> None:
    class Shifted(ctypes.Structure):
        _fields_ = (
            *bindings.FIRST_CONTEXT_FIELDS,
            ("news", ctypes.c_uint64 * 3),
            *bindings.LAST_CONTEXT_FIELDS,
        )

    with pytest.raises(LibraryUnusable, match="does not support"):
        bindings.declare_functions(fake(defaults(Shifted, bindings.KNOWN_CONTEXT_PARAMS)), "lib")


def test_other_model_parameters_are_refused() -> None:
    known = defaults(bindings.CONTEXT_PARAMS[0], bindings.KNOWN_CONTEXT_PARAMS)
    with pytest.raises(LibraryUnusable, match="n_gpu_layers is 99"):
        bindings.declare_functions(
            fake(known, defaults(bindings.ModelParams, {**bindings.KNOWN_MODEL_PARAMS, "n_gpu_layers": 99})),
            "lib",
        )


def test_a_library_without_our_functions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LibraryUnusable, match=r"lacks llama_backend_init.*pip install"):
        bindings.declare_functions(SimpleNamespace(), "lib")


def test_a_named_library_that_is_not_there_or_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "libllama.so"))
    with pytest.raises(LibraryUnusable, match="no such file"):
        library.load()
    (tmp_path / "libllama.so").write_text("not a library")
    with pytest.raises(LibraryUnusable, match="cannot be loaded"):
        library.load()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "package_file", lambda package: None)
    with pytest.raises(LibraryUnusable, match="llama-cpp-python is not installed"):
        library.load("llama-cpp-python")
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    with pytest.raises(LibraryUnusable, match=r"llama.cpp is not installed.*xllamacpp=="):
        library.load()


def test_the_installed_library_loads_once() -> None:
    first = library.load()
    assert first is library.load()
    assert first.c.llama_context_default_params().n_batch == 2048
