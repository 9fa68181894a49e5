"""Scripted days of conversation over HTTP on a real model: what is answered, remembered, kept, and how long one waits.

Each day runs in a fresh data folder, by `halo_weave serve` in a process of its own, with default settings and real
sampling; nothing is deleted in between. The first message is said when the model is loaded and calibrated. `--against`
runs the same day in other ways: see `day_plain.py`. The form of a day: see `docs/usage-benchmark.md`.

A needed fact is in context if a chunk of the user turn that told it is live in the asking window when the reply begins.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.bench_soak import told
from benchmarks.day_plain import CONTEXT, LONGEST_TURN, WAYS, Plain, PlainReply
from benchmarks.day_script import (
    BadDay,
    Day,
    Message,
    abstains,
    has_leading_stamp,
    is_right,
    mixed,
    read_days,
    refuses,
    scaffolding,
)
from benchmarks.peer_server import ROOT, PeerServer, llama_server, running
from halo_weave.engines.llama.library import SPIN_COUNT
from halo_weave.errors import HaloWeaveError
from halo_weave.models.inventory import chosen_weights

DAYS = Path(__file__).parent / "days"
USUAL = "chat,rag,oracle"
PAUSE = 1.0  # seconds before each message: nobody answers sooner


@dataclass
class Heard:
    """What came of one message."""

    message: Message
    reply: str = ""  # as it was streamed
    stored: str = ""
    wait: float | None = None  # seconds until the first token that is shown
    readings: list[tuple[int, int]] = field(default_factory=list)  # before it: (cached, computed) tokens
    read_by_llama: float = 0.0  # seconds for the same
    woken: list[tuple[str, str, str]] = field(default_factory=list)  # (key, window, text)
    tokens: int = 0  # of what was resurrected
    overhead: int | None = (
        None  # tokens of declared tools, of the overview of the memory, and of notes about origin and time
    )
    found: tuple[str, ...] = ()  # needed labels that were in context
    new_entries: dict[str, str] = field(default_factory=dict)
    overwritten: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def scaffolding(self) -> list[str]:
        return scaffolding(self.reply, self.message.say) or scaffolding(self.stored, self.message.say)

    @property
    def kept(self) -> bool:
        """The right content is stored under a path of its own."""
        wanted = self.message.remember
        return wanted is not None and any(wanted.search(content) for content in self.new_entries.values())

    @property
    def confirmed(self) -> bool:
        return bool(self.reply.strip()) and not self.scaffolding and not refuses(self.reply)


class Product:
    """A client of one server, which says the messages of a day one after the other."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=LONGEST_TURN)
        self._windows: dict[str, str] = {}
        self._turns: list[str] = []  # the user turn of each message
        self._entries: dict[str, str] = {}

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return self._http.get(path).raise_for_status().json()

    def change_settings(self, values: dict[str, Any]) -> None:
        self._http.patch("/api/settings", json=values).raise_for_status()

    def settle(self) -> None:
        """Until nothing is being loaded or calibrated for two seconds: calibration begins a little after loading."""
        end, quiet = time.monotonic() + LONGEST_TURN, 0
        while time.monotonic() < end and quiet < 4:
            status = self.get("/api/status")
            change = status["model"].get("change") or {}
            busy = (
                change.get("state") in ("loading", "calibrating") or status["embedder"]["state"] == "loading"
            )
            quiet = 0 if busy else quiet + 1
            time.sleep(0.5)

    def say(self, day: Day, number: int) -> Heard:
        message = day.messages[number]
        heard = Heard(message)
        turn = ""
        try:
            window = self._window(message.window)
            live = self._live(window)
            time.sleep(PAUSE)
            began = time.perf_counter()
            answer = self._http.post(f"/api/windows/{window}/messages", json={"text": message.say})
            if answer.status_code == 202:
                turn = answer.json()["turn_id"]
                self._listen(window, answer.json()["last_event"], began, live, heard)
            else:
                heard.faults.append(f"say was answered by {answer.status_code}: {answer.text[:200]}")
            heard.found = tuple(
                label
                for label in message.needs
                if {self._turns[one] for one in day.sources(label, number)} & {_turn_of(key) for key in live}
            )
            self._compare_memory(heard)
        except httpx.HTTPStatusError as error:
            heard.faults.append(f"{error.request.url.path} was answered by {error.response.status_code}")
        except httpx.HTTPError as error:
            heard.faults.append(f"no answer: {error!r}")
        self._turns.append(turn)
        return heard

    def _window(self, name: str) -> str:
        if name not in self._windows:
            made = self._http.post("/api/windows", json={"name": name}).raise_for_status()
            self._windows[name] = made.json()["id"]
        return self._windows[name]

    def _live(self, window: str) -> set[str]:
        """The keys of what is live in a window."""
        context = self.get(f"/api/windows/{window}/context")
        return {chunk["key"] for turn in context["turns"] for chunk in turn["chunks"]}

    def _listen(self, window: str, last: str, began: float, live: set[str], heard: Heard) -> None:
        """Follow a turn to its end. `live` is changed to what is live when the reply begins."""
        end = began + LONGEST_TURN
        with self._http.stream(
            "GET", f"/api/windows/{window}/events", headers={"last-event-id": last}
        ) as answer:
            answer.raise_for_status()
            for _, name, data in told(answer.iter_lines()):
                if name == "resurrected":
                    heard.tokens += data["cost"]
                    for chunk in data["chunks"]:
                        text = "".join(chunk["text_pieces"])
                        heard.woken.append((chunk["key"], chunk["window_name"], text))
                    live |= {chunk["key"] for chunk in data["chunks"]}
                elif name == "pruned" and heard.wait is None:
                    live -= {chunk["key"] for chunk in data["chunks"]}
                elif name == "prefill" and heard.wait is None:
                    heard.readings.append((data["reused"] + data["restored"], data["computed"]))
                elif name == "token" and data["text"] and not data["tool"]:
                    if heard.wait is None:
                        heard.wait = time.perf_counter() - began
                    if not data["thought"]:
                        heard.reply += data["text"]
                elif name == "reply_stored":
                    heard.stored = "".join(
                        "".join(chunk["text_pieces"])
                        for chunk in data["chunks"]
                        if not chunk["tool"] and not chunk["thought"]
                    )
                elif name == "done":
                    heard.overhead = data["stats"]["overhead_tokens"]
                elif name in ("failed", "reset", "reply_not_stored"):
                    heard.faults.append(f"{name}: {data.get('message', '')}")
                if name in ("done", "failed", "reset"):
                    break
                if time.perf_counter() > end:
                    heard.faults.append(f"the turn did not end in {LONGEST_TURN:g} s")
                    self._http.post(f"/api/windows/{window}/stop")
                    break
            else:
                heard.faults.append("the events ended before the turn")
        if not heard.reply.strip() and not heard.faults:
            heard.faults.append("the reply is empty")

    def _compare_memory(self, heard: Heard) -> None:
        """What the turn added to the structured memory and what it replaced there."""
        entries: dict[str, str] = {}
        branches = [self.get("/api/memory?contents=true")]
        while branches:
            branch = branches.pop()
            branches += branch["children"]
            if branch["version"] is not None:
                content = branch["content"]
                text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
                entries[branch["path"]] = text
        before, self._entries = self._entries, entries
        heard.new_entries = {path: text for path, text in entries.items() if path not in before}
        heard.overwritten = [path for path, text in before.items() if entries.get(path, text) != text]


