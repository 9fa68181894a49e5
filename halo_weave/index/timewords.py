"""Names of months and words for times in other languages than English: tables for `times`."""

from __future__ import annotations

import re

_MONTHS = """
januar februar märz april mai juni juli august september oktober november dezember
janvier février mars avril mai juin juillet août septembre octobre novembre décembre
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
января февраля марта апреля мая июня июля августа сентября октября ноября декабря
январе феврале марте апреле мае июне июле августе сентябре октябре ноябре декабре
يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر
"""
MONTHS = {name: i % 12 + 1 for i, name in enumerate(_MONTHS.split())}

# What a phrase says, in the English words that `times` understands.
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
# Between words, except in scripts that are written without spaces.
RELATIVE = {
    english: re.compile(
        "|".join(one if re.match("[\u3000-\u9fff]", one) else rf"\b{one}\b" for one in words.split("|")), re.I
    )
    for english, words in PHRASES.items()
}

UNITS = {
    "day": "tage?n?|jours?|días?|дня|дней|день|日|天|أيام|يوم",
    "week": "wochen?|semaines?|semanas?|недели|недель|неделю|週間|周|个星期|أسابيع|أسبوع",
    "month": "monate?n?|mois|mes(?:es)?|месяца|месяцев|месяц|か月|ヶ月|个月|أشهر|شهر",
    "year": "jahre?n?|ans?|années?|años?|года|лет|год|年|سنوات|سنة",
}
AGO = {
    unit: re.compile(
        rf"\b(?:vor|il y a|hace|قبل)\s+(\w+)\s+(?:{words})\b|(?<!\w)(\d{{1,3}}|один|одну|два|две|три)\s+(?:{words})\s+назад"
        rf"|(\d{{1,3}})\s*(?:{words})前",
        re.I,
    )
    for unit, words in UNITS.items()
}
COUNTS = {
    **dict.fromkeys(("einem", "einer", "un", "une", "una", "один", "одну"), 1),
    **dict.fromkeys(("zwei", "deux", "dos", "два", "две"), 2),
    **dict.fromkeys(("drei", "trois", "tres", "три"), 3),
}
# 8. Mai 2023, 8 mai 2023, 8 de mayo de 2023, 8 мая 2023, 8 مايو 2023
NAMES = "|".join(sorted(MONTHS, key=len, reverse=True))
DAY_MONTH = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:\.|er|º)?\s+(?:de\s+)?({NAMES})\b(?:\s+(?:de\s+)?(\d{{4}}))?", re.I
)
MONTH_YEAR = re.compile(rf"\b({NAMES})\s+(?:de\s+)?(\d{{4}})\b", re.I)
MONTH_ALONE = re.compile(rf"\b(?:im|seit|en|au mois de|в|في)\s+({NAMES})\b", re.I)
# 2023年5月8日, 5月8日, 2023年5月
ASIAN = re.compile(r"(?:(\d{4})年)?(\d{1,2})月(?:(\d{1,2})日)?")
NUMERIC = re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b")  # 8.5.2023
