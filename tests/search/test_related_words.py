"""Words akin in meaning: what a question calls by another word is found by its words as well."""

import numpy as np
import pytest

from halo_weave.search import related_words
from halo_weave.search.related_words import RelatedWords, related_words_file
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import recalling, talk
from tests.store.material import NOW

KIN = {"cities": 0, "chicago": 0, "violin": 1, "instrument": 1, "shed": 2, "the": 0, "of": 0, "ada": 1}
OTHERS = [f"{a}{b}word" for a in "bdfghjklmn" for b in "aeiouxyzvw"]  # akin to nothing
EVERY = ["cities", "chicago", "violin", "instrument", "shed", "ada", *OTHERS]


class Knowing(HashingEmbedder):
    """Tells its vocabulary. Words of one kind are near each other, and all cosines are high."""

    def __init__(self) -> None:
        super().__init__(128, name="knowing")
        self.asked: list[str] = []

    def vocabulary(self):
        return [*KIN, "ok", "Paris", "x2y", "violin", *OTHERS]

    def embed(self, texts, *, query=False):
        self.asked += texts
        vectors = np.full((len(texts), 128), 0.1, np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            vector[KIN[text] if text in KIN else 8 + (OTHERS.index(text) if text in OTHERS else 110)] += 1
            vector[3] = len(text) / 40  # no two words are quite the same
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_words_of_one_kind_are_akin_and_none_to_itself():
    table = RelatedWords.made(Knowing(), [])
    assert table.words == EVERY
    assert [word for word, _ in table.of("cities")] == ["chicago"]
    assert {word for word, _ in table.of("violin")} == {"instrument", "ada"}
    assert all(0.9 < near <= 1 for _, near in table.of("violin"))
    assert table.of("shed") == table.of(OTHERS[7]) == table.of("nowhere") == []


def test_it_is_the_same_after_it_was_written_and_read(tmp_path):
    made, file = RelatedWords.made(Knowing(), []), related_words_file(tmp_path / "akin", Knowing())
    made.write(file)
    read = RelatedWords.read(file)
    assert read.words == made.words
    assert [word for word, _ in read.of("violin")] == [word for word, _ in made.of("violin")]
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("harm", ["short", "noise", "places", "none"])
def test_a_damaged_table_is_none(tmp_path, harm):
    file = tmp_path / "table.npz"
    RelatedWords.made(Knowing(), []).write(file)
    whole = file.read_bytes()
    if harm == "short":
        file.write_bytes(whole[: len(whole) // 2])
    elif harm == "noise":
        file.write_bytes(whole[:200] + bytes(60) + whole[260:])
    elif harm == "places":
        np.savez(file, words=["a"], starts=[0, 1], others=[7], likeness=[0.9])
    else:
        file.unlink()
    assert RelatedWords.read(file) is None


def test_whatever_bit_of_a_table_is_wrong_reading_it_raises_nothing(tmp_path):
    file = tmp_path / "table.npz"
    RelatedWords.made(Knowing(), []).write(file)
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        RelatedWords.read(file)


def test_what_was_stopped_goes_on_where_it_was(monkeypatch):
    monkeypatch.setattr(related_words, "BATCH", 2)
    embedder, begun = Knowing(), []
    assert RelatedWords.made(embedder, begun, lambda: len(begun) == 2) is None
    assert RelatedWords.made(embedder, begun).words == RelatedWords.made(Knowing(), []).words
    assert embedder.asked == EVERY


def test_an_embedder_that_tells_no_words_has_an_empty_table():
    assert RelatedWords.made(HashingEmbedder(), []).words == []


def test_what_a_question_calls_otherwise_is_found_by_its_words(store, window, tmp_path):
    keys = talk(store, window)
    with recalling(store, Knowing, akin=tmp_path) as recall:
        while recall._embedding.akin is None:
            recall.embed_soon()
            assert recall.settle(30)
        found = {hit.key: hit for hit in recall.search("Which instrument is it?", now=NOW)}
        assert found[keys[1][0]].parts["words"] > 0, "My sister Ada plays the violin"
        assert "instrument ≈ violin" in found[keys[1][0]].words, "it tells by which word it was found"
    assert related_words_file(tmp_path, Knowing()).is_file()
    with recalling(store, Knowing) as recall:
        assert not [hit for hit in recall.search("Which instrument is it?", now=NOW) if "words" in hit.parts]


def test_a_word_itself_counts_more_than_one_akin_to_it(store, window, tmp_path):
    keys = talk(
        store, window, (("The instrument is green.", "Yes, it is."), ("The violin is green.", "Yes, it is."))
    )
    RelatedWords.made(Knowing(), []).write(related_words_file(tmp_path, Knowing()))
    with recalling(store, Knowing, akin=tmp_path) as recall:
        found = {hit.key: hit for hit in recall.search("Which instrument?", now=NOW)}
        exact, kin = (found[keys[i][0]].parts["words"] for i in range(2))
        assert 0 < kin < exact
