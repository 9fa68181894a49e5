"""The files for containers say what the program understands. Building them needs Docker, which is not tried here."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from halo_weave.cli import app

HOME = Path(__file__).parent.parent


@pytest.fixture
def services():
    return yaml.safe_load((HOME / "compose.yaml").read_text())["services"]


def test_the_server_of_compose_finds_the_database_by_its_own_names(services):
    database, server = services["database"], services["server"]
    store = server["environment"]["HALO_WEAVE_STORE"]
    user, name = (database["environment"][key] for key in ("POSTGRES_USER", "POSTGRES_DB"))
    assert re.fullmatch(rf"postgresql://{user}:\$\{{POSTGRES_PASSWORD:\?[^}}]+\}}@database/{name}", store)
    assert "pgvector" in database["image"]
    assert server["depends_on"]["database"]["condition"] == "service_healthy"
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])


def test_the_commands_of_the_container_files_are_known(services):
    helped = CliRunner().invoke(app, ["serve", "--help"]).output
    docker = (HOME / "Dockerfile").read_text()
    for option in {*services["server"]["command"], *re.findall(r"--[a-z]+(?=\")", docker)}:
        if option.startswith("--"):
            assert option in helped
    extras = re.search(r'"\.\[([a-z,]+)\]"', docker)
    project = (HOME / "pyproject.toml").read_text()
    assert extras
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(","))
    assert 'ENTRYPOINT ["halo-weave"]' in docker
