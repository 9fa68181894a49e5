"""Split text into search terms: language detection, stop words, stems."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from itertools import islice

import Stemmer

# Stop words, by the name of the language's stemmer.
_STOP_WORD_LISTS = {
    "english": """
a about after again all also am an and any are aren as at be because been before being between both but by can could
couldn d did didn do does doesn doing don during each else for from further had hadn has hasn have haven having he her
here hers herself him himself his how i if in into is isn it its itself just ll m me might more most must my myself no
nor not now of off on once only or other our ours ourselves out over own re s same shall she should shouldn so some such
t than that the their theirs them themselves then there these they this those through to too under until up us ve very
was wasn we were weren what when where which while who whom whose why will with won would wouldn you your yours yourself
yourselves""",
    "german": """
aber alle als am an auch auf aus bei bin bis bist da damit dann das dass dein deine deinem deinen deiner dem den denn
der des dich die dies diese diesem diesen dieser dieses dir doch dort du durch ein eine einem einen einer eines er es euch
euer für gegen habe haben habt hast hat hatte hatten hattest hier hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im
in ins ist ja jede jeder jedes jetzt kann kannst können könnte man mein meine meinem meinen meiner mich mir mit muss nach
nicht nichts noch nun nur ob oder ohne sehr sein seine seinem seinen seiner seit sich sie sind so soll sondern über um und
uns unser unsere unter vom von vor war waren warst was wann warum weil welche welchem welchen welcher welches wem wen wenn
wer werde werden wie wieder will wir wird wirst wo wollen würde würden zu zum zur zwischen""",
    "french": """
à ai as au aux avais avait avec avez avions avoir avons ce ces cet cette ceux ci comme comment d dans de depuis des du elle
elles en entre es est et étaient étais était êtes être été eu eux fait il ils j je l la là le les leur leurs lui m ma mais me
même mes moi mon n ne nos notre nous on ont ou où par pas pendant pour pourquoi qu quand que quel quelle quelles quels qui
quoi s sa sans se ses si son sont suis sur ta te tes toi ton tous tout toute toutes tu un une vos votre vous y""",
    "spanish": """
a al algo ante antes aquí así aunque cada como cómo con contra cual cuál cuales cuando cuándo de del desde donde dónde
durante e el él ella ellas ellos en entre era eran eres es esa esas ese eso esos esta está estaba están estas este esto
estos estoy fue fueron ha han has hasta hay he la las le les lo los más me mi mí mis mucho muy nada ni no nos nosotros
nuestra nuestro o otra otro para pero poco por porque que qué quien quién se sea ser si sí sido sin sobre son soy su sus
también tan te tenía tengo ti tiene tienes todo todos tu tú tus un una unas uno unos y ya yo""",
    "italian": """
a abbiamo agli ai al alla alle allo anche avere avete aveva c che chi ci come con cosa cui da dagli dai dal dalla dalle
degli dei del della delle dello di dove e è ed era erano essere fa fra gli ha hai hanno ho i il in io l la le lei li lo
loro lui ma me mi mia mie miei mio nei nel nella nelle no noi non nostra nostro o per perché più qual quale quali quando
quanto quella quelle quelli quello questa queste questi questo se sei si siamo sia siete sono sta su sua sue sui sul sulla
suo suoi tra tu tua tuo un una uno vi voi""",
    "portuguese": """
a ao aos aquela aquele as até com como da das de dela dele deles depois do dos e é ela elas ele eles em entre era eram
essa esse esta está estão este eu foi foram há isso isto já lhe mais mas me mesmo meu meus minha minhas muito na não nas
nem no nos nós nossa nosso num numa o onde os ou para pela pelo por porque qual quando que quem se sem ser seu seus só sua
suas são também te tem tenho teu ti tu tua um uma você vocês""",
    "dutch": """
aan al alles als altijd andere ben bij daar dan dat de der deze die dit doch doen door dus een en er ge geen had heb
hebben heeft hem het hier hij hoe hun iets ik in is ja je jij jou jouw kan kon maar me meer men met mij mijn moet na naar
niet niets nog nu of om omdat onder ons ook op over reeds te tegen toch toen tot u uit uw van veel voor want waren was wat
waar wanneer waarom werd wezen wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou""",
    "russian": """
а без более бы был была были было быть в вам вас весь во вот все всего всех вы где да даже для до его ее её если есть еще
ещё же за здесь и из или им их к как какая какие какой когда кто ли мне может мы на над надо наш не него нее нет ни них
но ну о об однако он она они оно от очень по под при с со так также такой там те тебе тебя тем то того тоже той только том
ты у уже хотя чего чей чем что чтобы чья эта эти это этот я мой моя моё мои меня твой твоя твоё""",
    "arabic": """
