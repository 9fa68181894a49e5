"""The file of engines: private, damaged, overridden, written by several processes."""

import json

import pytest

from halo_weave.engines.engine_list import EngineList, NamedEngine, configured_engines
from halo_weave.errors import BadSetting


def test_engines_are_kept_for_the_next_start_in_a_file_that_only_the_user_can_read(tmp_path):
    EngineList(tmp_path).add(NamedEngine("cellar", "kobold", "http://cellar:4256", key="s3cret"))
    file = tmp_path / "engines.json"
    assert file.stat().st_mode & 0o077 == 0
    assert json.loads(file.read_text())[0]["key"] == "s3cret"
    again = EngineList(tmp_path)
    assert again.get("cellar").key == "s3cret"
    again.add(NamedEngine("cellar", "kobold", "http://cellar:4256", model_name="x"))
    assert EngineList(tmp_path).get("cellar").key == "s3cret"  # not told again, so it stays
    again.add(NamedEngine("cellar", "kobold", "http://elsewhere:4256"))
    assert EngineList(tmp_path).get("cellar").key == ""  # it belongs to the other address
    again.remove("cellar")
    assert list(EngineList(tmp_path)) == []


def test_engines_of_version_0_2_keep_their_shadow_model(tmp_path):
    about = {"kind": "openai", "url": "http://cellar:4256", "reader": "smollm2-135m"}
    (tmp_path / "engines.json").write_text(json.dumps([{**about, "name": "cellar", "key": "s3cret"}]))
    listed = EngineList(tmp_path)
    assert (listed.get("cellar").shadow_model, listed.notice) == ("smollm2-135m", "")
    assert configured_engines({"engines": {"cellar": about}})["cellar"].shadow_model == "smollm2-135m"


GOOD = {"name": "cellar", "kind": "kobold", "url": "http://cellar:4256", "key": "s3cret"}


@pytest.mark.parametrize(
    ("held", "left"),
    [
        ("", []),
        ("[{", []),
        ("{}", []),
        (b"\xff\xfe", []),
        (json.dumps([GOOD, {"name": "later", "kind": "quantum"}]), ["cellar"]),
        (json.dumps([GOOD, {**GOOD, "name": "odd", "key": 7}]), ["cellar"]),
        (json.dumps([GOOD, "?"]), ["cellar"]),
    ],
)
def test_a_damaged_file_of_engines_is_put_aside_whole_and_told_of(tmp_path, caplog, held, left):
    raw = held if isinstance(held, bytes) else held.encode()
    (tmp_path / "engines.json").write_bytes(raw)
    (tmp_path / "engines.damaged.json").write_text("of another day")
    listed = EngineList(tmp_path)
    assert [one.name for one in listed] == left
    assert (tmp_path / "engines.damaged1.json").read_bytes() == raw
    assert (tmp_path / "engines.damaged.json").read_text() == "of another day"
    assert "engines.damaged1.json" in listed.notice
    assert listed.notice in caplog.text
    assert "s3cret" not in caplog.text
    listed.add(NamedEngine("new", "openai", "http://x"))
    again = EngineList(tmp_path)
    assert [one.name for one in again] == [*left, "new"]
    assert again.notice == ""


def test_an_engine_that_the_configuration_overrides_is_not_lost(tmp_path):
    EngineList(tmp_path).add(NamedEngine(**GOOD))
    configured = NamedEngine("cellar", "kobold", "http://new:4256", configured=True)
    listed = EngineList(tmp_path, {"cellar": configured})
    listed.add(NamedEngine("hosted", "openai", "http://x"))
    assert listed.get("cellar").url == "http://new:4256"
    assert EngineList(tmp_path).get("cellar").key == "s3cret"


def test_what_another_process_added_stays(tmp_path):
    one, other = EngineList(tmp_path), EngineList(tmp_path)
    one.add(NamedEngine("cellar", "kobold", "http://cellar:4256", key="s3cret"))
    other.add(NamedEngine("hosted", "openai", "http://x"))
    other.remove("hosted")
    assert [(kept.name, kept.key) for kept in EngineList(tmp_path)] == [("cellar", "s3cret")]


@pytest.mark.parametrize("url", ["http://[::1", "http://x:99999", "http://ann:s3cret@x", "http://"])
def test_an_address_that_cannot_be_used_is_not_kept(url):
    with pytest.raises(BadSetting, match="needs the address") as told:
        NamedEngine("a", "kobold", url)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("wrong", [{"kind": "x"}, {"url": "ftp://x"}, {"name": ""}, {"name": "a/b"}])
def test_engines_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadSetting):
        NamedEngine(**{"name": "a", "kind": "kobold", "url": "http://x", **wrong})
