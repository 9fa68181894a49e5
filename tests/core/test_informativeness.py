"""Questions and answers that know nothing are told apart from what tells something."""

import pytest

from halo_weave.core.informativeness import (
    asks_about_the_past,
    asks_about_time,
    asks_for_own_fact,
    informative_share,
    is_first_person,
    is_general_request,
    question_share,
    worth_recalling,
)


@pytest.mark.parametrize(
    "text",
    [
        "Do you remember where I work?",
        "where do i work",
        "hey what is the name of my sister",
        "I'm not sure.",
        "I don't know. Could you tell me?",
        "Sorry, I don't have any information about that.",
        "tell me where I parked the car",
        "Show me the log line of E4033 and tell me what had caused it.",
        "Please list all my appointments.",
        "Now explain the second error.",
        "Give me a list of her pets.",
        "Zeig mir die Rechnung vom Mai.",
        "Rappelle-moi le nom du chien.",
        "Dime dónde vive Ana.",
        "Покажи мне счёт.",
        "アンナの住所を教えてください。",
        "请告诉我安娜住在哪里",
        "أخبرني أين تسكن آنا",
        "thanks!",
        "Ok, thank you so much, Lena!",
        "You're welcome! If you have any other questions, feel free to ask.",
        "Sure, I'd be happy to continue.",
        "I'm sorry, but I can't assist with that.",
        "Great! Let me know if you need anything else.",
        "Good morning.",
        "ok",
        "Vielen Dank!",
        "Bitte schön!",
        "Merci beaucoup !",
        "¡Muchas gracias!",
        "Большое спасибо!",
        "ありがとうございます。",
        "谢谢你！",
        "شكرا",
        "Wo wohnt Anna?",
        "Das weiß ich leider nicht.",
        "Où habite Anna ?",
        "Je ne sais pas.",
        "¿Dónde vive Ana?",
        "No lo sé.",
        "Где живёт Анна?",
        "Я не помню.",
        "アンナはどこに住んでいますか？",
        "わかりません。",
        "安娜住在哪里？",
        "我不知道。",
        "أين تسكن آنا؟",
    ],
)
def test_questions_and_empty_answers_tell_nothing(text):
    assert informative_share(text) == 0


@pytest.mark.parametrize(
    "text",
    [
        "I work at the harbour.",
        "yes",
        "No.",
        "Thanks to Mia we won the cup.",
        "Good Morning is the name of our boat.",
        "You're welcome at our house in Bremen on Friday.",
        "Hello Kitty is her favourite.",
        "Alright, see you tomorrow!",
        "Great Yarmouth is where I grew up.",
        "Danke für die Blumen aus dem Garten.",
        "Let me know when the ship arrives, I pick up my aunt.",
        "When I was young we lived in Rome.",
        "What a day!",
        "Remind me to call Anna on Friday.",
        "List: milk, eggs, bread",
        "Name: Anna Keller",
        "Give me two days, the report is due on Friday.",
        "Show jumping is what my sister does on Sundays.",
        "Explain plans are in the appendix.",
        "My sister is Anna",
        "def f(x):\n    return x",
        "Ich arbeite am Hafen.",
        "安娜住在柏林。",
        "",
    ],
)
def test_statements_tell_all_they_say(text):
    assert informative_share(text) == 1


def test_a_statement_with_a_question_tells_in_part():
    assert 0.4 < informative_share("We moved to Bergen last spring. How is your new flat?") < 0.7


@pytest.mark.parametrize(
    "text",
    [
        "Can you keep in mind that Hedwig wants a window seat?",
        "Tu peux noter que le code de la cave est 2468 ?",
        "Kannst du bitte notieren, dass der Schlüssel zum Proberaum die Nummer 17 hat?",
        "Can you help me to speed up the report, which takes 250 ms now that the queries are cached and indexed by day?",
    ],
)
def test_a_request_that_says_what_it_is_about_tells_something(text):
    assert informative_share(text) == 1
    assert question_share(text) == 1


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("Where does my sister live?", True),
        ("What did I say?", True),
        ("Why is the sky blue?", False),
        ("I see.", False),
    ],
)
def test_a_message_may_speak_of_those_who_talk(text, ours):
    assert is_first_person(text) == ours


@pytest.mark.parametrize(
    "text",
    [
        "Do you remember where I work?",
        "What did I tell you about Rex?",
        "where is my car",
        "what do I do for a living",
        "Weißt du noch, wo ich arbeite?",
        "Tu te souviens de mon chien ?",
        "Te acuerdas de mi perro?",
    ],
)
def test_a_question_about_the_past_asks_back(text):
    assert asks_about_the_past(text)


