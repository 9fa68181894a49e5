import pytest

from halo_weave.config import configured_settings, read_config, text_of, texts_of, whole_of
from halo_weave.errors import BadSetting


def test_the_environment_goes_before_the_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('temperature = 0.2\ntop_k = 40\nsink = "first"\nmodel = "/models/a.gguf"\n')
    config = read_config(
        {"HALO_WEAVE_TEMPERATURE": "0.9", "HALO_WEAVE_TIMESTAMPS": "false", "PATH": "/bin"}, file
    )
    settings = configured_settings(config)
    assert (settings.temperature, settings.top_k, settings["sink"], settings.timestamps) == (
        0.9,
        40,
        "first",
        False,
    )
    assert config["model"] == "/models/a.gguf"
    assert "path" not in config


def test_a_configuration_of_version_0_2_is_read_under_the_current_names(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('fading = 3\nkeep_exchanges = 2\nreader = "off"\nmay_leave = "window"\n')
    config = read_config({"HALO_WEAVE_ADDS_UP": "max", "HALO_WEAVE_MAY_LEAVE": "not_private"}, file)
    settings = configured_settings(config)
    assert (settings["fade_per_token"], settings["aggregate"]) == (3.0, "max")
    assert (settings.protect_recent_exchanges, settings.remote_scope) == (2, "not_private")
    assert config["shadow_model"] == "off"
    both = {"HALO_WEAVE_KEEP_EXCHANGES": "7", "HALO_WEAVE_PROTECT_RECENT_EXCHANGES": "4"}
    assert configured_settings(read_config(both, file)).protect_recent_exchanges == 4


def test_no_file_configures_nothing(tmp_path):
    assert read_config({}, tmp_path / "none.toml") == {}


@pytest.mark.parametrize("text", ["temperature = ", "temperature = 99", 'temperature = "warm"'])
def test_a_mistake_in_the_file_is_said_in_a_sentence(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(BadSetting, match=r"temperature|not valid TOML"):
        configured_settings(read_config({}, file))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("temprature = 1", "Did you mean temperature"),
        ("[settings]\ntemperature = 1", "no setting"),
        ("top_k = inf", "whole number"),
        ("temperature = 2026-01-01", "use a number"),
    ],
)
def test_what_is_no_setting_or_no_value_is_refused(tmp_path, text, sentence):
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(BadSetting, match=sentence):
        configured_settings(read_config({}, file))


def test_a_file_that_is_named_has_to_be_there_and_readable(tmp_path):
    named = {"HALO_WEAVE_CONFIG": "x"}
    with pytest.raises(BadSetting, match="does not exist"):
        read_config(named, tmp_path / "none.toml")
    with pytest.raises(BadSetting, match="cannot be read"):
        read_config(named, tmp_path)


def test_words_for_a_switch_are_refused_as_such():
    with pytest.raises(BadSetting, match="true or false"):
        configured_settings({"timestamps": "maybe"})
    with pytest.raises(BadSetting, match="use a number"):
        configured_settings({"temperature": "warm"})


@pytest.mark.parametrize("value", ["99999", "-1", True, "many", 70_000])
def test_a_port_is_a_port(value):
    with pytest.raises(BadSetting, match="from 0 to 65,535"):
        whole_of({"port": value}, "port", 0, 65_535)


def test_options_have_their_types():
    assert whole_of({"port": "80"}, "port", 0, 65_535) == 80
    assert whole_of({}, "port", 0, 65_535) is None
    assert texts_of({"origin": "a, b"}, "origin") == ("a", "b")
    assert texts_of({"origin": ["a"]}, "origin") == ("a",)
    for bad in (5, [5]):
        with pytest.raises(BadSetting, match="list of texts"):
            texts_of({"origin": bad}, "origin")
    with pytest.raises(BadSetting, match="quotation marks"):
        text_of({"key": 12345}, "key")
