"""A statement that says that something changed is paired with the statement that it corrects."""

import pytest

from halo_weave.core.corrections import find_corrections

OTHERS = ["My cat is called Mochi.", "We planted six tomatoes on the balcony.", "The train was late again."]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("The weekly meeting is on Wednesdays at 9:30.", "Actually the weekly meeting moved to Thursdays."),
        (
            "My neighbour Gerd lends me his tiller on Saturdays.",
            "Gerd says now Sundays are better for the tiller.",
        ),
        ("The stand-up of the team is at 9:15.", "The stand-up is at 10:30 from now on."),
        (
            "We will stay in the Hotel Miramonti.",
            "The Miramonti is full. We took the Pension Aurelia instead.",
        ),
        ("The rent of the flat is 430 euros.", "They raised the rent, it is 465 euros."),
        ("Unser Treffen ist am Mittwoch im Rathaus.", "Das Treffen ist jetzt am Freitag."),
        ("Mi tren a Lugo sale a las ocho.", "El tren a Lugo ahora sale a las nueve."),
    ],
)
def test_a_correction_is_found_among_other_statements(earlier, later):
    statements = [OTHERS[0], earlier, *OTHERS[1:], later]
    assert find_corrections(statements) == [(1, len(statements) - 1)]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("The weekly meeting is on Wednesdays at 9:30.", "The weekly meeting was long today."),
        ("My cat is called Mochi.", "I have a new job at the harbour now."),
        ("Thursdays are for the weekly meeting now.", "The weekly meeting is in room four."),
    ],
)
def test_another_statement_about_the_same_or_news_about_something_else_corrects_nothing(earlier, later):
    assert find_corrections([*OTHERS, earlier, later]) == []


def test_of_several_corrections_each_corrects_all_before_it():
    first, second, third = (
        "The rehearsal of the band is on Tuesdays.",
        "The rehearsal of the band is on Fridays now.",
        "Now the rehearsal of the band is on Sundays.",
    )
    assert find_corrections([first, second, third]) == [(0, 1), (0, 2), (1, 2)]
