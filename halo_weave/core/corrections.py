"""Find statements that correct earlier ones: "The stand-up is at 10:30 now" after "The stand-up is at 9:15"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from halo_weave.core.terms import query_terms

_CHANGED = re.compile(
    r"""\b(?:now|instead|updated?|correction|actually|chang(?:ed?|es)|moved|postponed|rescheduled|replaced|renamed|no\s+longer|from\s+\S+\s+on
    | (?:not|isn['’]t|aren['’]t|wasn['’]t)\b.{0,40}\b(?:any\s?more|any\s+longer|before|but) | rather\s+than | switched | wrong | mistake | i\s+meant | new | another | raised | lowered | turns\s+out)\b
    | \b(?:jetzt|nun|stattdessen|doch|geändert|verschoben|korrektur|nicht\s+mehr|ab\s+sofort|neue[rsn]?|falsch|statt)\b
    | \b(?:maintenant|désormais|finalement|au\s+lieu|chang(?:é|e)|déplacé|ne\b.{0,30}\bplus|nouve(?:au|lle)|plutôt)\b
    | \b(?:ahora|en\s+(?:vez|lugar)\s+de|cambi(?:ó|ado)|en\s+realidad|ya\s+no|nuev[oa]|corrección)\b
    | \b(?:adesso|ora|invece|cambiat[oa]|spostat[oa]|non\b.{0,30}\bpiù|nuov[oa])\b | \b(?:agora|em\s+vez|mudou|na\s+verdade|nov[oa])\b
    | \b(?:nu|voortaan|in\s+plaats\s+van|veranderd|verplaatst|niet\s+meer|nieuwe?)\b
    | \b(?:теперь|вместо|изменил\w*|перенес\w*|больше\s+не|на\s+самом\s+деле|нов(?:ый|ая|ое))\b | الآن | بدلا | 现在 | 改 | 今は | 変更""",
    re.IGNORECASE | re.VERBOSE,
)
MIN_SHARED = 2  # terms that a correction shares with the earlier statement
MIN_SHARE = 0.3  # the same as a share of the earlier statement's terms
RARE = 2  # one shared term suffices if at most so many of the statements contain it
MAX_TERMS = 64


def find_corrections(statements: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs (earlier, later) of statements in the order in which they were said, of which the later corrects the earlier.

    A correction says that something changed, and is about the same: it repeats two terms and a third of those of the earlier
    statement, or one that hardly any other statement contains.
    """
    terms = [query_terms(text, MAX_TERMS).keys() for text in statements]
    frequency = Counter(term for some in terms for term in some)
    changes = [later for later, text in enumerate(statements) if _CHANGED.search(text)]
    return [
        (earlier, later)
        for later in changes
        for earlier in range(later)
        if len(shared := terms[earlier] & terms[later]) >= max(MIN_SHARED, MIN_SHARE * len(terms[earlier]))
        or any(frequency[term] <= RARE for term in shared)
    ]