@pytest.mark.parametrize(
    "text",
    [
        "thanks",
        "What do you think?",
        "Can you explain that again?",
        "Could you repeat that?",
        "Why is the sky blue?",
    ],
)
def test_small_talk_does_not_ask_back(text):
    assert not asks_about_the_past(text)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "Please remember that the code of the store room is 4321.",
            "I'm sorry, but I can't assist with that.",
        ),
        (
            "My sister moved to Bergen.",
            "As an AI language model, I don't have personal experiences, but Bergen is nice.",
        ),
        ("My dog Pixel is afraid of balloons.", "I'm sorry to hear that Pixel is afraid of balloons!"),
        ("I start my new job at the harbour on Monday.", "Congratulations on your new job!"),
        ("I like tea.", "Understood!"),
        ("What is my locker number?", "Your locker number is 85."),
        ("Merke dir bitte den Code 4321.", "Es tut mir leid, aber das kann ich nicht."),
        ("What is my shoe size?", "I don't know your shoe size."),
        ("Hi", "Hello! How can I assist you today?"),
    ],
)
def test_an_answer_that_would_spoil_others_is_not_worth_recalling(question, answer):
    assert not worth_recalling(answer, question)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which bread goes with soup?", "A dark rye with caraway goes well with lentil soup."),
        ("How do I undo a commit?", "Use git revert with the hash of the commit; it makes a new commit."),
        (
            "My sister moved to Bergen.",
            "Bergen is known for rain, so the Fløyen funicular is best on a dry day.",
        ),
        ("Where is the conference?", "In Tampere."),
        ("I am tired.", "Try going to bed at ten, and leave the phone in the kitchen."),
    ],
)
def test_an_answer_that_tells_something_is_worth_recalling(question, answer):
    assert worth_recalling(answer, question)


@pytest.mark.parametrize(
    "text",
    [
        "How do I list all open ports on Linux?",
        "Can you write me a polite sentence?",
        "What is the capital of Mongolia?",
        "Can guinea pigs see colours?",
        "are parrots able to live longer than dogs?",
        "Why is the sky blue?",
        "Write a haiku about the ocean.",
        "Any tips for packing glasses?",
        "Wie kann man Brot backen?",
        "Qu'est-ce qu'un transistor ?",
        "¿Qué es una célula?",
        "Что такое транзистор?",
    ],
)
def test_what_anybody_could_ask_is_a_general_request(text):
    assert is_general_request(text)
    assert not asks_for_own_fact(text)


@pytest.mark.parametrize(
    "text",
    [
        "When is Alba's birthday?",
        "Can Lourdes taste the new croissants?",
        "What did the movers ask for in total?",
        "I moved to Lindau.",
        "How do I get to my office?",
        "Write a letter to my landlord.",
    ],
)
def test_a_question_about_somebody_or_something_known_is_no_general_request(text):
    assert not is_general_request(text)


@pytest.mark.parametrize(
    "text",
    [
        "What's the name of my cat?",
        "How old is my wife?",
        "When exactly are we moving?",
        "Where did I park?",
        "Thanks. And who has our spare key?",
        "Wie heißt meine Katze?",
        "Wo habe ich geparkt?",
        "¿Cuándo es mi cita?",
        "Comment s'appelle ma sœur ?",
        "Как зовут мою кошку? Где моя машина?",
    ],
)
def test_a_question_that_only_its_author_can_answer_asks_for_an_own_fact(text):
    assert asks_for_own_fact(text)


@pytest.mark.parametrize(
    "text",
    [
        "What should I cook for my wife?",
        "My cat is called Mochi.",
        "What would be a good name for my cat?",
        "How can I back up my files?",
        "Remember where I parked.",
        "What do you think of my plan?",
        "Who wrote War and Peace?",
    ],
)
def test_advice_statements_and_general_questions_do_not_ask_for_an_own_fact(text):
    assert not asks_for_own_fact(text)


def test_how_do_i_and_write_me_say_nothing_about_their_author():
    assert not is_first_person("How do I reverse a list?")
    assert not is_first_person("Can you write me a poem?")
    assert is_first_person("How do I get to my office?")


@pytest.mark.parametrize(
    "text",
    [
        "What day is it today?",
        "How many days are left until Christmas?",
        "What should I cook tonight?",
        "What did I plan for next week?",
        "Wie lange ist es noch bis Weihnachten?",
        "¿Qué fecha es mañana?",
        "今日は何日ですか？",
    ],
)
def test_what_cannot_be_answered_without_the_date_asks_about_time(text):
    assert asks_about_time(text)


@pytest.mark.parametrize(
    "text",
    ["It smells like rain today.", "When is my check-up?", "Write a note to Gerd.", "Which port is open?"],
)
def test_statements_and_other_questions_do_not_ask_about_time(text):
    assert not asks_about_time(text)
