"""The structured memory keeps what it is told under its path, with the talk that explains it."""

import math

import numpy as np
import pytest

from halo_weave.chat.tools.structured_memory import CONTENT_LIMIT, StructuredMemory
from halo_weave.chat.tools.toolbox import instructions, overview
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput, UnknownMemory
from halo_weave.store.sqlite import SqliteStore
from tests.chat.tools.places import DAY, NOW, BagOfWords, hit

HITS = [
    hit(1, "We want several windows at once.", tokens=400, similarity=0.9),
    hit(2, "A very long chunk.", tokens=700, similarity=0.8),
    hit(3, "The database schema needs large ids.", tokens=500, similarity=0.7),
    hit(4, "One more word on windows.", tokens=100, similarity=0.6),
]


@pytest.fixture
def tree(store):
    return StructuredMemory(store, search=lambda text, limit, within: HITS[:limit], embedder=BagOfWords())


# Saving


def test_a_saved_memory_is_read_back_with_its_snapshot(tree):
    content = {"goal": "several windows", "blockers": ["ids", None, 1.5, True]}
    saved = tree.save("Project/Goals/Windows", content, now=NOW)
    found = tree.query("Project/Goals/Windows", now=NOW)
    assert found.content == content
    assert (found.version, found.created, found.modified) == (1, NOW, NOW)
    assert found.snapshot == saved.snapshot
    first = found.snapshot[0]
    assert (first.key, first.text) == (ChunkKey(1, 0, Role.USER), "We want several windows at once.")
    assert (first.tokens, first.similarity, first.said) == (400, 0.9, (NOW - DAY).isoformat())


def test_a_snapshot_takes_the_most_relevant_chunks_whole_within_its_tokens(tree):
    assert [one.key.turn_id for one in tree.save("a", 1, now=NOW).snapshot] == [1, 3, 4]
    assert sum(one.tokens for one in tree.save("a", 1, now=NOW).snapshot) == 1000
    assert [one.key.turn_id for one in tree.save("a", 1, now=NOW, context_tokens=450).snapshot] == [1]
    assert tree.save("a", 1, now=NOW, context_tokens=0).snapshot == ()


def test_the_snapshot_is_searched_with_the_headings_and_the_content(store):
    asked = []
    tree = StructuredMemory(store, search=lambda text, limit, within: asked.append(text) or [])
    tree.save("User/Pets/Cat", {"name": "Miso"}, now=NOW)
    assert all(word in asked[0] for word in ("User", "Pets", "Cat", "Miso"))


def test_an_entry_has_a_vector_for_each_chunk_of_its_snapshot_and_one_of_its_own(store):
    hits = [hit(1, "about windows"), hit(2, "about ids")]
    tree = StructuredMemory(store, search=lambda text, limit, within: hits, embedder=BagOfWords())
    tree.save("a/b", "content", now=NOW)
    entry = store.entry("a/b")
    assert entry.model == "bag-of-words"
    texts = ["about windows", "about ids", "a b content"]
    assert np.allclose(entry.vectors, BagOfWords().embed(texts))


def test_saving_again_makes_a_version_and_keeps_the_older_one(tree):
    tree.save("a", "first", now=NOW)
    tree.save("a", "second", now=NOW + DAY)
    now = tree.query("a", now=NOW + 2 * DAY)
    assert (now.content, now.version, now.created, now.modified) == ("second", 2, NOW, NOW + DAY)
    assert [(one.version, one.content, one.ended) for one in tree.history("a")] == [
        (2, "second", None),
        (1, "first", NOW + DAY),
    ]
    assert [one.key.turn_id for one in tree.history("a")[1].snapshot] == [1, 3, 4]


def test_reading_a_memory_notes_when(tree):
    tree.save("a", 1, now=NOW)
    tree.query("a", now=NOW + DAY)
    assert tree.query("a", now=None).accessed == NOW + DAY
    assert tree.history("a")[0].accessed == NOW + DAY
    assert tree.history("a")[0].modified == NOW


