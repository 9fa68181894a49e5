"""A model comes from the hub whole, or a sentence says why not and what arrived is kept."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest

from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.models import download
from halo_weave.models.download import KnownFile, PartFile, no_progress
from halo_weave.models.hub import (
    HubReference,
    RetryPolicy,
    choose_files,
    pull_from_hub,
    pulled_from_hub,
    quant_of,
)
from halo_weave.models.inventory import resolve
from tests.models.conftest import WEIGHTS
from tests.models.hub import FakeHub, Handler, sha256

PATIENCE = RetryPolicy(attempts=3, connect=2, read=0.3, pause=0.01, longest_pause=1)
REFERENCE = HubReference("owner/tiny-GGUF")


def pulled(folder: Path, reference: HubReference = REFERENCE, progress=no_progress) -> Path:
    return pull_from_hub(reference, folder, progress, PATIENCE)


def left(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def parts(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in left(folder) if path.name.endswith(".part")]


def status(code: int, **headers: str):
    def fault(handler: Handler) -> bool:
        handler.answer(code, b"no", **headers)
        return True

    return fault


def broken_after(count: int):
    """The connection ends in the middle of the file."""

    def fault(handler: Handler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(WEIGHTS)))
        handler.end_headers()
        handler.wfile.write(WEIGHTS[:count])
        handler.close_connection = True
        return True

    return fault


def hanging(handler: Handler) -> bool:
    time.sleep(0.6)
    handler.close_connection = True
    return True


# What is meant


@pytest.mark.parametrize("text", ["hf:", "hf:owner", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a b/c", "hf:/a/b"])
def test_a_reference_that_is_none_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(BadInput, match="owner/repository"):
        HubReference.read(text)


def named(*paths: str) -> list[KnownFile]:
    return [KnownFile(path, "0" * 64, 1) for path in paths]


@pytest.mark.parametrize(
    ("quant", "paths", "chosen"),
    [
        ("", ["a-Q2_K.gguf", "a-Q8_0.gguf", "a-Q4_K_M.gguf"], ["a-Q4_K_M.gguf"]),
        ("", ["a-Q2_K.gguf", "a-q8_0.gguf"], ["a-q8_0.gguf"]),
        ("", ["mmproj-Q4_K_M.gguf", "a-draft-Q4_K_M.gguf", "a-Q2_K.gguf"], ["a-Q2_K.gguf"]),
        ("q5_k_m", ["a-Q4_K_M.gguf", "a-Q5_K_M.gguf"], ["a-Q5_K_M.gguf"]),
        ("Q4_K", ["a-Q4_K_M.gguf", "a.Q4_K.gguf"], ["a.Q4_K.gguf"]),
        ("Q8_0", ["Q8_0/a.gguf"], ["Q8_0/a.gguf"]),
        ("b.gguf", ["a.gguf", "x/b.gguf"], ["x/b.gguf"]),
        (
            "Q8_0",
            ["a-Q8_0-00002-of-00002.gguf", "a-Q8_0-00001-of-00002.gguf"],
            ["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"],
        ),
    ],
)
def test_the_file_is_chosen_as_llama_server_does(quant: str, paths: list[str], chosen: list[str]) -> None:
    found = choose_files(HubReference("a/b", quant), named(*paths))
    assert [file.name for file in found] == chosen


def test_what_the_repository_lacks_is_told_with_what_it_has() -> None:
    with pytest.raises(ModelNotFound, match=r"no Q6_K\. It has: Q4_K_M, Q8_0"):
        choose_files(HubReference("a/b", "Q6_K"), named("x-Q4_K_M.gguf", "x-Q8_0.gguf"))
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        choose_files(HubReference("a/b"), named("model.safetensors", "mmproj.gguf"))
    with pytest.raises(ModelNotFound, match="lacks some of the 2 parts"):
        choose_files(HubReference("a/b"), named("x-00001-of-00002.gguf"))


def test_the_quant_is_read_off_a_file_name() -> None:
    told = [
        "Qwen3-4B-Q4_K_M.gguf",
        "x.IQ3_XXS.gguf",
        "gpt-oss-20b-mxfp4.gguf",
        "a-UD-Q4_K_XL-00001-of-00002.gguf",
    ]
    assert [quant_of(name) for name in told] == ["Q4_K_M", "IQ3_XXS", "MXFP4", "UD-Q4_K_XL"]


# The way it goes


def test_a_model_is_pulled_through_the_redirect_and_checked(hub: FakeHub, folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = pulled(folder, progress=lambda *step: seen.append(step))
    assert path == folder / "owner/tiny-GGUF/Tiny-Q4_K_M.gguf"
    assert path.read_bytes() == WEIGHTS
    assert left(folder) == [path]
    assert ("Downloading Tiny-Q4_K_M.gguf", len(WEIGHTS), len(WEIGHTS)) in seen
    assert pulled_from_hub(REFERENCE, folder) == path
    assert pulled_from_hub(HubReference("owner/tiny-GGUF", "Q8_0"), folder) is None


def test_what_is_here_is_used_without_the_hub(hub: FakeHub, folder: Path) -> None:
    path = pulled(folder)
    asked = len(hub.asked)
    assert resolve("hf:owner/tiny-GGUF") == resolve("hf:owner/tiny-GGUF:Q4_K_M") == path
    assert len(hub.asked) == asked


def test_the_list_of_files_may_have_pages(hub: FakeHub, folder: Path) -> None:
    hub.page = 2
    assert pulled(folder).read_bytes() == WEIGHTS


def test_all_shards_arrive_and_the_first_is_the_model(hub: FakeHub, folder: Path) -> None:
    hub.files = {f"big/a-Q8_0-0000{n}-of-00003.gguf": bytes([n]) * 1000 for n in (1, 2, 3)}
    path = pulled(folder)
    assert path.name == "a-Q8_0-00001-of-00003.gguf"
    assert [one.read_bytes()[0] for one in left(folder)] == [1, 2, 3]


def test_the_token_goes_to_the_hub_and_not_to_where_it_redirects(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated, hub.token = True, "secret-token"
    with pytest.raises(ModelNotFound, match=r"accept its terms.*HF_TOKEN"):
        pulled(folder)
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    assert pulled(folder).read_bytes() == WEIGHTS
    assert all("authorization" not in headers for _, headers in hub.asked_of("cdn"))


def test_an_interrupted_download_goes_on_where_it_stopped(hub: FakeHub, folder: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("Downloading") and done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pulled(folder, progress=interrupt)
    (part,) = parts(folder)
    assert WEIGHTS.startswith(part)
    assert len(left(folder)) == 1
    assert pulled(folder).read_bytes() == WEIGHTS
    assert hub.asked_of("cdn")[-1][1]["range"] == f"bytes={len(part)}-"
    assert parts(folder) == []


def test_a_connection_that_breaks_is_taken_up_again(hub: FakeHub, folder: Path) -> None:
    hub.cdn_faults = deque([broken_after(2_000_000)])
    assert pulled(folder).read_bytes() == WEIGHTS
    resumed = int(hub.asked_of("cdn")[-1][1]["range"].removeprefix("bytes=").removesuffix("-"))
    assert 1_900_000 < resumed <= 2_000_000


def test_a_source_that_knows_no_ranges_begins_again(hub: FakeHub, folder: Path) -> None:
    def whole(handler: Handler) -> bool:
        handler.answer(200, WEIGHTS)
        return True

    hub.cdn_faults = deque([broken_after(2_000_000), whole])
    assert pulled(folder).read_bytes() == WEIGHTS


def test_a_part_that_was_damaged_is_found_and_downloaded_anew(hub: FakeHub, folder: Path) -> None:
    target = folder / "owner/tiny-GGUF/Tiny-Q4_K_M.gguf"
    target.parent.mkdir(parents=True)
    PartFile(target, len(WEIGHTS), sha256(WEIGHTS)).path.write_bytes(b"wrong" * 1000)
    assert pulled(folder).read_bytes() == WEIGHTS


# What goes wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (status(404), "no owner/tiny-GGUF on the hub"),
        (status(403), "accept its terms"),
        (status(429), "too many requests"),
        (status(429, Retry_After="3600"), "asks to wait 3600 seconds"),
        (status(500), "problem of its own"),
        (status(418), "status 418"),
        (hanging, "did not answer in time"),
    ],
)
@pytest.mark.parametrize("where", ["api", "cdn"])
def test_every_refusal_is_a_sentence_and_nothing_is_in_place(
    hub: FakeHub, folder: Path, fault, sentence: str, where: str
) -> None:
    faults = deque([fault] * 20)
    if where == "api":
        hub.api_faults = faults
    else:
        hub.cdn_faults = faults
    with pytest.raises(ModelNotFound, match=sentence):
        pulled(folder)
    assert left(folder) == []


def test_a_name_that_the_hub_does_not_know_is_told(hub: FakeHub, folder: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no nobody/nothing on the hub, or it is private.*HF_TOKEN"):
        pulled(folder, HubReference("nobody/nothing"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [status(500), status(429), status(429, Retry_After="0.05"), hanging])
def test_what_passes_is_waited_for(hub: FakeHub, folder: Path, fault) -> None:
    hub.api_faults, hub.cdn_faults = deque([fault, fault]), deque([fault, fault])
    assert pulled(folder).read_bytes() == WEIGHTS


def test_without_a_network_it_fails_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(ModelNotFound, match=r"could not be reached.*Check the network"):
        pulled(folder)


@pytest.mark.parametrize("where", ["api", "cdn"])
def test_a_sign_in_page_is_not_taken_for_a_model(hub: FakeHub, folder: Path, where: str) -> None:
    def page(handler: Handler) -> bool:
        handler.answer(200, b"<html>Sign in</html>", Content_Type="text/html; charset=utf-8")
        return True

    (hub.api_faults if where == "api" else hub.cdn_faults).append(page)
    with pytest.raises(ModelNotFound, match="not a model hub: perhaps it is a sign-in page"):
        pulled(folder)
    assert left(folder) == []


def test_another_length_than_promised_is_refused(hub: FakeHub, folder: Path) -> None:
    def short(handler: Handler) -> bool:
        handler.answer(200, WEIGHTS[:1000])
        return True

    hub.cdn_faults.append(short)
    with pytest.raises(ModelNotFound, match=r"should have 3,072,000 bytes, and 1,000 were offered"):
        pulled(folder)
    assert left(folder) == []


@pytest.mark.parametrize("linked", [True, False])
def test_other_bytes_than_the_list_says_are_refused(hub: FakeHub, folder: Path, linked: bool) -> None:
    hub.listed["Tiny-Q4_K_M.gguf"] = "f" * 64
    hub.linked = linked
    with pytest.raises(ModelNotFound, match="not the expected file"):
        pulled(folder)
    assert left(folder) == []
    if linked:
        assert parts(folder) == [], "the hub named the hash before anything was stored"


def test_more_bytes_than_promised_are_not_stored(hub: FakeHub, folder: Path) -> None:
    def endless(handler: Handler) -> bool:
        handler.send_response(200)
        handler.end_headers()  # no length: until the connection ends
        handler.wfile.write(WEIGHTS * 2)
        handler.close_connection = True
        return True

    hub.cdn_faults.append(endless)
    with pytest.raises(ModelNotFound, match="longer than"):
        pulled(folder)
    assert left(folder) == []


@pytest.mark.parametrize(
    "content", [b"[]", b"nonsense", b'{"branches": 5}', b"[" * 100_000, b'{"branches": [{}]}']
)
def test_an_answer_that_makes_no_sense_is_a_sentence(hub: FakeHub, folder: Path, content: bytes) -> None:
    def odd(handler: Handler) -> bool:
        handler.answer(200, content, Content_Type="application/json")
        return True

    hub.api_faults.append(odd)
    with pytest.raises(ModelNotFound):
        pulled(folder)


@pytest.mark.parametrize(
    "path", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", ".hidden.gguf", "c:\\evil.gguf"]
)
def test_a_path_that_leads_out_of_the_folder_is_not_offered(hub: FakeHub, folder: Path, path: str) -> None:
    hub.files = {path: b"evil"}
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        pulled(folder)
    assert not list(folder.parent.rglob("evil*"))


# The disk


def test_too_little_room_is_told_before_anything_is_downloaded(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = download.shutil.disk_usage(Path(__file__).parent)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(
        ModelNotFound, match=r"3 MB are still to be stored and 1 MB are free.*HALO_WEAVE_MODELS"
    ):
        resolve("hf:owner/tiny-GGUF")
    assert not hub.asked_of("cdn")


def test_a_disk_that_fills_up_in_the_middle_keeps_what_arrived(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PartFile.write

    def full(self: PartFile, block: bytes) -> None:
        if self.length >= 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, block)

    monkeypatch.setattr(PartFile, "write", full)
    with pytest.raises(ModelNotFound, match=r"No space left on device. What arrived is kept.*Make room"):
        resolve("hf:owner/tiny-GGUF")
    assert [len(part) for part in parts(folder)] == [1 << 20]
    monkeypatch.undo()
    monkeypatch.setenv("HF_ENDPOINT", hub.api)
    assert pulled(folder).read_bytes() == WEIGHTS


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a limit of file sizes is set as POSIX does")
def test_a_real_limit_of_the_disk_ends_in_a_sentence(hub: FakeHub, folder: Path) -> None:
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500000, 1500000));"
        "import sys; sys.argv = ['halo-weave', 'pull', 'hf:owner/tiny-GGUF'];"
        "from halo_weave.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "could not be stored" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert [path.name.endswith(".part") for path in left(folder)] == [True]


def test_two_at_once_do_not_write_into_the_same_part(hub: FakeHub, folder: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(what: str, done: int, total: int) -> None:
        if what.startswith("Downloading"):
            begun.set()
            go_on.wait(30)

    first = threading.Thread(target=lambda: pulled(folder, progress=wait))
    first.start()
    begun.wait(30)
    with pytest.raises(ModelNotFound, match="by another halo-weave"):
        pulled(folder)
    go_on.set()
    first.join()
    assert pulled(folder).read_bytes() == WEIGHTS
