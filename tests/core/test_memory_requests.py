"""What the user wants of the memory is recognised in their own words."""

import pytest

from halo_weave.core.memory_requests import memory_request


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("Please remember that the code of the store room is 4321.", "The code of the store room is 4321."),
        ("please remember: my bike lock code is 7-7-1", "My bike lock code is 7-7-1"),
        ("Hey, can you remember that my mum's birthday is on May 3rd?", "My mum's birthday is on May 3rd"),
        ("Don't forget that Tom is allergic to peanuts!", "Tom is allergic to peanuts!"),
        ("dont forget to water the ferns on friday", "To water the ferns on friday"),
        ("Note that the rent goes up to 920 in January.", "The rent goes up to 920 in January."),
        ("Could you keep in mind that I don't eat pork?", "I don't eat pork"),
        ("Make a note: dentist on Tuesday at 9.30", "Dentist on Tuesday at 9.30"),
        ("My wifi password is heron-4471. Please remember that.", "My wifi password is heron-4471."),
        ("Ok thanks. Remember for later: the key is under the blue pot.", "The key is under the blue pot."),
        ("Remember my locker number, it's 58.", "My locker number, it's 58."),
        ("Save this to your memory: the car is a Volvo 240", "The car is a Volvo 240"),
        ("Merk dir bitte, dass mein Fahrrad bei Jonas steht.", "Mein Fahrrad bei Jonas steht."),
        ("Kannst du dir merken, dass ich am 4. Mai Geburtstag habe?", "Ich am 4. Mai Geburtstag habe"),
        ("Vergiss nicht, dass Lena keine Milch verträgt.", "Lena keine Milch verträgt."),
        ("Recuerda que mi vuelo sale a las 7:40.", "Mi vuelo sale a las 7:40."),
        ("Por favor, no olvides que mi hija se llama Inés.", "Mi hija se llama Inés."),
        ("Retiens que le code du portail est 1907.", "Le code du portail est 1907."),
        ("N'oublie pas que je suis allergique aux noix.", "Je suis allergique aux noix."),
        ("Ricordati che il treno parte alle nove.", "Il treno parte alle nove."),
        ("Onthoud dat mijn zus in Gent woont.", "Mijn zus in Gent woont."),
        ("Запомни, что мой кот боится грома.", "Мой кот боится грома."),
        ("记住我的门牌号是12", "我的门牌号是12"),
    ],
)
def test_a_wish_to_remember_is_recognised_with_what_is_to_be_kept(message, kept):
    found = memory_request(message)
    assert found is not None
    assert (found.kind, found.text) == ("remember", kept)


@pytest.mark.parametrize(
    ("message", "about"),
    [
        ("Forget that my code is 4321.", "my code is 4321"),
        ("please forget about the surprise party", "the surprise party"),
        ("Vergiss, dass ich umziehe.", "ich umziehe"),
        ("Olvida que te dije mi clave.", "te dije mi clave"),
    ],
)
def test_a_wish_to_forget_is_recognised(message, about):
    found = memory_request(message)
    assert found is not None
    assert (found.kind, found.text) == ("forget", about)


@pytest.mark.parametrize(
    "message",
    [
        "What do you remember about my sister?",
        "what do you know about the cabin",
        "What have you saved?",
        "Was weißt du über meine Katze?",
        "¿Qué recuerdas de mi viaje?",
        "Show me your notes.",
    ],
)
def test_a_question_about_the_memory_is_recognised(message):
    found = memory_request(message)
    assert found is not None
    assert found.kind == "ask"


@pytest.mark.parametrize(
    "message",
    [
        "Do you remember my sister's name?",
        "Remember when we talked about Rome?",
        "I remember that summer well.",
        "I always forget where I put my keys.",
        "Forget it.",
        "What is a memory leak?",
        "How do I save a file in vim?",
        "The note says hello.",
        "Can you remember my birthday?",
        "```\n# remember that this is slow\n```\nWhy is this slow?",
        "Tell me a story about a fox.",
        "Vergiss es.",
        "I can't remember the name of that film.",
        "",
    ],
)
def test_other_messages_hold_no_request(message):
    assert memory_request(message) is None
