"""Analyse a query: rephrase it in the first person, and find the dates that it mentions."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta

from halo_weave.core.terms import detect_language, terms

_PRONOUN = re.compile(r"\b(?:he|she)\b", re.I)
_POSSESSIVE = re.compile(r"\b(?:his|her)\b", re.I)
_GENERIC_NAMES = {"", "i", "me", "you", "user", "ai", "assistant"}  # such a word in a query means no speaker


def rephrase_as_speaker(query: str, speakers: Iterable[str]) -> str:
    """Rephrase a query about a speaker as that speaker would say it, since passages are embedded in that form.

    `What did Ada paint for her son?` becomes `Ada: What did I paint for my son?`. If the query mentions several speakers,
    the first counts; without any, it is returned unchanged. In languages other than English, only the name is prefixed.
    """
    names = [name for name in speakers if name.strip().casefold() not in _GENERIC_NAMES]
    found = [(match.start(), name) for name in names if (match := _whole_word(name).search(query))]
    if not found:
        return query
    name = min(found)[1]
    query = _whole_word(name, "['\u2019]s").sub("my", query)
    return f"{name}: {_POSSESSIVE.sub('my', _PRONOUN.sub('I', _whole_word(name).sub('I', query)))}"


def _whole_word(name: str, ending: str = "") -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}{ending}(?!\w)", re.I)


_MONTHS = """
januar februar märz april mai juni juli august september oktober november dezember
janvier février mars avril mai juin juillet août septembre octobre novembre décembre
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
января февраля марта апреля мая июня июля августа сентября октября ноября декабря
январе феврале марте апреле мае июне июле августе сентябре октябре ноябре декабре
يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر
"""
MONTHS_BY_NAME = {name: i % 12 + 1 for i, name in enumerate(_MONTHS.split())}

# Relative times in other languages, by the English phrase that `_relative` understands.
PHRASES = {
    "today": "heute|aujourd['’]hui|hoy|сегодня|今日|今天|اليوم",
    "yesterday": "gestern|hier|ayer|вчера|昨日|昨天|أمس",
    "this week": "diese woche|cette semaine|esta semana|на этой неделе|今週|这周|本周|هذا الأسبوع",
    "last week": "letzte woche|letzter woche|vorige woche|la semaine dernière|la semana pasada|на прошлой неделе|先週|上周|上星期|الأسبوع الماضي",
    "last weekend": "letztes wochenende|le week-end dernier|el fin de semana pasado|в прошлые выходные|先週末|上周末",
    "this month": "diesen monat|ce mois-ci|este mes|в этом месяце|今月|这个月|هذا الشهر",
    "last month": "letzten monat|vorigen monat|le mois dernier|el mes pasado|в прошлом месяце|先月|上个月|الشهر الماضي",
    "this year": "dieses jahr|cette année|este año|в этом году|今年|هذا العام",
    "last year": "letztes jahr|l['’]année dernière|el año pasado|в прошлом году|昨年|去年|العام الماضي|السنة الماضية",
}
# As whole words, except in scripts that are written without spaces.
RELATIVE_NON_ENGLISH = {
    english: re.compile(
        "|".join(
            phrase if re.match("[\u3000-\u9fff]", phrase) else rf"\b{phrase}\b"
            for phrase in phrases.split("|")
        ),
        re.I,
    )
    for english, phrases in PHRASES.items()
}

UNITS = {
    "day": "tage?n?|jours?|días?|дня|дней|день|日|天|أيام|يوم",
    "week": "wochen?|semaines?|semanas?|недели|недель|неделю|週間|周|个星期|أسابيع|أسبوع",
    "month": "monate?n?|mois|mes(?:es)?|месяца|месяцев|месяц|か月|ヶ月|个月|أشهر|شهر",
    "year": "jahre?n?|ans?|années?|años?|года|лет|год|年|سنوات|سنة",
}
AGO_NON_ENGLISH = {
    unit: re.compile(
        rf"\b(?:vor|il y a|hace|قبل)\s+(\w+)\s+(?:{words})\b|(?<!\w)(\d{{1,3}}|один|одну|два|две|три)\s+(?:{words})\s+назад"
        rf"|(\d{{1,3}})\s*(?:{words})前",
        re.I,
    )
    for unit, words in UNITS.items()
}
COUNTS_NON_ENGLISH = {
    **dict.fromkeys(("einem", "einer", "un", "une", "una", "один", "одну"), 1),
    **dict.fromkeys(("zwei", "deux", "dos", "два", "две"), 2),
    **dict.fromkeys(("drei", "trois", "tres", "три"), 3),
}
# 8. Mai 2023, 8 mai 2023, 8 de mayo de 2023, 8 мая 2023, 8 مايو 2023
MONTH_NAMES = "|".join(sorted(MONTHS_BY_NAME, key=len, reverse=True))
DAY_MONTH_NON_ENGLISH = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:\.|er|º)?\s+(?:de\s+)?({MONTH_NAMES})\b(?:\s+(?:de\s+)?(\d{{4}}))?", re.I
)
MONTH_YEAR_NON_ENGLISH = re.compile(rf"\b({MONTH_NAMES})\s+(?:de\s+)?(\d{{4}})\b", re.I)
MONTH_ALONE_NON_ENGLISH = re.compile(rf"\b(?:im|seit|en|au mois de|в|في)\s+({MONTH_NAMES})\b", re.I)
# 2023年5月8日, 5月8日, 2023年5月
ASIAN = re.compile(r"(?:(\d{4})年)?(\d{1,2})月(?:(\d{1,2})日)?")
NUMERIC = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b")  # 8.5.2023


DateSpan = tuple[date, date]  # first and last day

MONTHS = {
    name.lower(): i
    for names in (calendar.month_name, calendar.month_abbr)
    for i, name in enumerate(names)
    if name
}
DAYS = {name.lower(): i for i, name in enumerate(calendar.day_name)}
MONTH = "|".join(MONTHS)
DAY_MONTH = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?({MONTH})\b\.?,?\s*(\d{{4}})?", re.I)
MONTH_DAY = re.compile(rf"\b({MONTH})\b\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?!\d)(?:,?\s*(\d{{4}}))?", re.I)
MONTH_YEAR = re.compile(rf"\b({MONTH})\b\.?,?\s+(?:of\s+)?(\d{{4}})\b", re.I)
MONTH_ALONE = re.compile(rf"\b(?:in|during|since|last|this|early|late|mid|of)[\s-]+({MONTH})\b", re.I)
YEAR = re.compile(r"\b(?:in|during|of|since|year)\s+((?:19|20)\d{2})\b", re.I)
ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
AGO = re.compile(r"\b(a|an|one|two|three|four|five|six|\d{1,3})\s+(day|week|month|year)s?\s+ago\b", re.I)
RELATIVE = re.compile(r"\b(today|yesterday|(?:last|this|past)\s+(?:night|week|weekend|month|year))\b", re.I)
WEEKDAY = re.compile(rf"\b(?:last|on|this)\s+({'|'.join(DAYS)})\b", re.I)
HIER = re.compile(r"\bhier\b", re.I)
COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}


def mentioned_dates(text: str, now: datetime) -> list[DateSpan]:
    """The dates that a text mentions, relative to `now`. A month without a year is the most recent one that has begun."""
    today, found = now.date(), list[DateSpan]()
    if detect_language(terms(text)) in ("german", "dutch"):
        text = HIER.sub(" ", text)  # "hier" is "here" in these languages, "yesterday" in French
    for english, pattern in RELATIVE_NON_ENGLISH.items():
        if pattern.search(text):
            found.append(_relative(english, today))
            text = pattern.sub(" ", text)
    for pattern, span_of in _DATE_PATTERNS:
        found += [span_of(match, today) for match in pattern.finditer(text)]
        text = pattern.sub(
            " ", text
        )  # remove the match, so that "in May 2023" does not also match as "in May"
    return [span for span in found if span[0] <= span[1]]


def _month_of(name: str) -> int:
    return MONTHS[name.lower()]


NEVER: DateSpan = (date.max, date.min)


def _one_day(year: int, month: int, day: int) -> DateSpan:
    try:
        return date(year, month, day), date(year, month, day)
    except ValueError:  # the 31st of February
        return NEVER


def _day_of(day: int, month: int, year: str | None, today: date) -> DateSpan:
    if year:
        return _one_day(int(year), month, day)
    span = _one_day(today.year, month, day)
    return _one_day(today.year - 1, month, day) if span != NEVER and span[0] > today else span


def _whole_month(year: int, month: int) -> DateSpan:
    if not 1 <= year <= 9999:
        return NEVER
    return date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1])


def _last_month(month: int, today: date) -> DateSpan:
    return _whole_month(today.year - (month > today.month), month)


def _ago(count: int, unit: str, today: date) -> DateSpan:
    """A span around the day so long ago. It is the longer the larger the unit, since people remember older dates less exactly."""
    days = {"day": 1, "week": 7, "month": 30, "year": 365}[unit]
    slack = {"day": 0, "week": 3, "month": 15, "year": 90}[unit]
    middle = today - timedelta(count * days)
    return middle - timedelta(slack), middle + timedelta(slack)


def _relative(words: str, today: date) -> DateSpan:
    monday = today - timedelta(today.weekday())
    first = today.replace(day=1)
    match words:
        case "today" | "this night":
            return today, today
        case "yesterday" | "last night" | "past night":
            return today - timedelta(1), today - timedelta(1)
        case "this week":
            return monday, today
        case "last week" | "past week":
            return monday - timedelta(7), monday - timedelta(1) if words == "last week" else today
        case "last weekend" | "past weekend":
            return monday - timedelta(2), monday - timedelta(1)
        case "this weekend":
            return monday + timedelta(5), monday + timedelta(6)
        case "this month":
            return first, today
        case "last month" | "past month":
            before = first - timedelta(1)
            return before.replace(day=1), before if words == "last month" else today
        case "this year":
            return today.replace(month=1, day=1), today
        case _:
            last = today.year - 1
            return date(last, 1, 1), date(last, 12, 31) if words == "last year" else today


def _weekday(name: str, today: date) -> DateSpan:
    day = today - timedelta((today.weekday() - DAYS[name.lower()]) % 7 or 7)
    return day, day


def _ago_non_english(match: re.Match[str], unit: str, today: date) -> DateSpan:
    said = next(group for group in match.groups() if group).lower()
    count = int(said) if said.isdecimal() else COUNTS_NON_ENGLISH.get(said, 0)
    return _ago(min(count, 999), unit, today) if count else NEVER


def _asian(year: str | None, month: int, day: str | None, today: date) -> DateSpan:
    if not 1 <= month <= 12:
        return NEVER
    if day:
        return _day_of(int(day), month, year, today)
    return _whole_month(int(year), month) if year else _last_month(month, today)


# The ways to mention a date, most exact first, and the days that each means.
_DATE_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], date], DateSpan]], ...] = (
    (ISO, lambda m, today: _one_day(int(m[1]), int(m[2]), int(m[3]))),
    (DAY_MONTH, lambda m, today: _day_of(int(m[1]), _month_of(m[2]), m[3], today)),
    (MONTH_YEAR, lambda m, today: _whole_month(int(m[2]), _month_of(m[1]))),
    (MONTH_DAY, lambda m, today: _day_of(int(m[2]), _month_of(m[1]), m[3], today)),
    (MONTH_ALONE, lambda m, today: _last_month(_month_of(m[1]), today)),
    (YEAR, lambda m, today: (date(int(m[1]), 1, 1), date(int(m[1]), 12, 31))),
    (AGO, lambda m, today: _ago(COUNTS.get(m[1].lower()) or int(m[1]), m[2].lower(), today)),
    (RELATIVE, lambda m, today: _relative(" ".join(m[1].lower().split()), today)),
    (WEEKDAY, lambda m, today: _weekday(m[1], today)),
    (NUMERIC, lambda m, today: _one_day(int(m[3]), int(m[2]), int(m[1]))),
    *(
        (pattern, lambda m, today, unit=unit: _ago_non_english(m, unit, today))
        for unit, pattern in AGO_NON_ENGLISH.items()
    ),
    (ASIAN, lambda m, today: _asian(m[1], int(m[2]), m[3], today)),
    (DAY_MONTH_NON_ENGLISH, lambda m, today: _day_of(int(m[1]), MONTHS_BY_NAME[m[2].lower()], m[3], today)),
    (MONTH_YEAR_NON_ENGLISH, lambda m, today: _whole_month(int(m[2]), MONTHS_BY_NAME[m[1].lower()])),
    (MONTH_ALONE_NON_ENGLISH, lambda m, today: _last_month(MONTHS_BY_NAME[m[1].lower()], today)),
)
