"""Share of a text that states facts, as opposed to questions, thanks or "I don't know"; and what kind of message it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from halo_weave.core.terms import query_terms, stems

_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？؟])\s*|\n+")
_QUESTION_MARK = re.compile(r"[?？؟][\s\"'”’)*_]*$")
# Questions without a question mark. A statement may begin with the same words, so both a question word and a verb are needed.
_QUESTION = re.compile(
    r"""^\W*(?:(?:so|and|but|hey|hi|ok|okay|well|please|also)\W+)?(?:
      (?:who|whom|whose|what|when|where|which|why|how)\b[^.!]*?\b
        (?:is|are|was|were|do|does|did|have|has|had|can|could|will|would|should|am)\b
    | (?:do|does|did|is|are|was|were|can|could|would|will|have|has|had|should)\s+(?:i|you|we|they|he|she|it|my|your|the)\b
    | (?:tell|remind)\s+me\b.*\b(?:who|whom|whose|what|when|where|which|why|how|if|about)\b
    | (?:wer|was|wann|wo|wohin|woher|welche[rsnm]?|warum|wieso|wie)\s+(?:ist|sind|war|waren|habe|hat|hast|heißt|kann|wohnt|arbeite)\b
    | (?:qui|que|quand|où|pourquoi|comment|quel(?:le)?s?)\s+(?:est|sont|était|ai|a|as)\b
    | est-ce\s+que\b
    | (?:quién|qué|cuándo|dónde|cuál|cómo)\b
    | (?:кто|что|когда|где|куда|почему|зачем|какой|какая|какие)\s
    )[^.!]*$""",
    re.I | re.X,
)
# Requests to show or explain something state nothing. "Remind me to …" does, so it is not among them.
_REQUEST = re.compile(
    r"""^\W*(?:(?:so|and|but|hey|hi|ok|okay|well|please|now|then|also|can\s+you|could\s+you)\W+)*(?:
      (?:show|tell|read|find)\s+(?:me|us)\b
    | give\s+(?:me|us)\s+(?:the|all|every|an?\s+(?:list|overview|summary|example))\b
    | (?:list|name|show|repeat|describe|explain|compare|summari[sz]e)\s+(?:again\s+)?
        (?:all|every|the|my|our|what|when|where|which|who|why|how|everything)\b
    | (?:zeige?|sage?|nenne?|erzähle?|erkläre?)\s+(?:mir|uns)\b
    | (?:montre|dis|raconte|explique|rappelle|donne)-(?:moi|nous)\b
    | (?:muéstrame|dime|dame|cuéntame|explícame|recuérdame)\b
    | (?:покажи|скажи|расскажи|объясни|напомни)(?:те)?\s
    | أخبرني | أرني | اشرح
    ) | (?:教えて|見せて|説明して)(?:ください|下さい)?[。!！]?$ | ^\W*(?:请|請)?(?:告诉我|告訴我|给我看|給我看)""",
    re.I | re.X,
)
_UNKNOWING = re.compile(
    r"""\b(?:not\s+(?:really\s+)?sure|(?:do\s+not|don['’]?t|cannot|can['’]?t|can\s+not|didn['’]?t|couldn['’]?t)\s+
        (?:actually\s+|really\s+|seem\s+to\s+|quite\s+)*(?:know|remember|recall|find|have\s+(?:any|that|this|access|enough|the|a\s+record))
    | no\s+(?:idea|clue|memory\s+of|information|record)
    | (?:haven['’]?t|have\s+not|never)\s+(?:yet\s+)?(?:told|mentioned|shared)
    | (?:could|can|would)\s+you\s+(?:please\s+)?(?:tell|remind|clarify|repeat|provide)
    | (?:please\s+)?(?:tell|remind)\s+me\s+(?:more|again)
    | weiß\s+(?:ich\s+)?(?:es\s+|das\s+)?(?:leider\s+)?nicht | keine\s+ahnung | erinnere\s+mich\s+(?:leider\s+)?nicht
    | (?:ne\s+)?sais\s+pas | (?:ne\s+)?me\s+souviens\s+pas | aucune\s+idée
    | no\s+(?:lo\s+)?sé | no\s+(?:lo\s+)?recuerdo | ni\s+idea
    | не\s+(?:знаю|помню)
    )\b | わかりません | 分かりません | 覚えていません | 不知道 | 不记得 | 不清楚 | لا\s+أعرف | لا\s+أتذكر""",
    re.I | re.X,
)
# Sentences that are only thanks, greetings or offers to help. "Yes" and "no" are not among them: they may be answers.
_COURTESY = re.compile(
    r"""^\W*(?:(?:oh|ah|aha|ok|okay|well|great|perfect|cool|nice|wow|alright|yes|no|sure|and|so|hi|hey|hello)\b\W*)*(?:
      (?<!\w)(?:ok|okay|great|perfect|cool|nice|wow|alright|hi|hey|hello)
    | (?:many\s+)?thanks(?:\s+(?:a\s+lot|so\s+much|again))* | thank\s+you(?:\s+(?:so|very)\s+much)?
    | you(?:['’]re|\s+are)\s+(?:very\s+|most\s+)?welcome | no\s+problem | my\s+pleasure | got\s+it | i\s+see | (?:please\s+)?go\s+on | never\s+mind
    | good\s+(?:morning|afternoon|evening|night|bye) | goodbye | bye | see\s+you\s+(?:later|soon|then)
    | (?:if\s+(?:you\s+(?:have|need)|there(?:['’]s|\s+is)\s+)\s*(?:any|more|some)[^.!?]*?,?\s*)?(?:please\s+)?(?:feel\s+free\s+to\s+(?:ask|reach\s+out|let\s+me\s+know)|(?:just\s+)?let\s+me\s+know(?:\s+if\s+(?:you|there))?)\b[^.!?,]*
    | i(?:['’]m|\s+am|['’]d\s+be|\s+would\s+be)\s+(?:(?:always|just)\s+)?(?:here|happy|glad)\s+to\s+(?:help|assist|continue)\b[^.!?]*
    | (?:i(?:['’]m|\s+am)\s+)?sorry,?\s+(?:but\s+)?i\s+(?:can['’]?t|cannot|am\s+unable\s+to)\s+(?:assist|help)\b[^.!?]*
    | (?:vielen\s+|herzlichen\s+)?dank(?:e)?(?:\s+(?:schön|sehr|dir|ihnen))? | bitte(?:\s+(?:schön|sehr))? | gern(?:e)?(?:\s+geschehen)? | alles\s+klar | verstanden
    | hallo | guten\s+(?:morgen|tag|abend) | gute\s+nacht | tschüss
    | merci(?:\s+(?:beaucoup|bien))? | de\s+rien | d['’]accord | bonjour | bonsoir | au\s+revoir
    | (?:muchas\s+)?gracias | de\s+nada | vale | hola | buen[oa]s\s+(?:días|tardes|noches) | adiós
    | (?:большое\s+)?спасибо(?:\s+большое)? | пожалуйста | привет | ладно
    | ありがとう(?:ございます|ございました)? | どういたしまして | こんにちは | おはよう(?:ございます)? | 谢谢(?:你|您)? | 謝謝 | 不客气 | 你好 | شكرا | شكراً | عفوا | مرحبا
    )(?:,?\s+\w+)?\W*$""",
    re.I | re.X,
)
# A request to remember something states it: "Can you keep in mind that the code is 2468?"
_REMEMBER = re.compile(
    r"""\b(?:keep\s+in\s+mind|remember|note|memori[sz]e|write\s+down|save|forget)(?:\s+down)?\s+that\b
    | \b(?:notier\w*|merk\w*|erinner\w*|vergiss\w*|vergess\w*|behalt\w*)\b[^.!?]*\bdass\b
    | \b(?:not\w*|reten\w*|retien\w*|souven\w*|souvien\w*|oubli\w*|rappel\w*|enregistr\w*)\b[^.!?]*\bqu(?:e\b|['’])
    | \b(?:recuerd\w*|anot\w*|apunt\w*|olvid\w*|guard\w*)\b[^.!?]*\bque\b
    | \b(?:запомни\w*|запиши\w*|помни\w*)\b[^.!?]*\bчто\b""",
    re.I | re.X,
)
_MAX_REQUEST_WORDS = 20  # a longer question or request also states facts
_MAX_EMPTY_WORDS = 25  # a longer sentence may say "I don't know" about one thing and state another
_ABOUT_THE_PAST = re.compile(
    r"""\b(?:do|did|can|could|would)\s+you\s+(?:still\s+|even\s+|perhaps\s+)?(?:remember|recall)\b
    | \b(?:remind\s+me\s+(?:of|about|who|what|when|where|which|why|how)|(?:have|had|did)\s+i\s+(?:ever\s+)?(?:told|tell|mention(?:ed)?|say|said))\b
    | \b(?:what|when|where|who|which|why|how)\b.*\b(?:did|have|had)\s+(?:i|we)\b
    | \b(?:what|when|where|who|which|how\s+old|how\s+many)\b.*\b(?:is|are|was|were|do|does|am)\s+(?:my|our|i)\b
    | \b(?:erinnerst\s+du\s+dich|weißt\s+du\s+noch|habe\s+ich\s+dir)\b
    | \b(?:te\s+souviens|vous\s+souvenez|rappelle-moi)\b | \b(?:te\s+acuerdas|recuerdas|se\s+acuerda)\b
    | \b(?:помнишь|помните|напомни)\b | 覚えて | 记得 | 還記得 | هل\s+تتذكر""",
    re.I | re.X,
)


def informative_share(text: str) -> float:
    """The share of a text's words that state facts: 0 if it consists of questions and empty answers, 1 if it has none.

    A long request states facts, too: "I have 40 guests and a small oven, can you plan the menu?".
    """
    stating = total = 0
    for sentence, size in _sentences(text):
        total += size
        asks = size <= _MAX_REQUEST_WORDS and _asks(sentence) and not _REMEMBER.search(sentence)
        empty = size <= _MAX_EMPTY_WORDS and (_UNKNOWING.search(sentence) or _COURTESY.search(sentence))
        stating += 0 if asks or empty else size
    return stating / total if total else 1.0


def question_share(text: str) -> float:
    """The share of a text's words that are in questions and requests."""
    sentences = list(_sentences(text))
    total = sum(size for _, size in sentences)
    return sum(size for sentence, size in sentences if _asks(sentence)) / total if total else 0.0


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """The sentences of a text with their sizes in words; for scripts without spaces, sizes are estimated."""
    for sentence in _SENTENCE.split(text):
        if sentence.strip():
            yield sentence, max(len(sentence.split()), len(sentence) // 12)


def _asks(sentence: str) -> bool:
    """Whether a sentence is a question or a request."""
    return bool(_QUESTION_MARK.search(sentence) or _QUESTION.search(sentence) or _REQUEST.search(sentence))


# "How do I …?" and "Can you write me …?" are asked by everybody; they say nothing about their author.
_IMPERSONAL = re.compile(
    r"""\bhow\s+(?:do|can|could|should|would)\s+(?:i|we)\b | \b(?:write|give|tell|show|make|send|explain|suggest|recommend|teach|help)\s+(?:me|us)\b
    | \bwie\s+(?:kann|soll|mache|muss)\s+(?:ich|man)\b | \b(?:gib|schreib\w*|zeig\w*|erklär\w*|nenn\w*|sag\w*|hilf)\s+(?:mir|uns)\b
    | \b(?:écris|donne|explique|dis|montre|aide)-(?:moi|nous)\b | \bcomment\s+(?:puis-je|je\s+peux)\b
    | \b(?:escríbe|da|di|explíca|muéstra)me\b | \bcómo\s+puedo\b | \bкак\s+мне\b | \b(?:напиши|дай|скажи|объясни|покажи)\s+мне\b""",
    re.I | re.X,
)
_FIRST_PERSON = re.compile(
    r"""\b(?:my|mine|our|ours|me|us|we)\b
    | \b(?:did|have|had|do|am|was|should|must|can|will|would)\s+i\b | \bi(?:['’](?:ve|m|d)|\s+(?:have|had|was|am|told|said|mentioned))\b
    | \b(?:mein\w*|unser\w*|mir|mich|uns|wir)\b | \b(?:habe|hatte|bin|war|soll|muss|kann)\s+ich\b
    | \b(?:mon|ma|mes|notre|nos|nous)\b | \bj['’]ai\b | \b(?:mi|mis|nuestr[oa]s?|nos)\b
    | \b(?:мо[йяёи]|мо(?:его|ему|ей|ю|их|им)|мне|меня|нас|нам|наш\w*)\b | 私|僕|俺|我们?|咱""",
    re.I | re.X,
)
# What anybody could ask, and an encyclopedia or a good writer could answer.
_GENERAL = re.compile(
    r"""^\W*(?:(?:so|and|but|hey|hi|ok|okay|well|please|also|now|then)\W+)*(?:
      how\s+(?:do|can|could|should|would|to|often|long)\b(?!.*\b(?:my|our|did)\b)
    | what(?:['’]s|\s+is|\s+are|\s+does|\s+do)\s+(?:an?\b|the\s+(?:difference|capital|meaning|best|worst|point|purpose|word|formula|plural|opposite)\b|\S+\s+(?:mean|stand\s+for)\b)
    | who\s+(?:invented|wrote|discovered|painted|composed|built)\b(?!.*\b(?:my|our)\b)
    | why\s+(?:is|are|do|does|did|can)\b(?!.*\b(?:my|our|i|we)\b)
    | (?:can|do|does|are|is|could)\s+(?!(?:i|you|we|they|he|she|it|my|our|his|her|their|your|the|this|that|these|those|there)\b)(?-i:[a-z]\w*(?:\s+[^A-Z\s]\S*)*)\?
    | (?:(?:can|could|would)\s+you\s+(?:please\s+)?)?(?:write|translate|explain|summari[sz]e|give\s+(?:me|us)|tell\s+me\s+an?|make\s+(?:me|us)|suggest|list|describe|define|convert|calculate|recommend)\b(?!.*\b(?:my|our|i|we)\b)
    | any\s+(?:tips|ideas?|advice|suggestions?|recommendations?)\b(?!.*\b(?:my|our)\b)
    | wie\s+(?:kann|soll|macht|funktioniert|geht)\b(?!.*\b(?:mein|unser)) | was\s+(?:ist|sind|heißt|bedeutet)\s+(?:eine?\b|der\s+unterschied)
    | (?:schreib|übersetze?|erkläre?|gib|nenne?)\b(?!.*\b(?:mein|unser))
    | comment\s+(?:faire|on|puis-je)\b | qu['’]est-ce\s+qu['’](?:un|une|on)\b | (?:écris|traduis|explique|donne)\b
    | cómo\s+(?:se|puedo|hago)\b | qué\s+(?:es|son)\s+(?:una?|la\s+diferencia)\b | (?:escribe|traduce|explica|dame)\b
    | как\s+(?:сделать|можно|мне)\b | что\s+такое\b | (?:напиши|переведи|объясни)\b
    )""",
    re.I | re.X,
)


def is_first_person(text: str) -> bool:
    """Whether a message is about its author or both parties: "my sister", "did I", "we"."""
    return bool(_FIRST_PERSON.search(_IMPERSONAL.sub(" ", text)))


def is_general_request(text: str) -> bool:
    """Whether a message asks for something that anybody could ask: "How do I boil an egg?", "Write a haiku"."""
    sentences = [sentence for sentence, _ in _sentences(text)]
    asking = [sentence for sentence in sentences if _asks(sentence) or _GENERAL.search(sentence)]
    return bool(asking) and all(_GENERAL.search(sentence.strip()) for sentence in asking)


_OWN_FACT = re.compile(
    r"""\b(?:what|when|where|who|whose|which|how\s+(?:old|many|much|long|tall|far|often))\b.*\b(?:my|our|mine|ours)\b
    | \b(?:did|have|had|was|were|am|are)\s+(?:i|we)\b
    | \b(?:wer|was|wann|wo|welche\w*|wie\s+(?:alt|viele?|lange|heißt))\b.*\b(?:mein\w*|unser\w*)\b | \b(?:habe|hatte|bin|war)\s+ich\b
    | \b(?:qui|quand|où|quel\w*|combien|comment\s+s['’]appelle)\b.*\b(?:mon|ma|mes|notre|nos)\b | \b(?:ai-je|étais-je|suis-je)\b
    | \b(?:quién|cuándo|dónde|cuál\w*|cuánt\w*|cómo\s+se\s+llama)\b.*\b(?:mi|mis|nuestr[oa]s?)\b
    | \b(?:кто|когда|где|како\w*|сколько|как\s+зовут)\b.*\b(?:мо[йяёи]|моего|моей|наш\w*)\b""",
    re.I | re.X,
)
_ADVICE = re.compile(
    r"""\b(?:should|shall|could|would|might|can|think|suggest|recommend|advice|idea|best|if\s+i) | \b(?:soll\w*|könnte\w*|kann|würde\w*|meinst)\b
    | \b(?:devrais|pourrais|puis|penses)\b | \b(?:debería|podría|puedo|crees)\b | \b(?:стоит|могу|думаешь)\b""",
    re.I | re.X,
)


def asks_for_own_fact(text: str) -> bool:
    """Whether a message asks for a fact that only its author can know: "How old is my wife?", "Where did I park?"."""
    return any(
        _asks(sentence) and _OWN_FACT.search(sentence) and not _ADVICE.search(sentence)
        for sentence, _ in _sentences(text)
    )


_TIME = re.compile(
    r"""\b(?:today|tonight|tomorrow|yesterday|the\s+date|what\s+(?:day|date|year|month)|which\s+(?:day|date|year|month)|days?\s+left|ago
    | (?:this|next|last)\s+(?:week|month|year|weekend|\w+day) | how\s+(?:many|much\s+longer|long)\b.*\b(?:until|till|since|left) | how\s+old)\b
    | \b(?:heute|morgen|gestern|welche[rsnm]?\s+(?:tag|datum|jahr)|(?:diese|nächste|letzte)[rsnm]?\s+(?:woche|monat|jahr|wochenende)|wie\s+(?:lange|viele\s+tage)\b.*\bbis|wie\s+alt)\b
    | \b(?:aujourd['’]hui|demain|hier|quel\s+jour|quelle\s+date|(?:semaine|mois|année)\s+(?:prochaine?|dernière?)|quel\s+âge)\b
    | \b(?:hoy|mañana|ayer|qué\s+(?:día|fecha)|(?:próxim|pasad)[oa]|cuántos\s+(?:días|años))\b
    | \b(?:oggi|domani|ieri|che\s+(?:giorno|data)|quanti\s+anni)\b | \b(?:hoje|amanhã|ontem|que\s+(?:dia|data))\b | \b(?:vandaag|morgen|gisteren|welke\s+(?:dag|datum))\b
    | \b(?:сегодня|завтра|вчера|како(?:й|е)\s+(?:день|число)|сколько\s+(?:дней|лет))\b | 今天|明天|昨天|几号|今日|明日|昨日|何日|اليوم|غدا|أمس""",
    re.I | re.X,
)


def asks_about_time(text: str) -> bool:
    """Whether a message asks something that cannot be answered without today's date."""
    return any(_asks(sentence) and _TIME.search(sentence) for sentence, _ in _sentences(text))


def asks_about_the_past(text: str) -> bool:
    """Whether a message asks for something that was said or happened before."""
    return bool(_ABOUT_THE_PAST.search(text))


_REFUSAL = re.compile(
    r"""\bas\s+an?\s+(?:ai|artificial|large\s+language|language\s+model|assistant)\b
    | \bi(?:['’]m|\s+am)\s+(?:just\s+|only\s+)?an?\s+(?:ai|artificial|(?:large\s+)?language\s+model|virtual\s+assistant)\b
    | \b(?:sorry|apologi[sz]e|unfortunately)\b[^.!?]{0,60}\b(?:can['’]?t|cannot|can\s+not|unable|not\s+able|do(?:n['’]?t|\s+not)\s+have)\b
    | \bi\s+(?:can['’]?t|cannot|can\s+not|am\s+(?:unable|not\s+able)\s+to)\s+(?:\w+ly\s+)?(?:assist|help|provide|access|store|save|remember|recall|fulfill|comply)\b
    | \bi\s+do(?:n['’]?t|\s+not)\s+have\s+(?:\w+\s+)?(?:access|the\s+(?:ability|capability)|personal|memory|feelings)\b
    | \bals\s+(?:eine\s+)?ki\b | \bes\s+tut\s+mir\s+leid\b[^.!?]{0,40}\b(?:kann|nicht)\b | \bich\s+kann\s+(?:dir|ihnen|das)?\s*(?:leider\s+)?nicht\s+(?:helfen|weiterhelfen)\b
    | \ben\s+tant\s+qu['’]?(?:ia|intelligence|assistant)\b | \bdésolée?\b[^.!?]{0,40}\bne\s+peux\s+pas\b
    | \bcomo\s+(?:una?\s+|uma\s+)?(?:ia|inteligencia|inteligência|modelo\s+de)\b | \blo\s+siento\b[^.!?]{0,40}\bno\s+puedo\b | \bdesculpe\b[^.!?]{0,40}\bnão\s+posso\b
    | \bcome\s+(?:ia|intelligenza)\b | \bmi\s+dispiace\b[^.!?]{0,40}\bnon\s+posso\b | \bals\s+ai\b | \bhet\s+spijt\s+me\b[^.!?]{0,40}\b(?:kan|niet)\b
    | \b(?:извините|к\s+сожалению)\b[^.!?]{0,40}\bне\s+могу\b | 抱歉[^。]{0,20}(?:无法|不能) | 申し訳[^。]{0,40}(?:できません|ません) | (?:عذرا|آسف)[^.]{0,40}لا\s+(?:أستطيع|يمكنني)""",
    re.I | re.X,
)
# Words of answers that only show that the user was heard. An answer of nothing else states nothing new.
_ACKNOWLEDGEMENT = frozenset(
    stems(
        """sorry hear great glad happy nice lovely wonderful congratulations congrats sound thank thanks share sharing hope
        understood understand noted note got okay ok sure alright know remember keep mind good awesome exciting interesting fun
        welcome help assist need let ask question anything else feel free like want please tell told mention say said cool
        amazing fantastic perfect excellent user yes right indeed well enjoy time soon day luck best wish""".split(),
        "english",
    )
)
_MAX_ECHO_WORDS = 40  # a longer answer is no echo
_MAX_NEW_WORDS = 2  # an echo of a statement has at most so many words that the user did not say


def is_refusal(answer: str) -> bool:
    """Whether an answer refuses, or says that it is an AI instead of answering."""
    return bool(_REFUSAL.search(answer[:400]))


def is_echo(answer: str, question: str) -> bool:
    """Whether an answer only repeats the message that it answers, or only shows that the user was heard."""
    if len(answer.split()) > _MAX_ECHO_WORDS:
        return False
    known = query_terms(question, 400).keys() | _ACKNOWLEDGEMENT
    allowed = 0 if informative_share(question) == 0 else _MAX_NEW_WORDS  # one word may answer a question
    return sum(stem not in known for stem in query_terms(answer, 400)) <= allowed


def worth_recalling(answer: str, question: str) -> bool:
    """Whether an answer of the assistant may be resurrected later: a model imitates and believes what is in its context.

    Refusals, "I don't know", echoes and courtesies may not. Nor may an answer to a question about what the user said before:
    at best it repeats that, and the original can be resurrected.
    """
    return not (
        is_refusal(answer)
        or informative_share(answer) == 0
        or is_echo(answer, question)
        or asks_about_the_past(question)
    )
