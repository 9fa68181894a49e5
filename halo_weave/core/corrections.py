"""Whether a statement corrects an earlier one: "The stand-up is at 10:30 now" after "The stand-up is at 9:15"."""

from __future__ import annotations

import re

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
MIN_SHARED = 2  # stems of the earlier statement that a correction repeats
MOST_TERMS = 64


def corrects(later: str, earlier: str) -> bool:
    """Whether the later statement says that something changed, and is about the same as the earlier one."""
    if not _CHANGED.search(later):
        return False
    shared = query_terms(later, MOST_TERMS).keys() & query_terms(earlier, MOST_TERMS).keys()
    return len(shared) >= MIN_SHARED
