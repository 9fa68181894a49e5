"""Paths of the structured memory hold visible headings and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.validation import (
    MAX_HEADING_LENGTH,
    MAX_PATH_DEPTH,
    MAX_PATH_LENGTH,
    checked_path,
    is_root,
)
from halo_weave.errors import BadInput


@pytest.mark.parametrize(
    ("given_path", "kept"),
    [
        ("User", "User"),
        ("User/Coding style", "User/Coding style"),
        ("/User/Pets/", "User/Pets"),
        (" User / Pets ", "User/Pets"),
        ("e\u0301", "é"),
        ("Zażółć/猫/🐈\u200d⬛", "Zażółć/猫/🐈\u200d⬛"),
        ("a.b/...", "a.b/..."),
    ],
)
def test_a_path_is_kept_in_one_form(given_path, kept):
    assert checked_path(given_path) == kept


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//",
        "a//b",
        "a/ /b",
        "a/../b",
        "./a",
        "..",
        "a\nb",
        "a\tb",
        "a\0b",
        "a\x7f",
        "a\u202eb",
        "\u200d",
        "\ud800",
        "a\u2028b",
        "x" * (MAX_HEADING_LENGTH + 1),
        "/".join("a" * (MAX_PATH_DEPTH + 1)),
        "/".join(["x" * MAX_HEADING_LENGTH] * 6),
        None,
        7,
        ["a"],
    ],
)
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(BadInput):
        checked_path(path)


@given(st.text(max_size=60) | st.text(alphabet="a./ \n", max_size=20))
def test_a_checked_path_stays_as_it_is(path):
    try:
        kept = checked_path(path)
    except BadInput:
        return
    assert checked_path(kept) == kept
    assert len(kept) <= MAX_PATH_LENGTH
    headings = kept.split("/")
    assert all(heading.strip() == heading and heading not in ("", ".", "..") for heading in headings)
    assert kept.isprintable() or "\u200c" in kept or "\u200d" in kept or not kept.isascii()


def test_several_spellings_mean_all_of_the_memory():
    assert all(is_root(path) for path in ("", "/", " ", ".", None))
    assert not is_root("User")
