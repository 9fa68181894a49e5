"""Memories in different stores synchronise through one folder."""

from halo_weave.app import open_store
from tests.store.material import NOW, answer, ask, exchange, holding, user


def test_a_memory_in_any_store_comes_to_the_same_as_one_in_a_file(store, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    with open_store(tmp_path / "other") as other:
        window = store.create_window("Cats", now=NOW, tags=["home"]).id
        exchange(store, window, "Minka purrs", "good", " indeed")
        store.save_note("notes.json", {"_metadata": {}, "a": 1}, now=NOW)
        store.save_entry("Cats/Minka", {"age": 3}, now=NOW)
        store.change_persona({"user_name": "Ada"}, now=NOW)
        store.sync(shared, now=NOW)
        assert other.sync(shared, now=NOW).turns == 2
        again = ask(other, window, "Felix hunts")
        answer(other, window, again, "fine")
        other.delete(other.deletion_of(user(1)), now=NOW)
        other.add_negative_feedback(user(again.user_turn), "what?", now=NOW)
        other.delete_entry("Cats/Minka", now=NOW)
        other.sync(shared, now=NOW)
        store.sync(shared, now=NOW)
        assert other.sync(shared, now=NOW).sent == 0
        for one in (store, other):
            assert holding(one, "felix")
            assert not holding(one, "minka")
            assert [window.tags for window in one.windows()] == [("home",)]
            assert one.entries() == []
            assert len(one.negative_feedback()) == 1
            assert one.settings()["persona"]["user_name"] == "Ada"
            assert one.verify() == []
