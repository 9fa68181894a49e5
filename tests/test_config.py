import pytest

from halo_weave.config import configured_settings, read_config
from halo_weave.errors import BadSetting


def test_the_environment_goes_before_the_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('temperature = 0.2\ntop_k = 40\nsink = "first"\nmodel = "/models/a.gguf"\n')
    config = read_config(
        {"HALO_WEAVE_TEMPERATURE": "0.9", "HALO_WEAVE_TIMESTAMPS": "false", "PATH": "/bin"}, file
    )
    settings = configured_settings(config)
    assert (settings.temperature, settings.top_k, settings.sink, settings.timestamps) == (
        0.9,
        40,
        "first",
        False,
    )
    assert config["model"] == "/models/a.gguf"
    assert "path" not in config


def test_no_file_configures_nothing(tmp_path):
    assert read_config({}, tmp_path / "none.toml") == {}


@pytest.mark.parametrize("text", ["temperature = ", "temperature = 99", 'temperature = "warm"'])
def test_a_mistake_in_the_file_is_said_in_a_sentence(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(BadSetting, match=r"temperature|not valid TOML"):
        configured_settings(read_config({}, file))
