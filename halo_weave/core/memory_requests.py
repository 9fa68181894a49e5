"""Detect that a message asks to remember or forget something, or what is remembered. In the languages of the word index."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

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
