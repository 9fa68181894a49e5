"""Every address of the API, with requests that fit its description and many that do not: never a 500."""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from halo_weave.server.app import create_app
from halo_weave.server.auth import Policy
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import say

pytestmark = pytest.mark.slow

KEY = "a key of sixteen characters"  # people are made up too, and then everyone needs a key
OWNER = {"authorization": f"Bearer {KEY}"}
TRUE = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Streams of events never end, and clearing takes away what the others need: both have tests of their own.
ASIDE = ("/events", "/clear")


def unused(progress):
    raise AssertionError("only the description is asked for")


def without_long_texts(schema):
    """Megabytes of text are slow to make up; their limits have tests of their own."""
    if isinstance(schema, dict):
        kept = {name: without_long_texts(value) for name, value in schema.items()}
        if kept.get("maxLength", 0) > 500:
            del kept["maxLength"]
        return kept
    return [without_long_texts(value) for value in schema] if isinstance(schema, list) else schema


def takes_something(operation):
    return bool(operation.body or operation.query or operation.path_parameters)


DESCRIBED = create_app(Service(unused), Policy(80)).app.openapi()
API = schemathesis.openapi.from_dict(without_long_texts(DESCRIBED))
OPERATIONS = [
    (method.upper(), path)
    for path, operations in DESCRIBED["paths"].items()
    for method in operations
    if not path.endswith(ASIDE)
]
TAKING = [(method, path) for method, path in OPERATIONS if takes_something(API[path][method])]
quick = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server of its own: what is made up here must not be found by other tests."""
    service = Service(lambda progress: scripted(tmp_path_factory.mktemp("fuzzed")))
    service.begin().join()
    with serve_in_thread(service, key=KEY) as address:
        yield address
    service.close()


@pytest.fixture(scope="module")
def place(address):
    """A window with something in it, so that requests reach more than an unknown id."""
    with httpx.Client(base_url=address, timeout=30, headers=OWNER) as client:
        about = {"name": "Fuzzed", "settings": {"memory_scope": "window", "max_new_tokens": 8}}
        window = client.post("/api/windows", json=about).json()["id"]
        say(client, window, "Something to find.")
        key = client.get(f"/api/windows/{window}/context").json()["turns"][0]["chunks"][0]["key"]
        client.put("/api/memory/entry", json={"path": "0", "content": 1})
        yield {"window_id": window, "key": key}


def real(operation, place):
    """The parameters of the path that name what exists. What is to be deleted stays unknown."""
    if operation.method.upper() == "DELETE":
        return None
    return {name: value for name, value in place.items() if "{" + name + "}" in operation.path} or None


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_fit_are_answered_as_described(method, path, address, place):
    operation = API[path][method]

    @quick
    @given(case=operation.as_strategy(GenerationMode.POSITIVE, path_parameters=real(operation, place)))
    def check(case):
        case.call_and_validate(base_url=address, checks=TRUE, timeout=30, headers=OWNER)

    check()


@pytest.mark.parametrize(("method", "path"), TAKING)
def test_requests_that_do_not_fit_are_refused(method, path, address, place):
    operation = API[path][method]
    fixed = real(operation, place) if operation.body or operation.query else None

    @quick
    @given(case=operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=fixed))
    def check(case):
        case.call_and_validate(
            base_url=address, checks=[*TRUE, negative_data_rejection], timeout=30, headers=OWNER
        )

    check()


def test_the_description_is_complete():
    assert len(DESCRIBED["paths"]) > 30
    for path, operations in DESCRIBED["paths"].items():
        for method, operation in operations.items():
            named = f"{method} {path}"
            assert operation["summary"], named
            assert {"4XX", "5XX"} <= operation["responses"].keys(), named
            assert any(status.startswith("2") for status in operation["responses"]), named
            for answer in operation["responses"].values():
                for content in answer.get("content", {}).values():
                    assert content.get("schema"), f"{named} answers something that is not described"
    assert "ValidationError" not in DESCRIBED["components"]["schemas"]


def test_the_description_is_served(address):
    policy = Policy(httpx.URL(address).port, KEY)  # the cookie's name has the port
    described = create_app(Service(unused), policy).app.openapi()
    assert httpx.get(f"{address}/api/openapi.json", headers=OWNER).json() == described


def test_no_page_of_the_framework_is_served(address):
    for path in ("/docs", "/redoc", "/api/docs"):
        assert httpx.get(f"{address}{path}", headers=OWNER).status_code == 404