def _turn_of(key: str) -> str:
    """The turn of a chunk, from a key such as 12.0.user."""
    return key.partition(".")[0]


@dataclass
class Ran:
    """What came of one day."""

    day: Day
    heard: list[Heard]
    plain: dict[str, list[PlainReply]]
    logged: list[str]  # exceptions in the server's log
    rss: float | None


def run_day(day: Day, model: Path, ways: Sequence[str], longest_reply: int | None = None) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder) / "data", Path(folder) / "log"
        data.mkdir()
        (data / "config.toml").touch()
        env = {"HALO_WEAVE_CONFIG": str(data / "config.toml")}  # not the user's
        command = [
            "-m",
            "halo_weave",
            "serve",
            "--port",
            "{port}",
            "--data",
            str(data),
            "--model",
            str(model),
        ]
        note(f"{day.name}: {len(day.messages)} messages")
        with running(PeerServer(command, "/readyz", env, log)) as server:
            product = Product(server.url)
            try:
                product.settle()
                if longest_reply:
                    product.change_settings({"max_new_tokens": longest_reply})
                system = product.get("/api/persona")["system_prompt"]
                known = product.get("/api/settings")
                settings = known["values"] | {
                    name: value for name, value in known["auto"].items() if known["values"][name] is None
                }
                heard = []
                for number in range(len(day.messages)):
                    heard.append(product.say(day, number))
                    note(_line(day, number, heard[-1]))
                rss = _resident(server.pid)
            finally:
                product.close()
        lines = log.read_text(errors="replace").splitlines()
        logged = [line for line in lines if "Traceback (most recent call last)" in line]
    plain: dict[str, list[PlainReply]] = {}
    env = {"GOMP_SPINCOUNT": SPIN_COUNT}  # its threads wait for work as the product's do
    with llama_server(model, context=CONTEXT, env=env) as url:
        other = Plain(url, system, settings)
        try:
            timed = [said for said in heard if said.wait is not None]
            seconds = iter(other.reading_seconds([one for said in timed for one in said.readings]))
            for said in timed:
                said.read_by_llama = sum(next(seconds) for _ in said.readings)
            for way in ways:
                note(f"{day.name}: {way}")
                plain[way] = other.run(day, way)
        finally:
            other.close()
    return Ran(day, heard, plain, logged, rss)


