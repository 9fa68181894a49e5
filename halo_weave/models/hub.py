"""A small client for the Hugging Face hub: resolves `hf:owner/repo[:quant]` to files and downloads them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote, urljoin

import httpx

from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.models.download import BLOCK, HashMismatch, KnownFile, PartFile, Progress, is_intact

ENDPOINT = "https://huggingface.co"
SCHEME = "hf:"
PREFERRED = ("Q4_K_M", "Q8_0")
SIDE_FILES = re.compile(r"(?i)(mmproj|imatrix|draft|(^|/)mtp-)")
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
QUANT = re.compile(
    r"(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))(?=[-._/]|$)"
)
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MAX_LIST_BYTES = 32 << 20  # bytes of a list of files
MAX_PAGES = 50
TRY_AGAIN = " Check the network, then try again."
RECEIVE_BYTES = 1 << 16  # bytes per write: at most these are lost when a connection breaks
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class HubReference:
    """`hf:owner/repo[:quant]`; instead of the quant, a file name can be given."""

    repository: str
    quant: str = ""

    @classmethod
    def read(cls, text: str) -> HubReference:
        repository, _, quant = text.removeprefix(SCHEME).strip().partition(":")
        if not REPOSITORY.fullmatch(repository) or ".." in repository:
            raise BadInput(
                f"{text!r} is not a model of the hub. Write {SCHEME}owner/repository or {SCHEME}owner/repository:Q4_K_M."
            )
        return cls(repository, quant)

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}" + (f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to retry."""

    attempts: int = 5  # failed attempts in a row without progress
    connect: float = 10.0
    read: float = 60.0
    pause: float = 1.0  # doubled with each attempt
    longest_pause: float = 120.0  # if the hub asks for a longer pause, the download fails


class HubUnreachable(ModelNotFound):
    """There was no response: no network, or a wrong name of the hub."""


class _Unavailable(ModelNotFound):
    """A failure that may pass: retry later."""

    def __init__(self, sentence: str, wait: float = 0.0) -> None:
        super().__init__(sentence)
        self.wait = wait


