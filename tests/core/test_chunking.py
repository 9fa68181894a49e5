import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.chunking import Chunker, cut
from halo_weave.core.tokens import Tokens
from halo_weave.errors import BadSetting

LINES = st.sampled_from(
    [
        "",
        "",
        "text",
        "}",
        "} else {",
        "```",
        "```python",
        "~~~",
        "  }",
        "héllo wörld",
        "日本語",
        "🙂🙃",
        "`code`",
        "\r",
    ]
)
TEXTS = st.lists(LINES, max_size=25).map("\n".join)


@st.composite
def texts_in_pieces(draw) -> list[bytes]:
    """A text cut anywhere, also inside a character; with some empty pieces, as control tokens have."""
    raw = draw(TEXTS).encode()
    cuts = draw(st.lists(st.integers(0, len(raw)), max_size=40).map(sorted))
    edges = [0, *cuts, len(raw)]
    return [raw[a:b] for a, b in pairwise(edges)]


def chunk_ends(pieces: list[bytes], min_tokens: int = 64) -> list[int]:
    chunker = Chunker(min_tokens)
    for piece in pieces:
        chunker.feed(piece)
    return chunker.finish()


def whole_text_ends(pieces: list[bytes], min_tokens: int) -> list[int]:
    """The rules read off the whole text at once, written in another way than the product's."""
    raw = b"".join(pieces)
    plain = bytes(byte for byte in raw if byte != 0x0D)
    origin = [i for i, byte in enumerate(raw) if byte != 0x0D]  # plain offset -> raw offset
    after, before = [], []  # raw offsets that a chunk may end after / before
    mark, offset = b"", 0
    for line in re.split(rb"(?<=\n)", plain):
        if line[:3] in (b"```", b"~~~") and not mark:
            mark = line[:3]
            before.append((offset, offset + 2))
        elif mark and line[:3] == mark:
            mark = b""
            if line.endswith(b"\n"):
                after.append(offset + len(line) - 1)
        elif offset and line[:1] == b"}" and not mark:
            after.append(offset)
        if line == b"\n" and offset:
            after.append(offset)
        offset += len(line)
    token_of = [i for i, piece in enumerate(pieces) for _ in piece]
    starts = {0, len(raw)} | {len(raw[:i]) for i in range(len(raw)) if raw[i] & 0xC0 != 0x80}
    edges = np.cumsum([len(piece) for piece in pieces]).tolist()
    clean = [i + 1 for i, edge in enumerate(edges) if edge in starts]  # token counts between characters
    candidates = []  # (byte at which it is known, token count)
    for at in after:
        token = token_of[origin[at]]
        later = [count for count in clean if count > token and (edges[count - 1] > origin[at])]
        if later:
            candidates.append((edges[later[0] - 1], later[0]))
    for at, known in before:
        token = token_of[origin[at]]
        edge = edges[token - 1] if token else 0
        if edge in starts:
            candidates.append((origin[known] + 0.5, token))
    ends: list[int] = []
    for _, count in sorted(candidates):
        if count - (ends[-1] if ends else 0) >= min_tokens:
            ends.append(count)
    last = ends[-1] if ends else 0
    if len(pieces) > last:
        if ends and len(pieces) - last < min_tokens:
            ends.pop()
        ends.append(len(pieces))
    return ends


@given(texts_in_pieces(), st.integers(1, 6))
def test_streaming_gives_the_chunks_of_the_whole_text_however_it_is_cut(pieces, min_tokens):
    assert chunk_ends(pieces, min_tokens) == whole_text_ends(pieces, min_tokens)


@given(texts_in_pieces(), st.integers(1, 6))
def test_an_end_stands_unless_its_tail_is_too_short(pieces, min_tokens):
    chunker, seen = Chunker(min_tokens), []
    for piece in pieces:
        chunker.feed(piece)
        assert chunker.ends[: len(seen)] == seen
        seen = list(chunker.ends)
    final = chunker.finish()
    assert final[: len(seen) - 1] == seen[:-1]


