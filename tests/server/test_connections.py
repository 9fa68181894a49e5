"""Many connections and clients at once, idle ones among them."""

import resource
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from benchmarks.bench_soak import soak
from halo_weave.server import http_server
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import refused, say

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


SERVE = """
import logging, sys
from pathlib import Path
from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from halo_weave.server.service import Service
logging.basicConfig(level=logging.WARNING)
service = Service(lambda progress: build_weave(Options(data=Path(sys.argv[1]), engine="scripted")))
service.begin().join()
with serve_in_thread(service) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def own(tmp_path):
    """A service for a server that the test itself ends."""
    service = Service(lambda progress: scripted(tmp_path))
    service.begin().join()
    return service


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_few_descriptors_and_many_idle_connections_leave_it_answering_and_quiet(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(tmp_path / "memory")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
        )
    try:
        address = server.stdout.readline().strip()
        with ExitStack() as stack:
            for _ in range(260):
                stack.enter_context(closing(connect(address)))
            with httpx.Client(base_url=address, timeout=30) as client:
                window = client.post("/api/windows", json={"name": "one"}).json()["id"]
                assert say(client, window, "Hello.")[-1].name == "done"
    finally:
        server.communicate("")
    assert server.returncode == 0
    assert len(log.read_text()) < 1000


def test_a_log_line_a_minute_tells_that_descriptors_ran_out(service, caplog):
    server = http_server.Server(service, http_server.policy_for("127.0.0.1", 1))
    for _ in range(64):
        error = OSError(24, "Too many open files")
        server._on_loop_error(None, {"message": "socket.accept() out of system resource", "exception": error})
    assert caplog.text.count("Too many open files") == 1


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: ", b"GET /api/status HTTP/1.1\r\n"])
def test_a_connection_without_a_whole_request_is_closed(own, monkeypatch, sent):
    monkeypatch.setattr(http_server, "_HEADER_SECONDS", 0.2)
    with serve_in_thread(own) as address, closing(connect(address)) as line:
        line.sendall(sent)
        assert closed(line)


def test_half_of_a_second_request_is_not_waited_for_either(own, monkeypatch):
    monkeypatch.setattr(http_server, "_HEADER_SECONDS", 0.3)
    with serve_in_thread(own) as address, closing(connect(address)) as line:
        host = address.removeprefix("http://").encode()
        line.sendall(b"GET /static/icon.svg HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
        line.sendall(b"GET /")
        assert closed(line)


def closed(line: socket.socket) -> bool:
    try:
        while line.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_the_connection_that_was_idle_longest_makes_room_and_those_at_work_do_not(own, monkeypatch):
    monkeypatch.setattr(http_server, "_connection_limit", lambda: 3)
    window = own.weave.windows.create("one").id
    with serve_in_thread(own) as address, ExitStack() as stack:
        host = address.removeprefix("http://").encode()
        watching = []
        for _ in range(2):
            line = stack.enter_context(closing(connect(address)))
            line.sendall(b"GET /api/windows/%b/events HTTP/1.1\r\nHost: %b\r\n\r\n" % (window.encode(), host))
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
            watching.append(line)
        idle = stack.enter_context(closing(connect(address)))
        time.sleep(0.05)
        assert httpx.get(f"{address}/api/status").status_code == 200
        assert closed(idle)
        line = stack.enter_context(closing(connect(address)))
        line.sendall(b"GET /api/windows/%b/events HTTP/1.1\r\nHost: %b\r\n\r\n" % (window.encode(), host))
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert refused(httpx.get(f"{address}/api/status"), 503, "too_many_clients")
        assert all(one.recv(1 << 16) for one in select.select(watching, [], [], 0)[0])


def test_twenty_clients_on_five_windows_lose_and_mix_nothing(address):
    report = soak(address, seconds=4)
    assert report.errors == []
    assert report.mixed == []
    assert report.lost == []
    assert report.turns >= 5
    assert report.resumed