class ModelHub:
    """The hub at HF_ENDPOINT, with the user's HF_TOKEN if it is set."""

    def __init__(self, retries: RetryPolicy | None = None) -> None:
        self.endpoint = (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        self._token = os.environ.get("HF_TOKEN", "").strip()
        self._retries = retries or RetryPolicy()

    def choose(self, reference: HubReference, progress: Progress) -> tuple[str, list[KnownFile]]:
        """The current commit of the repository, and the files that the reference means: one, or all its shards."""
        progress(f"Asking the hub for {reference}", 0, 0)
        commit = self._commit(reference)
        return commit, choose_files(reference, self._files(reference, commit))

    def _commit(self, reference: HubReference) -> str:
        refs = self._json(f"{self.endpoint}/api/models/{reference.repository}/refs", reference)[0]
        branches = refs.get("branches") if isinstance(refs, dict) else []
        commits = {
            branch["name"]: branch["targetCommit"]
            for branch in (branches if isinstance(branches, list) else [])
            if isinstance(branch, dict)
            and isinstance(branch.get("name"), str)
            and re.fullmatch(r"[0-9a-f]{7,64}", str(branch.get("targetCommit")))
        }
        if not commits:
            raise ModelNotFound(f"{reference.repository} is empty on the hub. Check its name.")
        return str(commits.get("main") or commits.get("master") or next(iter(commits.values())))

    def _files(self, reference: HubReference, commit: str) -> list[KnownFile]:
        url: str | None = f"{self.endpoint}/api/models/{reference.repository}/tree/{commit}?recursive=true"
        files = []
        for _ in range(MAX_PAGES):
            if url is None:
                break
            listed, url = self._json(url, reference)
            if not isinstance(listed, list):
                raise ModelNotFound(f"The hub sent an invalid list of the files of {reference.repository}.")
            files += [file for entry in listed if (file := _hub_file(entry))]
        return files

    def _json(self, url: str, reference: HubReference) -> tuple[Any, str | None]:
        """A JSON response, and the address of its next page."""

        def ask() -> tuple[Any, str | None]:
            with self._get(url) as response:
                self._check(response, reference)
                content = b""
                for block in response.iter_raw(BLOCK):
                    content += block
                    if len(content) > MAX_LIST_BYTES:
                        raise ModelNotFound(f"The hub's list of files of {reference.repository} is too long.")
                try:
                    parsed = json.loads(content)
                except (ValueError, RecursionError) as error:
                    raise _not_a_hub_error(self.endpoint) from error
                following = response.links.get("next", {}).get("url")
                return parsed, urljoin(url, following) if following else None

        return self._with_retries(ask, lambda: 0)

    def fetch(
        self, repository: str, revision: str, file: KnownFile, target: Path, progress: Progress
    ) -> Path:
        """Download one file, continuing an earlier download."""
        url = (
            f"{self.endpoint}/{repository}/resolve/{quote(revision, safe='')}/{quote(file.hub or file.name)}"
        )
        reference = HubReference(repository)
        with PartFile(target, file.size, file.sha256) as part:
            resumed = part.length > 0
            while True:
                if part.length < file.size:
                    self._with_retries(
                        lambda: self._receive(url, reference, file, part, progress), lambda: part.length
                    )
                try:
                    return part.finish(progress)
                except HashMismatch:
                    if not resumed:
                        raise
                    resumed = False  # the part file of an earlier download was damaged: start again from the beginning

    def _receive(
        self, url: str, reference: HubReference, file: KnownFile, part: PartFile, progress: Progress
    ) -> None:
        begin = part.length
        with self._get(url, {"Range": f"bytes={begin}-"} if begin else {}) as response:
            if response.status_code == 416:
                part.restart()
                raise _Unavailable(f"The hub cannot continue the download of {file.name}.")
            self._check(response, reference)
            if "text/html" in response.headers.get("Content-Type", ""):
                raise _not_a_hub_error(self.endpoint)
            announced = _announced_hash(response)
            if announced and announced != file.sha256:
                raise HashMismatch(
                    f"{file.name} of {reference.repository} is not the expected file any more."
                )
            ranged = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if begin and (response.status_code != 206 or not ranged or int(ranged[1]) != begin):
                part.restart()
                begin = 0
                if response.status_code == 206:
                    raise _Unavailable(f"The hub sent another part of {file.name} than requested.")
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and begin + int(length) != file.size:
                raise HashMismatch(
                    f"{file.name} should have {file.size:,} bytes, and {begin + int(length):,} were offered."
                )
            for block in response.iter_raw(RECEIVE_BYTES):
                part.write(block)
                progress(f"Downloading {part.target.name}", part.length, file.size)
                if part.length > file.size:
                    part.restart()
                    raise HashMismatch(f"{file.name} is longer than the {file.size:,} bytes it should have.")
        if part.length < file.size:
            raise _Unavailable(f"The connection ended after {part.length:,} of {file.size:,} bytes.")

    def _get(self, url: str, headers: dict[str, str] | None = None) -> AbstractContextManager[httpx.Response]:
        sent = {"User-Agent": "halo-weave", "Accept-Encoding": "identity", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"  # httpx does not forward it to another host
        timeout = httpx.Timeout(self._retries.read, connect=self._retries.connect)
        return httpx.stream("GET", url, headers=sent, timeout=timeout, follow_redirects=True)

    def _with_retries(self, attempt: Callable[[], Result], length: Callable[[], int]) -> Result:
        """Retry temporary failures, with pauses. Progress, measured by `length`, resets the number of attempts."""
        failures, responded = 0, False
        while True:
            before = length()
            try:
                return attempt()
            except _Unavailable as error:
                failure, wait, responded = error, error.wait, True
            except httpx.HTTPError as error:
                # If the hub was never reached, do not retry: there is no network, or its name is wrong.
                connected = not isinstance(
                    error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol
                )
                responded = responded or connected or length() > before
                failure, wait = _Unavailable(_error_message(error, self.endpoint)), 0.0
            failures = 1 if length() > before else failures + 1
            if failures >= self._retries.attempts or not responded:
                kind = ModelNotFound if responded else HubUnreachable
                raise kind(f"{failure}{TRY_AGAIN}") from failure
            if wait > self._retries.longest_pause:
                raise failure
            time.sleep(wait or min(self._retries.pause * 2 ** (failures - 1), self._retries.longest_pause))

    def _check(self, response: httpx.Response, reference: HubReference) -> None:
        """Raise ModelNotFound if the hub refuses the request."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        name = reference.repository
        if status < 400:
            return
        if code == "GatedRepo" or status == 403:
            raise ModelNotFound(
                f"{name} asks you to accept its terms at {self.endpoint}/{name}. Then set HF_TOKEN to a token of your "
                "account, and try again."
            )
        if status == 401:
            missing = "The hub does not know the token in HF_TOKEN, or" if self._token else "Either"
            raise ModelNotFound(
                f"{missing} there is no {name} on the hub, or it is private. Check the name; for a private model set "
                "HF_TOKEN to a token of your account."
            )
        if status in (404, 410):
            raise ModelNotFound(f"There is no {name} on the hub, or not this file of it. Check the name.")
        if status == 429:
            wait = _seconds(response.headers.get("Retry-After", ""))
            raise _Unavailable(
                f"The hub has had too many requests and asks to wait {wait:.0f} seconds."
                if wait
                else "The hub has had too many requests from here.",
                wait,
            )
        if status >= 500 or status == 408:
            raise _Unavailable(f"The hub has a problem of its own (status {status}).")
        raise ModelNotFound(f"The hub refused to give {name} (status {status}).")


def choose_files(reference: HubReference, files: Sequence[KnownFile]) -> list[KnownFile]:
    """The file of the named quant, else of Q4_K_M, else of Q8_0, else the first one; with its shards."""
    models = [
        file for file in files if file.name.lower().endswith(".gguf") and not SIDE_FILES.search(file.name)
    ]
    if not models:
        raise ModelNotFound(
            f"{reference.repository} has no GGUF file. Look for a repository of the model whose name ends in -GGUF."
        )
    quants = [reference.quant] if reference.quant else list(PREFERRED)
    match = next((file for quant in quants for file in models if _is_of(file.name, quant)), None)
    if not match and reference.quant:
        available = dict.fromkeys(quant for file in models if (quant := quant_of(file.name)))
        raise ModelNotFound(
            f"{reference.repository} has no {reference.quant}. It has: "
            f"{', '.join(available) or ', '.join(file.name for file in models[:8])}."
        )
    chosen = match or models[0]
    shard = SHARD.search(chosen.name)
    if not shard:
        return [chosen]
    stem, count = chosen.name[: shard.start()], int(shard[2])
    by_path = {file.name: file for file in models}
    paths = [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    if count > 1000 or not all(path in by_path for path in paths):
        raise ModelNotFound(
            f"{reference.repository} lacks some of the {count} parts of {stem}. Choose another quant."
        )
    return [by_path[path] for path in paths]


def quant_of(path: str) -> str:
    """The quantization in a file name, such as Q4_K_M."""
    quants = QUANT.findall(SHARD.sub(".gguf", path).removesuffix(".gguf"))
    return quants[-1].upper() if quants else ""


def pull_from_hub(
    reference: HubReference, folder: Path, progress: Progress, retries: RetryPolicy | None = None
) -> Path:
    """The weights under `folder/owner/repo`, downloaded if they are missing; of several shards, the first."""
    hub = ModelHub(retries)
    commit, files = hub.choose(reference, progress)
    paths = []
    for file in files:
        target = folder / reference.repository / file.name
        if not is_intact(target, file, progress):
            hub.fetch(reference.repository, commit, file, target, progress)
        paths.append(target)
    return paths[0]


def pulled_from_hub(reference: HubReference, folder: Path) -> Path | None:
    """The weights from an earlier download, without a request to the hub."""
    home = folder / reference.repository
    here = [
        KnownFile(path.relative_to(home).as_posix(), "", 0)
        for path in sorted(home.rglob("*.gguf"))
        if not path.name.startswith(".")
    ]
    try:
        return home / choose_files(reference, here)[0].name
    except ModelNotFound:
        return None


def _hub_file(listed: Any) -> KnownFile | None:
    """A file of the hub's list, if it can be checked and stored."""
    if not isinstance(listed, dict) or not isinstance(listed.get("lfs"), dict):
        return None
    path, sha256, size = listed.get("path"), listed["lfs"].get("oid"), listed["lfs"].get("size")
    if not (isinstance(path, str) and isinstance(sha256, str) and isinstance(size, int)):
        return None
    plain = PurePosixPath(path)
    safe = (
        path == str(plain)
        and not plain.is_absolute()
        and not any(part.startswith(".") for part in plain.parts)
        and not re.search(r'[\x00-\x1f\\:*?"<>|]', path)
        and len(path) < 400
    )
    return (
        KnownFile(path, sha256, size) if safe and size > 0 and re.fullmatch(r"[0-9a-f]{64}", sha256) else None
    )


def _is_of(path: str, quant: str) -> bool:
    """Whether the reference means this file, by quant or by name."""
    if quant.lower().endswith(".gguf"):
        return quant.lower() in (path.lower(), PurePosixPath(path).name.lower())
    return bool(re.search(rf"(?i)(^|[-._/]){re.escape(quant)}[-./]", path))


def _announced_hash(response: httpx.Response) -> str:
    """The SHA-256 in the hub's redirect, if there is one."""
    for redirect in (*response.history, response):
        etag = str(redirect.headers.get("X-Linked-Etag", "")).strip('W/"')
        if re.fullmatch(r"[0-9a-f]{64}", etag):
            return etag
    return ""


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0


def _not_a_hub_error(endpoint: str) -> ModelNotFound:
    return ModelNotFound(
        f"The server at {endpoint} is not a model hub: perhaps it is a sign-in page of this network. "
        "Open it in a browser, then try again."
    )


def _error_message(error: httpx.HTTPError, endpoint: str) -> str:
    if isinstance(error, httpx.ConnectError) and "certificate" in str(error).lower():
        return f"The TLS certificate of {endpoint} is not trusted."
    if isinstance(error, httpx.TimeoutException):
        return f"{endpoint} did not answer in time."
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        return f"The connection to {endpoint} was lost."
    return f"{endpoint} could not be reached."