من في على إلى الى عن مع هذا هذه ذلك تلك التي الذي الذين هو هي هم هن أنا انا نحن أنت انت أنتم كان كانت يكون ما ماذا متى
أين اين كيف لماذا هل لا لم لن إن ان أن قد كل بعض أو او ثم بل حتى إذا اذا لكن و يا هناك هنا عند بعد قبل""",
}
STOP_WORDS = {language: frozenset(text.split()) for language, text in _STOP_WORD_LISTS.items()}
_LATIN = tuple(language for language in _STOP_WORD_LISTS if language not in ("russian", "arabic"))
_LANGUAGES_OF: dict[str, list[str]] = {}  # the languages of each stop word
for _language in _LATIN:
    for _word in STOP_WORDS[_language]:
        _LANGUAGES_OF.setdefault(_word, []).append(_language)
_CYRILLIC = re.compile("[\u0400-\u04ff]")
_ARABIC = re.compile("[\u0600-\u06ff]")
MAX_LANGUAGE_WORDS = 400  # words from which the language of a text is detected


def detect_language(words: Iterable[str]) -> str:
    """The language whose stop words are most frequent among words in lower case; English if none are."""
    counts = dict.fromkeys(_LATIN, 0)
    cyrillic = arabic = 0
    for word in islice(words, MAX_LANGUAGE_WORDS):
        if not word.isascii() and _CYRILLIC.search(word):
            cyrillic += 1
        elif not word.isascii() and _ARABIC.search(word):
            arabic += 1
        else:
            for language in _LANGUAGES_OF.get(word, ()):
                counts[language] += 1
    if cyrillic or arabic:
        return "russian" if cyrillic >= arabic else "arabic"
    return max(_LATIN, key=lambda language: counts[language])  # the first of equals: English


def stems(words: list[str], language: str) -> list[str]:
    """The stem of each word, so that all forms of a word are one term."""
    return list(_stemmer(language).stemWords(words))


@cache
def _stemmer(language: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(language)


WORD = re.compile(r"[^\W_]+", re.UNICODE)
CAMEL_CASE_BOUNDARY = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d])(?=\d)|(?<=\d)(?=[^\W\d])"
)
# Scripts that are written without spaces between words: Han, Kana, Thai, Lao, Khmer, Burmese.
UNSPACED = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f\u3040-\u30ff\u31f0-\u31ff"
    "\u0e00-\u0eff\u1780-\u17ff\u1000-\u109f]+"
)
MAX_TERM_LENGTH = (
    64  # characters; longer words are keys and hashes, which are searched for by their beginning
)


def terms(text: str) -> list[str]:
    """The words of a text in lower case. Identifiers are followed by their parts (parseURL2 -> parseurl2, parse, url, 2).

    Text in scripts without spaces is split into overlapping pairs of characters.
    """
    found = []
    for match in WORD.finditer(text):
        word = match.group()
        # Most words need none of the checks below.
        if word.isascii() and word.isalpha() and (len(word) == 1 or word[1:].islower()):
            found.append(word.lower()[:MAX_TERM_LENGTH])
            continue
        if UNSPACED.search(word):
            found.extend(_character_pairs(word))
            continue
        found.append(word.lower()[:MAX_TERM_LENGTH])
        parts = CAMEL_CASE_BOUNDARY.split(word)
        if len(parts) > 1:
            found.extend(part.lower()[:MAX_TERM_LENGTH] for part in parts)
    return found


def _character_pairs(word: str) -> list[str]:
    found, at = [], 0
    for match in UNSPACED.finditer(word):
        found.append(word[at : match.start()].lower())
        run = match.group()
        found.extend([run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)])
        at = match.end()
    found.append(word[at:].lower())
    return [part[:MAX_TERM_LENGTH] for part in found if part]


def query_terms(text: str, limit: int) -> dict[str, str]:
    """The stems to look up in the word index, each with the word it comes from; without stop words.

    Of a long text only the longest words are used, since long words tend to be rare.
    """
    words = list(dict.fromkeys(terms(text)))
    language = detect_language(words)
    stop_words = STOP_WORDS["english"] | STOP_WORDS[language]
    words = [word for word in words if word not in stop_words]
    if len(words) > limit:
        longest = set(sorted(words, key=len, reverse=True)[:limit])
        words = [word for word in words if word in longest]
    by_stem: dict[str, str] = {}
    for stem, word in zip(stems(words, language), words, strict=True):
        by_stem.setdefault(stem, word)
    return by_stem


def spoken_date(said: datetime) -> str:
    """A date as people write it, so that the terms of a query can match it."""
    return f"{said.day} {said:%B %Y}"


def index_terms(text: str, *, speaker: str = "", said: datetime | None = None) -> str:
    """The indexed terms of a chunk: the stems of its speaker's name, its date and its words."""
    date = spoken_date(said) if said else ""
    words = terms(text)
    return " ".join(stems([*terms(f"{speaker} {date}"), *words], detect_language(words)))