def _resident(pid: int) -> float | None:
    """MB of a process; None where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None


def promised_mb(model: Path) -> float | None:
    """What the doctor says that this model needs."""
    command = [sys.executable, "-m", "halo_weave", "doctor", "--json", "--model", str(model)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return float(json.loads(ran.stdout)["model"]["needs"]) / 2**20
    except (ValueError, KeyError, TypeError):
        return None


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _line(day: Day, number: int, heard: Heard) -> str:
    wait = "-" if heard.wait is None else f"{heard.wait:.1f} s"
    start = " ".join(heard.reply.split())[:60]
    return f"  {number + 1}/{len(day.messages)} {wait}, {heard.tokens} resurrected: {start!r}"


# Reports


# Which messages a share is of, and how a reply to one is judged.
_JUDGED: dict[str, tuple[Callable[[Message], bool], Callable[[Message, str], bool]]] = {
    "answers": (lambda one: one.asks_memory, is_right),
    "updates": (lambda one: one.asks_memory and one.update, is_right),
    "general": (lambda one: bool(one.answers) and not one.needs and one.told, is_right),
    "abstained": (lambda one: not one.told, abstains),
}


def report(ran: Sequence[Ran], promised: float | None) -> dict[str, Any]:
    """The figures of one day or of several. `counts` has [good, of all] for each share."""
    heard = [one for day in ran for one in day.heard]
    messages = [one.message for one in heard]
    plain = {way: [one for day in ran for one in day.plain[way]] for way in ran[0].plain}
    texts = {"product": [one.reply for one in heard]}
    texts |= {way: [one.text for one in replies] for way, replies in plain.items()}
    judged = {
        name: {
            way: counted(good(one, text) for one, text in zip(messages, said, strict=True) if applies(one))
            for way, said in texts.items()
        }
        for name, (applies, good) in _JUDGED.items()
    }
    requests = [one for one in heard if one.message.remember]
    counts: dict[str, Any] = {
        **judged,
        "needed": counted(label in one.found for one in heard for label in one.message.needs),
        "remember": counted(one.kept and one.confirmed for one in requests),
        "stored": counted(one.kept for one in requests),
        "confirmed": counted(one.confirmed for one in requests),
    }
    marked = [one for one in heard if one.scaffolding]
    faults = [fault for one in heard for fault in one.faults]
    faults += [line for day in ran for line in day.logged]
    resident = max((day.rss for day in ran if day.rss is not None), default=None)
    return {
        "messages": len(heard),
        "scaffolding": len(marked),
        "stamps": sum(has_leading_stamp(one.reply) or has_leading_stamp(one.stored) for one in heard),
        "refusals": {way: sum(map(refuses, said)) for way, said in texts.items()},
        **{name: {way: ratio(*found) for way, found in by_way.items()} for name, by_way in judged.items()},
        "needed": ratio(*counts["needed"]),
        "needless": mean([one.tokens for one in heard if one.message.needs_nothing]),
        "needless_never_told": mean([one.tokens for one in heard if not one.message.told]),
        "tokens": mean([one.tokens for one in heard]),
        "overhead_tokens": _overhead(heard),
        "remember": ratio(*counts["remember"]),
        "overwritten": sum(len(one.overwritten) for one in heard),
        "first_token": _first_token(heard),
        "faults": len(faults),
        "rss_mb": {
            "resident": rounded(resident),
            "promised": rounded(promised),
            "ratio": ratio(resident, promised) if resident and promised else None,
        },
        "plain": {way: _plain_figures(replies) for way, replies in plain.items()},
        "counts": counts,
        "scaffolding_replies": [(one.reply or one.stored)[:120] for one in marked],
        "fault_list": faults[:20],
    }


def _plain_figures(replies: list[PlainReply]) -> dict[str, Any]:
    waits = [one.first_token for one in replies if one.first_token is not None]
    return {
        "first_token": {"p50": percentile(waits, 50), "p90": percentile(waits, 90)},
        "read": mean([one.read for one in replies]),
        "failed": sum(bool(one.failed) for one in replies),
    }


def _overhead(heard: list[Heard]) -> dict[str, float | None]:
    """Overhead of all messages, and the largest one of a message that needs neither memory nor a tool."""
    known = [(one.message, one.overhead) for one in heard if one.overhead is not None]
    plain = [tokens for message, tokens in known if message.needs_nothing and message.remember is None]
    return {
        "mean": mean([tokens for _, tokens in known]),
        "p90": percentile([tokens for _, tokens in known], 90),
        "needless_max": max(plain, default=None),
    }


def _first_token(heard: list[Heard]) -> dict[str, float | None]:
    """Seconds until the first token, those that llama.cpp needs, and how many times as long each message took."""
    timed = [(one.wait, one.read_by_llama) for one in heard if one.wait is not None and one.read_by_llama > 0]
    ratios = [wait / llama for wait, llama in timed]
    return {
        "p50": percentile([wait for wait, _ in timed], 50),
        "p90": percentile([wait for wait, _ in timed], 90),
        "llama_p50": percentile([llama for _, llama in timed], 50),
        "llama_p90": percentile([llama for _, llama in timed], 90),
        "ratio_p50": percentile(ratios, 50),
        "ratio_p90": percentile(ratios, 90),
        "computed": mean([sum(new for _, new in one.readings) for one in heard]),
    }


def counted(good: Iterable[bool]) -> tuple[int, int]:
    """How many of them are good, and of how many."""
    found = list(good)
    return sum(found), len(found)


def ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


def mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 1) if values else None


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest value that this share of the values does not exceed."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)], 3)


def failures(ran: Ran) -> list[dict[str, Any]]:
    """The messages with which something was wrong, for those who look for the reason."""
    found = []
    for number, one in enumerate(ran.heard, 1):
        wrong = []
        if one.message.asks_memory and not is_right(one.message, one.reply):
            wrong.append("answer")
        if set(one.message.needs) - set(one.found):
            wrong.append("needed")
        if not one.message.told and not abstains(one.message, one.reply):
            wrong.append("abstained")
        if one.message.remember and not (one.kept and one.confirmed):
            wrong.append("remember")
        if one.scaffolding:
            wrong.append("scaffolding")
        if one.faults:
            wrong.append("faults")
        if wrong:
            found.append(
                {
                    "message": number,
                    "window": one.message.window,
                    "say": one.message.say[:200],
                    "reply": one.reply[:200],
                    "wrong": wrong,
                    "missing": [label for label in one.message.needs if label not in one.found],
                }
            )
    return found


def timings(ran: Ran) -> list[dict[str, Any]]:
    """How long each message waited for its first token, and what was read before it."""
    return [
        {
            "message": number,
            "seconds": round(one.wait, 3),
            "llama": round(one.read_by_llama, 3),
            "cached": sum(cached for cached, _ in one.readings),
            "computed": sum(new for _, new in one.readings),
        }
        for number, one in enumerate(ran.heard, 1)
        if one.wait is not None
    ]


def write_transcript(ran: Ran, folder: Path) -> None:
    """What was said, exactly as it was, and what was resurrected for it."""
    lines = [f"# {ran.day.name}", "", ran.day.about, ""]
    for number, one in enumerate(ran.heard, 1):
        wait = "no token" if one.wait is None else f"first token after {one.wait:.2f} s"
        lines += [f"## {number}. {one.message.window} ({wait})", "", "**User:**", "", one.message.say, ""]
        lines += ["**Assistant:**", "", one.reply, ""]
        if one.woken:
            woken = "; ".join(f"{key} of {window}: {text.strip()!r}" for key, window, text in one.woken)
            lines += [f"*Resurrected, {one.tokens} tokens: {woken}*", ""]
        lines += [f"*Saved under {path}: {text!r}*\n" for path, text in one.new_entries.items()]
        lines += [f"*Overwritten: {path}*\n" for path in one.overwritten]
        lines += [f"*Fault: {fault}*\n" for fault in one.faults]
        for way, replies in ran.plain.items():
            if one.message.asks_memory or not one.message.told:
                lines += [f"*{way}: {' '.join(replies[number - 1].text.split())!r}*", ""]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{ran.day.name}.md").write_text("\n".join(lines), encoding="utf-8")


def print_table(by_day: dict[str, dict[str, Any]]) -> None:
    names = ("answers", "updates", "abstained", "needed", "remember")
    columns = [
        *names,
        "scaffold",
        "refusals",
        "needless",
        "overhead",
        "first p50/p90",
        "ratio p50/p90",
        "faults",
        "rss",
    ]
    wide = max(len(name) for name in by_day) + 1
    print(" " * wide + "  ".join(f"{name:>13}" for name in columns))
    for name, one in by_day.items():
        first = one["first_token"]
        cells = [_of(one["counts"][kind]) for kind in names]
        cells += [
            one["scaffolding"],
            one["refusals"]["product"],
            one["needless"],
            one["overhead_tokens"]["needless_max"],
        ]
        cells += [f"{first['p50']}/{first['p90']} s", f"{first['ratio_p50']}/{first['ratio_p90']}"]
        cells += [one["faults"], one["rss_mb"]["ratio"]]
        print(f"{name:{wide}}" + "  ".join(f"{cell!s:>13}" for cell in cells))
    total = by_day["total"]
    for way, about in total["plain"].items():
        shares = ", ".join(f"{kind} {_of(total['counts'][kind], way)}" for kind in names[:3])
        first = about["first_token"]
        print(
            f"{way}: {shares}, refusals {total['refusals'][way]}, "
            f"first token {first['p50']}/{first['p90']} s, {about['read']} tokens read for each message"
        )


def _of(counts: Any, way: str = "product") -> str:
    good, every = counts[way] if isinstance(counts, dict) else counts
    return f"{good}/{every}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench day", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", help="a GGUF file or the name of a model; default: that of the product")
    parser.add_argument(
        "--days", type=Path, default=DAYS, help="a folder with days; default: benchmarks/days"
    )
    parser.add_argument("--only", help="the name of one day")
    parser.add_argument("--messages", type=int, help="only so many messages of each day")
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="all days in one memory: a window for each, and their messages in turn",
    )
    parser.add_argument(
        "--longest-reply",
        type=int,
        metavar="TOKENS",
        help="instead of the default, to save time; also for --against",
    )
    parser.add_argument(
        "--against", default=USUAL, help=f"some of {','.join(WAYS)}, or none; default: {USUAL}"
    )
    parser.add_argument("--transcripts", type=Path, help="a folder to write what was said to, as Markdown")
    parser.add_argument("--check", action="store_true", help="only read the days and check them")
    options = parser.parse_args(arguments)
    ways = [] if options.against in ("", "none") else options.against.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"--against: {unknown[0]} is not one of {', '.join(WAYS)}.")
    for name in ("messages", "longest_reply"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1.")
    try:
        days = read_days(options.days, options.only)
        days = (
            [mixed(days, options.messages)]
            if options.mixed
            else [day.first(options.messages) for day in days]
        )
        if options.check:
            print("\n".join(f"{day.name}: {len(day.messages)} messages" for day in days))
            return 0
        model = chosen_weights(options.model)
    except (BadDay, HaloWeaveError) as error:
        print(f"halo-weave: {error}", file=sys.stderr)
        return 1
    promised = promised_mb(model)
    ran: list[Ran] = []
    by_day: dict[str, dict[str, Any]] = {}
    for day in days:
        try:
            ran.append(run_day(day, model, ways, options.longest_reply))
        except (RuntimeError, httpx.HTTPError) as error:  # a server that does not start, or went away
            print(f"halo-weave: {day.name} could not be run: {error}", file=sys.stderr)
            return 1
        by_day[day.name] = report(ran[-1:], promised)
        by_day[day.name] |= {"failures": failures(ran[-1]), "timings": timings(ran[-1])}
        if options.transcripts:
            write_transcript(ran[-1], options.transcripts)
    total = report(ran, promised)
    if options.json:
        print(json.dumps({"model": model.stem, **total, "days": by_day}, ensure_ascii=False))
    else:
        print_table(by_day | {"total": total})
    return 0


if __name__ == "__main__":
    sys.exit(main())
