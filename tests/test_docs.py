"""What README and docs show is true: commands, options, files, links, settings."""

import importlib
import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import halo_weave
from halo_weave.cli import app
from halo_weave.settings import described_settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(
    r"(?:^|`|\$ )((?:\.venv/bin/)?halo-weave(?: [^`\n#|]*)?|scripts/[a-z]+(?: [^`\n#|]*)?)", re.MULTILINE
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def commands(text: str) -> list[list[str]]:
    found = []
    for match in COMMAND.finditer(text):
        shown = match.group(1).replace("…", "").replace("...", "")
        found.append(shlex.split(re.sub(r"[\[\]<>()]", " ", shown), comments=True))
    return found


def options_of(command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }


def check_halo_weave(words: list[str]) -> None:
    """Every subcommand and option that is shown exists."""
    command = typer.main.get_command(app)
    known = options_of(command)
    for word in words[1:]:
        if isinstance(command, TyperGroup) and not word.startswith("-"):
            assert word in command.commands, f"there is no command {' '.join(words)}"
            command = command.commands[word]
            known |= options_of(command)
        elif word.startswith("--"):
            assert word.split("=")[0].rstrip(",.;:") in known, f"{' '.join(words)}: no option {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page):
    for words in commands(page.read_text()):
        if words[0].endswith("halo-weave"):
            check_halo_weave(words)
        else:
            assert (ROOT / words[0]).exists(), f"{page.name} shows {words[0]}"
            if words[0] == "scripts/bench" and len(words) > 1 and words[1].islower():
                assert (ROOT / "benchmarks" / f"bench_{words[1]}.py").exists(), f"{page.name} shows {words}"


def test_a_command_or_option_that_does_not_exist_is_found():
    with pytest.raises(AssertionError, match="no command"):
        check_halo_weave(["halo-weave", "dance"])
    with pytest.raises(AssertionError, match="no option"):
        check_halo_weave(["halo-weave", "--colour"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_settings_page_is_what_the_program_says():
    page = (ROOT / "docs" / "settings.md").read_text()
    for about in described_settings():
        row = next((line for line in page.splitlines() if line.startswith(f"| `{about['name']}` ")), "")
        assert about["meaning"] in row, f"docs/settings.md lacks {about['name']}"
        shown = "empty" if about["default"] is None else str(about["default"]).lower()
        assert f"| {shown} |" in row, f"docs/settings.md: default of {about['name']}"


NAMED = re.compile(r"`((?:app|chat|core|engines|models|search|server|store)(?:\.\w+)+)`")


def check_name(name: str) -> None:
    """The package has such a module, class or function."""
    found, path = halo_weave, "halo_weave"
    for part in name.split("."):
        path += f".{part}"
        if not hasattr(found, part):
            with suppress(ModuleNotFoundError):
                importlib.import_module(path)
        assert hasattr(found, part), f"there is no {name}"
        found = getattr(found, part)


def test_the_walkthrough_names_what_there_is():
    names = NAMED.findall((ROOT / "docs" / "walkthrough.md").read_text())
    assert len(names) > 40
    for name in names:
        check_name(name)


def test_a_function_that_does_not_exist_is_found():
    check_name("chat.turn.Turn.run")
    with pytest.raises(AssertionError, match="there is no"):
        check_name("chat.turn.Turn.dance")