@pytest.mark.parametrize("content", [None, 0, False, "", [], {}, "text", [[[]]], {"": {"": 1e-9}}])
def test_any_json_is_content(tree, content):
    tree.save("a", content, now=NOW)
    assert tree.query("a", now=NOW).content == content


@pytest.mark.parametrize(
    "content", [float("nan"), "\ud800", {1, 2}, "x" * CONTENT_LIMIT, "é" * (CONTENT_LIMIT // 2)]
)
def test_what_is_no_json_or_too_large_is_not_saved(tree, content):
    with pytest.raises(BadInput):
        tree.save("a", content, now=NOW)
    assert tree.listing().children == ()


def test_a_path_is_checked_by_every_step(tree):
    for step in (
        lambda: tree.save("a/../b", 1, now=NOW),
        lambda: tree.query("a//b", now=NOW),
        lambda: tree.query_heading("a\n", now=NOW),
        lambda: tree.listing("a/.."),
        lambda: tree.delete("", now=NOW),
        lambda: tree.history("a\0"),
    ):
        with pytest.raises(BadInput):
            step()


def test_memories_survive_a_restart_and_are_shared(tmp_path):
    with SqliteStore(tmp_path / "m.sqlite") as store, SqliteStore(tmp_path / "m.sqlite") as other:
        StructuredMemory(store).save("a/b", {"x": 1}, now=NOW)
        assert StructuredMemory(other).query("a/b", now=NOW).content == {"x": 1}
    with SqliteStore(tmp_path / "m.sqlite") as store:
        assert StructuredMemory(store).query("a/b", now=NOW).content == {"x": 1}


# Finding


def saved(store, embedder, *memories):
    """Memories saved with snapshots of their own: (path, content, days ago, texts said)."""
    for path, content, days, said in memories:
        hits = [hit(i + 1, text) for i, text in enumerate(said)]
        tree = StructuredMemory(store, search=lambda text, limit, within, hits=hits: hits, embedder=embedder)
        tree.save(path, content, now=NOW - days * DAY)
    return StructuredMemory(store, embedder=embedder)


def test_a_heading_gives_the_memory_whose_snapshot_fits_the_query(store):
    tree = saved(
        store,
        BagOfWords(),
        ("Goals/Windows", "todo", 0, ["several windows at once"]),
        ("Goals/Schema", "todo", 0, ["nothing of note", "database schema with large ids"]),
    )
    matches = tree.query_heading("Goals", "database schema", now=NOW)
    assert [match.entry.path for match in matches] == ["Goals/Schema", "Goals/Windows"]
    expected = (
        BagOfWords().embed(["database schema"])[0] @ BagOfWords().embed(["database schema with large ids"])[0]
    )
    assert matches[0].similarity == pytest.approx(expected)


def test_the_score_is_similarity_and_recency_by_the_bias(store):
    tree = saved(store, BagOfWords(), ("Goals/Old", "todo", 60, ["database schema"]))
    for bias in (0, 0.3, 1):
        (match,) = tree.query_heading("Goals", "database schema", now=NOW, recency_bias=bias)
        assert match.recency == pytest.approx(math.exp(-2))
        assert match.similarity == pytest.approx(1)
        assert match.score == pytest.approx((1 - bias) * 1 + bias * math.exp(-2))


def test_recency_turns_the_order_when_the_bias_is_high(store):
    tree = saved(
        store,
        BagOfWords(),
        ("Goals/Fitting", "x", 90, ["database schema"]),
        ("Goals/Recent", "x", 0, ["database of birds"]),
    )
    by = {
        bias: tree.query_heading("Goals", "database schema", now=NOW, recency_bias=bias)[0].entry.path
        for bias in (0.1, 0.9)
    }
    assert by == {0.1: "Goals/Fitting", 0.9: "Goals/Recent"}


def test_without_a_query_the_most_recent_come_first(store):
    tree = saved(store, BagOfWords(), ("a/old", 1, 9, []), ("a/new", 1, 1, []), ("a/middle", 1, 5, []))
    assert [match.entry.path for match in tree.query_heading("a", now=NOW)] == ["a/new", "a/middle", "a/old"]


def test_a_memory_without_a_snapshot_is_found_by_its_own_words(store):
    tree = saved(
        store, BagOfWords(), ("User/Pets", {"cat": "Miso"}, 0, []), ("User/Work", {"city": "Oslo"}, 0, [])
    )
    matches = tree.query_heading("User", "cat Miso", now=NOW)
    assert matches[0].entry.path == "User/Pets"
    assert matches[0].similarity > matches[1].similarity
    assert matches[0].entry.snapshot == ()


def test_a_heading_reaches_all_that_lies_below_it_and_no_sibling(store):
    tree = saved(store, None, ("User/Pets/Cat", 1, 0, []), ("UserData/x", 1, 0, []), ("User", 1, 0, []))
    assert [match.entry.path for match in tree.query_heading("User", now=NOW)] == ["User/Pets/Cat"]
    assert len(tree.query_heading("", now=NOW)) == 3


def test_without_an_embedder_words_decide(store):
    tree = saved(
        store,
        None,
        ("a/windows", "x", 0, ["several windows, and what they are for"]),
        ("a/schema", "x", 0, ["the database, and its schema"]),
        ("a/other", "x", 0, ["what is this, and what are they"]),
    )
    matches = tree.query_heading("a", "what is the database schema", now=NOW)
    assert matches[0].entry.path == "a/schema"
    assert 0 < matches[0].similarity <= 1


@pytest.mark.parametrize("other", ["old", "new"])
def test_vectors_of_another_embedder_are_not_compared(store, other):
    saved(store, BagOfWords(other, dimension=8), ("a/x", "database", 0, ["the database"]))
    tree = StructuredMemory(store, embedder=BagOfWords("new"))
    (match,) = tree.query_heading("a", "database", now=NOW)
    assert match.similarity == pytest.approx(1)  # by words


def test_an_entry_from_the_future_is_no_more_than_new(store):
    tree = saved(store, None, ("a/x", 1, -5, []))
    assert tree.query_heading("a", now=NOW)[0].recency == 1


# Listing and deleting


def fill(tree):
    for path in ("User", "User/Pets/Cat", "User/Pets/Dog", "UserData", "UserData/Logs", "User0"):
        tree.save(path, {"at": path}, now=NOW, context_tokens=0)


def paths(branch):
    own = [branch.path] if branch.version else []
    return own + [path for child in branch.children for path in paths(child)]


def test_the_memory_is_listed_as_a_tree(tree):
    fill(tree)
    root = tree.listing()
    assert [child.heading for child in root.children] == ["User", "User0", "UserData"]
    pets = root.children[0].children[0]
    assert (pets.path, pets.version, pets.entries) == ("User/Pets", None, 2)
    assert root.entries == 6
    assert paths(tree.listing("User")) == ["User", "User/Pets/Cat", "User/Pets/Dog"]
    assert tree.listing("User").modified == NOW


def test_deleting_a_memory_leaves_those_below_it(tree):
    fill(tree)
    assert tree.delete("User", now=NOW) == 1
    assert paths(tree.listing()) == ["User/Pets/Cat", "User/Pets/Dog", "User0", "UserData", "UserData/Logs"]


def test_deleting_with_all_below_leaves_siblings_with_the_same_beginning(tree):
    fill(tree)
    assert tree.delete("User", now=NOW, recursive=True) == 3
    assert paths(tree.listing()) == ["User0", "UserData", "UserData/Logs"]


def test_a_heading_is_deleted_with_all_below_only_on_request(tree):
    fill(tree)
    with pytest.raises(UnknownMemory, match="recursive"):
        tree.delete("User/Pets", now=NOW)
    assert tree.delete("User/Pets", now=NOW, recursive=True) == 2


def test_a_deleted_memory_has_its_history_and_counts_on(tree):
    tree.save("a", "first", now=NOW)
    tree.delete("a", now=NOW + DAY)
    with pytest.raises(UnknownMemory):
        tree.query("a", now=NOW + DAY)
    assert [(one.content, one.ended) for one in tree.history("a")] == [("first", NOW + DAY)]
    assert tree.save("a", "again", now=NOW + 2 * DAY).version == 2


def test_an_empty_memory_has_nothing_to_find(tree):
    assert tree.query_heading("", "anything", now=NOW) == []
    assert tree.listing().entries == 0


def test_what_is_not_there_is_said_so(tree):
    fill(tree)
    for step in (tree.query, tree.delete, tree.query_heading):
        with pytest.raises(UnknownMemory, match="no memory at Nowhere"):
            step("Nowhere", now=NOW)
    with pytest.raises(UnknownMemory, match="heading; memories below it: 2"):
        tree.query("User/Pets", now=NOW)
    with pytest.raises(UnknownMemory):
        tree.listing("Nowhere")
    with pytest.raises(UnknownMemory):
        tree.history("Nowhere")


# The top of the tree in the prompt


def test_the_overview_shows_the_tree(tree):
    fill(tree)
    assert overview(tree.listing()) == "User/\n  Pets/\n    Cat\n    Dog\nUser0\nUserData/\n  Logs"


def test_the_overview_stays_within_its_length_and_counts_what_it_hides(tree):
    for i in range(40):
        tree.save(f"Top{i % 4}/Middle{i % 8}/Leaf{i}", i, now=NOW, context_tokens=0)
    root = tree.listing()
    assert overview(root, length=150) == (
        "Top0/\n  Middle0/ (5)\n  Middle4/ (5)\nTop1/\n  Middle1/ (5)\n  Middle5/ (5)\n"
        "Top2/\n  Middle2/ (5)\n  Middle6/ (5)\nTop3/\n  Middle3/ (5)\n  Middle7/ (5)"
    )
    assert overview(root, length=80) == "Top0/ (10)\nTop1/ (10)\nTop2/ (10)\nTop3/ (10)"
    for length in range(20, 400, 7):
        assert len(overview(root, length=length)) <= length


def test_of_too_many_headings_the_newest_are_shown(tree):
    for i in range(50):
        tree.save(f"Heading{i}", i, now=NOW + i * DAY, context_tokens=0)
    lines = overview(tree.listing(), length=60).splitlines()
    assert lines[:2] == ["Heading49", "Heading48"]
    assert lines[-1] == f"… ({50 - len(lines) + 1} more)"


def test_the_instructions_are_short_and_name_every_tool(tree):
    text = instructions(tree.listing())
    assert len(text) < 700
    for tool in ("jq", "save", "query", "list", "delete", "inject", "query_heading"):
        assert tool in text
    assert "Your memory holds" not in text
    tree.save("User/Pets", 1, now=NOW)
    assert instructions(tree.listing()).endswith("Your memory holds:\nUser/\n  Pets")


def test_a_heading_shows_the_kept_chunks_that_fit_the_query_and_no_others(tree):
    tree.save("Project/Goals", "several windows", now=NOW)
    (match,) = tree.query_heading("Project", "large ids database schema", now=NOW)
    assert [chunk.key.turn_id for chunk in match.relevant] == [3]
    assert all(chunk.similarity > 0.5 for chunk in match.relevant)
    assert tree.query_heading("Project", "zebra", now=NOW)[0].relevant == ()


def test_how_fast_memories_fade_is_a_choice(tree):
    tree.save("a", 1, now=NOW)
    (slow,) = tree.query_heading("", now=NOW + 10 * DAY, decay_days=100)
    (fast,) = tree.query_heading("", now=NOW + 10 * DAY, decay_days=5)
    assert (slow.recency, fast.recency) == pytest.approx((math.exp(-0.1), math.exp(-2)))


def test_a_listing_gives_contents_on_request_and_totals(tree):
    tree.save("a/b", {"x": 1}, now=NOW)
    tree.save("a", "top", now=NOW)
    listed = tree.listing(contents=True)
    assert listed.entries == 2
    assert (listed.children[0].content, listed.children[0].children[0].content) == ("top", {"x": 1})
    assert tree.listing().children[0].content is None
    assert tree.listing("a", contents=True).content == "top"
