"""Detect when the user asks to remember or forget something, and do it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import numpy as np

from halo_weave.chat.events import MemoryChanged
from halo_weave.chat.tools.structured_memory import SnapshotChunk, StructuredMemory
from halo_weave.core.terms import query_terms
from halo_weave.core.validation import MAX_HEADING_LENGTH, checked_path
from halo_weave.engines.base import Engine, Prompt, Sampling, Segment, Step
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.errors import HaloWeaveError
from halo_weave.store.records import MemoryEntry

RequestKind = Literal["remember", "forget", "ask"]
LONG = 600  # characters; of a longer message only the first and the last sentence can be a request
LONGEST = 2_000  # characters of the saved text

_SENTENCE = re.compile(r"[^.!?…。！？؟\n]*(?:[.!?…](?!\s|$)[^.!?…。！？؟\n]*)*(?:[.!?…。！？؟]+|\n|$)")
_DAY = re.compile(r"\b\d{1,2}\.\s*$")  # "am 4. Mai" is one sentence
_MONTH = re.compile(r"\s*(?:Jan|Feb|Mär|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez)\w*", re.IGNORECASE)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
# What may stand before a request: "okay, and could you please …".
_LEAD = r"""^\W*(?:(?:
      ok(?:ay)? | hey | hi | hello | oh | and | also | so | but | now | then | well | please | pls | kindly | just | btw | by\ the\ way
    | (?:can|could|would|will)\ you(?:\ mind)? | i\ (?:want|need|would\ like)\ you\ to | i['’]d\ like\ you\ to | you\ (?:should|must) | make\ sure\ (?:that\ you|you|to) | be\ sure\ to
    | bitte | und | also | kannst\ du(?:\ dir)? | könntest\ du(?:\ dir)? | können\ sie\ sich | s['’]il\ (?:te|vous)\ pla[iî]t | stp | peux-tu | pourrais-tu | tu\ peux | et
    | por\ favor | puedes | podrías | y | per\ favore | puoi | potresti | e | pode | podes | poderia | você\ pode | alsjeblieft | kun\ je | wil\ je | en
    | пожалуйста | и | من\ فضلك | 请 | 請
    )[\s,:!—-]+)*"""
_REMEMBER = r"""(?:
      (?:remember|memori[sz]e|(?:don['’]?t|do\ not|never)\ forget|(?:keep|bear)\ (?:this\ |that\ |it\ )?in\ mind|note\ (?:that|down|this)|note(?=:)|(?:make|take)\ a\ (?:mental\ )?note)
    | (?:write|jot)\ (?:this\ |that\ |it\ )?down | (?:save|store|keep|put|add)\ (?:this\ |that\ |it\ )?(?:in(?:to)?|to)\ (?:your\ |the\ )?(?:memory|notes) | remind\ me\ (?=to\b|that\b)
    | merke?\ dir | merken(?=,|:|\ dass) | vergiss\ (?:bitte\ )?nicht | notiere?\b(?:\ dir)? | notieren(?=,|:|\ dass) | behalte?\ (?:bitte\ )?im\ kopf | denk\ daran | schreib\ dir\ auf
    | souviens-toi | rappelle-toi | retiens | n['’]oublie\ pas | note\ (?=que|bien) | notez | garde\ en\ (?:tête|mémoire) | mémorise | te\ souvenir | retenir\ (?=que) | noter\ (?=que)
    | recuerda(?=\ que|:|,) | acuérdate | no\ (?:te\ )?olvides | anota | apunta | ten\ en\ cuenta | guarda\ en\ (?:tu\ )?memoria | memoriza | recordar\ (?=que)
    | ricorda(?:ti)?(?=\ (?:che|di)|:|,) | non\ dimenticare | annota | segnati | tieni\ (?:a\ mente|presente) | memorizza | ricordare\ (?=che)
    | lembr(?:e-se|a-te)(?:\ de)? | não\ (?:se\ )?esqueça | não\ te\ esqueças | anote | tenha\ em\ mente | memorize
    | onthoud | onthouden(?=\ dat) | vergeet\ niet | noteer | hou\ in\ gedachten
    | запомни(?:те)? | не\ забудь(?:те)? | не\ забывай | запиши(?:те)? | имей\ в\ виду
    | تذكّ?ر | لا\ تنسَ? | احفظ | سجّ?ل | 记住 | 記住 | 别忘了 | 別忘了
    )"""
_FORGET = r"""(?:
      forget\ (?=that|about\ (?!it)|my|the|what|everything) | (?:delete|remove|erase)\ (?=.*\bfrom\ (?:your\ |the\ )?(?:memory|notes))
    | vergiss[\ ,]+(?!nicht|bitte\ nicht|es\b) | oublie\ (?!pas|ça) | olvida\ (?=que|lo\ |el\ |la\ |mi\ ) | dimentica\ (?=che|il\ |la\ |quello) | esqueça\ (?=que|o\ |a\ )
    | vergeet\ (?!niet|het\b) | забудь\ (?=о|что|про|мо) | انسَ?\ | 忘记 | 忘掉
    )"""
_ASK = r"""(?:
      what(?:\ all)?\ (?:do|did)\ you\ (?:still\ )?(?:remember|know|save|note|store|keep|have\ (?:saved|stored|noted))\b | what\ have\ you\ (?:saved|noted|stored|remembered|kept)
    | what(?:['’]s|\ is)\ in\ your\ (?:memory|notes) | (?:show|list|tell)\ (?:me\ )?(?:all\ of\ )?(?:your|the)\ (?:memory|memories|notes) | look\ (?:it\ |this\ )?up\ in\ your\ (?:memory|notes)
    | was\ (?:weißt\ du|hast\ du\ dir\ (?:gemerkt|notiert)) | woran\ erinnerst\ du | que\ sais-tu | de\ quoi\ te\ souviens-tu | qu['’]as-tu\ (?:noté|retenu)
    | ¿?qué\ (?:recuerdas|sabes|has\ guardado) | (?:che\ )?cosa\ (?:ricordi|sai) | o\ que\ (?:você\ )?(?:lembra|sabe|guardou) | wat\ (?:weet|herinner)\ je
    | что\ ты\ (?:помнишь|знаешь|запомнил) | ماذا\ (?:تتذكر|تعرف) | 你(?:还)?记得什么 | 何を覚えて
    )"""
# Words between the verb and its object: "remember *for later that* …".
_FILLER = r"""(?:[\s,:—-]+|\b(?:that|this|it|down|please|for\ (?:me|later|ever|next\ time|the\ future)|(?:in|to)\ (?:your\ )?(?:memory|notes)|the\ following|about|of
    | dass|bitte|folgendes|que|de\ que|bien|che|di|de|dat|что|о\ том|أن|أنّ|von)(?=[\s:,.!]|$))*"""
_FLAGS = re.IGNORECASE | re.VERBOSE
_PATTERNS: tuple[tuple[RequestKind, re.Pattern[str]], ...] = (
    ("ask", re.compile(_LEAD + _ASK + _FILLER, _FLAGS)),
    ("remember", re.compile(_LEAD + _REMEMBER + _FILLER, _FLAGS)),
    ("forget", re.compile(_LEAD + _FORGET + _FILLER, _FLAGS)),
)
_JAPANESE = re.compile(r"^(.+?)(?:を|と|って)?(?:覚えておいて|覚えて(?:ね|ください|下さい)|メモして)")
_ASKED = re.compile(r"[?？؟]\s*$")
# "Can you remember that …?" asks to keep something, "Remember when …?" does not.
_STILL_A_REQUEST = re.compile(
    r"\b(?:that|this|in\ mind|forget|note|down|dass|que|che|dat|что)\b|:", re.IGNORECASE | re.VERBOSE
)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What to save or to forget, in the user's words."""

    kind: RequestKind
    text: str
    only: bool = False  # whether the message asks for nothing else


def memory_request(message: str) -> MemoryRequest | None:
    """The memory request in a message, if there is one. Code is ignored."""
    prose = _FENCE.sub("\n", message)
    sentences: list[str] = []
    for match in _SENTENCE.finditer(prose):
        if sentences and _DAY.search(sentences[-1]) and _MONTH.match(match.group()):
            sentences[-1] += match.group()
        elif match.group().strip():
            sentences.append(match.group())
    if not sentences:
        return None
    places = range(len(sentences)) if len(prose) <= LONG else sorted({0, len(sentences) - 1})
    for place in places:
        if found := _in_sentence(sentences, place):
            others = (one for other, one in enumerate(sentences) if other != place)
            return replace(found, only=not any(_ASKED.search(one.strip()) for one in others))
    return None


def _in_sentence(sentences: list[str], place: int) -> MemoryRequest | None:
    sentence = sentences[place].strip()
    for kind, pattern in _PATTERNS:
        match = pattern.match(sentence)
        if match is None:
            continue
        if kind == "remember" and _ASKED.search(sentence) and not _STILL_A_REQUEST.search(match.group()):
            return None
        rest = sentence[match.end() :].strip()
        if kind != "remember":
            return MemoryRequest(kind, rest.rstrip(".!?？؟。 "))
        kept = _what_to_keep(rest, sentences, place)
        return MemoryRequest(kind, kept) if kept else None
    if (match := _JAPANESE.match(sentence)) and not _ASKED.search(sentence):
        return MemoryRequest("remember", match.group(1))
    return None


def _what_to_keep(rest: str, sentences: list[str], place: int) -> str:
    """The rest of the sentence and the statements after it; if there are none, what was said before it."""
    after = []
    for sentence in sentences[place + 1 :]:
        if _ASKED.search(sentence.strip()):
            break
        after.append(sentence)
    whole = (rest + " " + "".join(after)).strip() if rest.strip(" .!?") else "".join(after).strip()
    if not whole.strip(" .!?"):
        whole = "".join(sentences[:place]).strip()
    whole = whole.rstrip("?？؟ ").strip()
    return whole[:1].upper() + whole[1:LONGEST]


log = logging.getLogger(__name__)
UNSORTED = "Unsorted"
MAX_HEADINGS = 20  # that the model may choose from
MOST_TOKENS = 48  # of what it writes to file something
TITLE = 40  # characters
SAVED_CHARACTERS = 300  # characters of saved memories in front of a message, about 100 tokens
MATCHING_SHARE = 0.34  # share of the words of a question that an entry must hold
FILING = "halo-weave filing"  # the engine's window for filing
_FILING_PROMPT = (
    "Note: {note}\nHeadings so far: {headings}\n"
    "File the note: give one of the headings or a new one-word heading, and a title that says what the note is about."
)


def save_user_request(
    tree: StructuredMemory,
    text: str,
    source: Sequence[SnapshotChunk],
    *,
    now: datetime,
    within: frozenset[str] | None,
) -> MemoryChanged:
    """Save the user's own words at once, under an unused path. `within`: windows whose chunks may explain them."""
    path = free_path(tree, f"{UNSORTED}/{_title_of(text)}")
    saved = tree.save(path, text, now=now, within=within, source=source)
    return MemoryChanged("saved", saved.path, text)


def file_entry(
    engine: Engine,
    tree: StructuredMemory,
    saved: MemoryChanged,
    *,
    now: datetime,
    stopped: Callable[[], bool],
) -> MemoryChanged:
    """Let the model choose a heading and a title for a saved entry, and move the entry there.

    The entry stays where it is if the model chooses none, or if it has been changed or moved since it was saved.
    """
    headings = [one.heading for one in tree.listing().children if one.heading != UNSORTED][:MAX_HEADINGS]
    try:
        path = _chosen_path(engine, str(saved.content), headings, stopped)
    except HaloWeaveError as error:  # a server that takes no grammar, or one that failed
        log.debug("%s stays unsorted: %s", saved.path, error)
        return saved
    entry = next((one for one in tree.newest() if one.path == saved.path), None)
    if path is None or entry is None or entry.content != saved.content:
        return saved
    moved = tree.move(saved.path, free_path(tree, path), now=now)
    return MemoryChanged("saved", moved.path, saved.content, moved_from=saved.path)


def forget_entry(tree: StructuredMemory, text: str, *, now: datetime) -> MemoryChanged | None:
    """Delete the entry that a text is about, if there is one. Its versions stay in the history."""
    found = matching_entries(tree, text)
    if not found:
        return None
    tree.delete(found[0].path, now=now)
    return MemoryChanged("forgotten", found[0].path, found[0].content)


def saved_memories_note(tree: StructuredMemory, request: MemoryRequest | None) -> str:
    """Text with saved memories, added to a message that asks for them; empty for other messages.

    Other questions are answered by recall, which also finds later corrections of what was saved.
    """
    if request is None or request.kind != "ask":
        return ""
    found = matching_entries(tree, request.text)
    if not found and not query_terms(request.text, 8):
        found = tree.newest()
    lines: list[str] = []
    for entry in found:
        line = f"- {_words_of(entry)}"
        if sum(map(len, lines)) + len(line) > SAVED_CHARACTERS:
            break
        lines.append(line)
    return "\n".join(["What I asked you to remember:", *lines, "", ""]) if lines else ""


def matching_entries(tree: StructuredMemory, text: str) -> list[MemoryEntry]:
    """Entries that contain enough of a text's words, those with the most first."""
    asked = query_terms(text, 32).keys()
    if not asked:
        return []
    found = []
    for entry in tree.newest():
        held = query_terms(f"{entry.path} {_words_of(entry)}", 400).keys()
        share = len(asked & held) / len(asked)
        if share >= MATCHING_SHARE:
            found.append((share, entry))
    return [entry for _, entry in sorted(found, key=lambda one: -one[0])]


def _words_of(entry: MemoryEntry) -> str:
    return entry.content if isinstance(entry.content, str) else json.dumps(entry.content, ensure_ascii=False)


def free_path(tree: StructuredMemory, path: str) -> str:
    """The path, or the first similar one that is unused: saving never overwrites another entry."""
    taken, number, free = set(tree.paths()), 1, path
    while free in taken:
        number += 1
        free = f"{path} {number}"
    return free


def _title_of(text: str) -> str:
    words = " ".join(text.replace("/", " ").split())
    cut = words if len(words) <= TITLE else words[:TITLE].rpartition(" ")[0] or words[:TITLE]
    return cut.strip(" .,:;!?\"'") or "Note"


def _chosen_path(
    engine: Engine, note: str, headings: Sequence[str], stopped: Callable[[], bool]
) -> str | None:
    """A heading and a title, generated by the model under a grammar; None if it generated none."""
    asked = _FILING_PROMPT.format(note=note[:400], headings=", ".join(headings) or "none")
    written = engine.chat([ChatMessage("user", asked)])
    parts = [engine.tokenize(one.text, special=not one.said).ids for one in written.pieces]
    ids = np.concatenate(parts)
    prompt = Prompt(
        [Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)],
        len(ids),
        messages=(ChatMessage("user", asked),),
    )
    sampling = Sampling(temperature=0.0, max_new_tokens=MOST_TOKENS, grammar=filing_grammar(headings))
    steps = engine.generate(FILING, prompt, sampling, None, mode="exact", stopped=stopped)
    text = b"".join(step.piece for step in steps if isinstance(step, Step)).decode(errors="replace")
    engine.forget(FILING)
    try:
        answer = json.loads(text)
        return checked_path(f"{answer['heading'].strip()}/{answer['title'].strip()}")
    except (ValueError, KeyError, AttributeError, HaloWeaveError):
        return None


def filing_grammar(headings: Iterable[str]) -> str:
    """GBNF of a JSON object with a title and one of these headings, or a new one."""
    known = [json.dumps(json.dumps(one, ensure_ascii=False)[1:-1], ensure_ascii=False) for one in headings]
    choices = " | ".join([*(one for one in known if len(one) <= MAX_HEADING_LENGTH), "new"])
    return (
        r'root ::= "{\"heading\": \"" heading "\", \"title\": \"" title "\"}"' + "\n"
        f"heading ::= {choices}\n"
        r"new ::= letter letter{2,19}" + "\n"
        r'title ::= letter ( letter | " " | "-" | [0-9] ){1,39}' + "\n"
        r"letter ::= [^\x00-\x40\x5b-\x60\x7b-\xbf]" + "\n"
    )