@given(texts_in_pieces(), st.integers(1, 6))
def test_chunks_join_to_the_turn_and_only_a_short_turn_is_below_the_minimum(pieces, min_tokens):
    tokens = Tokens.of(np.arange(len(pieces)), pieces)
    chunks = cut(tokens, min_tokens)
    assert b"".join(chunk.raw for chunk in chunks) == tokens.raw
    assert [i for chunk in chunks for i in chunk.ids.tolist()] == list(range(len(pieces)))
    assert all(len(chunk) >= min_tokens for chunk in chunks) or len(chunks) == 1
    assert all(b"".join(chunk.pieces()) == chunk.raw for chunk in chunks)
    for chunk in chunks:
        chunk.raw.decode()  # no chunk begins or ends inside a character


def words(text: str) -> list[bytes]:
    return [word.encode() for word in re.findall(r"\n|[^\n ]+ ?| ", text)]


def chunks_of(text: str, min_tokens: int = 3) -> list[str]:
    pieces = words(text)
    return [tokens.text for tokens in cut(Tokens.of(range(len(pieces)), pieces), min_tokens)]


def test_a_blank_line_ends_a_chunk():
    assert chunks_of("one two three\n\nfour five six") == ["one two three\n\n", "four five six"]


def test_a_closing_brace_at_line_start_ends_a_chunk_only_outside_a_fence():
    assert chunks_of("int f() {\nreturn 1;\n}\nint g() {\nreturn 2;\n}") == [
        "int f() {\nreturn 1;\n}",
        "\nint g() {\nreturn 2;\n}",
    ]
    fenced = "```\nint f() {\nreturn 1;\n}\nint g() {\nreturn 2;\n}\n```"
    assert chunks_of(fenced) == [fenced]


def test_a_code_block_keeps_both_of_its_fences():
    text = "look at this code\n```python\nprint('hello there')\nx = 1\n```\nand then we go on"
    assert chunks_of(text) == [
        "look at this code\n",
        "```python\nprint('hello there')\nx = 1\n```\n",
        "and then we go on",
    ]


def test_short_paragraphs_join_until_the_minimum_is_reached():
    paragraphs = "a b c\n\n" * 40
    pieces = words(paragraphs)
    sizes = [len(tokens) for tokens in cut(Tokens.of(range(len(pieces)), pieces))]
    assert sizes == [65, 65, 70]


def test_windows_line_ends_end_chunks_too():
    assert chunks_of("one two three\r\n\r\nfour five six") == ["one two three\r\n\r\n", "four five six"]


def test_a_minimum_below_one_is_refused():
    with pytest.raises(BadSetting, match="at least 1"):
        Chunker(0)


@given(texts_in_pieces(), st.integers(1, 20), st.integers(8, 40))
def test_no_chunk_is_longer_than_the_upper_size_and_nothing_is_lost(pieces, least, most):
    parts = cut(Tokens.of(range(len(pieces)), pieces), least, most)
    assert b"".join(part.raw for part in parts) == b"".join(pieces)
    for part in parts:
        assert 0 < len(part) <= most


@given(st.text(min_size=1, max_size=300), st.integers(8, 40))
def test_no_cut_breaks_a_character(text, most):
    pieces = [bytes([byte]) for byte in text.encode("utf-8", "replace")]
    for part in cut(Tokens.of(range(len(pieces)), pieces), 64, most):
        part.raw.decode("utf-8")


def test_a_long_passage_is_cut_at_lines_before_sentences_and_at_sentences_before_words():
    lines = [word for i in range(40) for word in (f"line{i}", " has", " a", " stop.", " And", " more", "\n")]
    for part in cut(Tokens.of(range(len(lines)), [piece.encode() for piece in lines]), 64, 100):
        assert part.raw.endswith(b"\n")
    sentences = [word for i in range(40) for word in (f" One{i}", " is", " said", " here", ".")]
    for part in cut(Tokens.of(range(len(sentences)), [piece.encode() for piece in sentences]), 64, 100):
        assert part.raw.endswith(b".")
    words = [piece for i in range(150) for piece in (f" wo{i}", "rd")]
    for part in cut(Tokens.of(range(len(words)), [piece.encode() for piece in words]), 64, 100):
        assert part.raw.startswith(b" wo")


def test_the_parts_of_a_long_passage_are_about_as_long_as_each_other():
    pieces = [b" word"] * 1060
    assert [len(part) for part in cut(Tokens.of(range(1060), pieces))] == [212] * 5
