"""A made-up year of technical and everyday talk with code, logs and lists, and questions about it.

Built from templates with one seed, so that it is always the same. The form is that of the LoCoMo files; a piece of
evidence may name words, where the turn is long and only the part with these words is needed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

USER, AI = "Robin", "Iris"
MULTI_HOP, TEMPORAL, SINGLE, LIST, UPDATE = 1, 2, 4, 11, 12

NAMES = """Mara Tobias Lene Farid Oskar Yuki Priya Anselm Greta Noor Casper Ilse Bruno Wanda Emeka Solveig Tariq Paloma
Henrik Odile Matteo Ingrid Rashid Fenna Lucian Zofia Callum Beatriz Dimitri Aino""".split()
KIN = """sister brother aunt uncle cousin neighbour flatmate colleague boss dentist grandmother trainer landlord
godson nephew niece tutor mechanic""".split()
CITIES = """Bergen Porto Leipzig Turku Ghent Trieste Malmö Zaragoza Galway Brno Lyon Tartu Graz Bath Utrecht
Split Vilnius Palermo Aarhus Cork""".split()
JOBS = {
    "beekeeper": "looks after forty hives",
    "paramedic": "drives the ambulance on night shifts",
    "cartographer": "draws maps for the forest office",
    "baker": "gets up at three to fire the ovens",
    "notary": "certifies deeds and wills",
    "welder": "joins pipes at the shipyard",
    "choreographer": "invents dances for a small theatre",
    "vet": "treats cows and sheep mostly",
    "librarian": "runs the reading room of the old town",
    "pilot": "flies cargo between the islands",
    "glazier": "repairs church windows",
    "judge": "sits at the labour court",
}
PETS = ("dog", "cat", "parrot", "tortoise", "rabbit", "ferret", "horse", "goat")
PET_NAMES = """Biscuit Comet Pepper Nimbus Olive Tango Figaro Pumpkin Ziggy Hazel Mango Waffle Juno Sprocket Clover
Dumpling Otis Pickle Saffron Bramble Noodle Truffle Marble Pixel Basil""".split()
ALLERGIES = "peanuts shellfish sesame celery kiwis mustard lupins walnuts buckwheat strawberries".split()
HOBBIES = """fencing origami curling beekeeping kayaking calligraphy archery juggling bouldering embroidery astronomy
woodcarving orienteering pottery""".split()
BOOKS = (
    "The Salt Road",
    "Nine Winters",
    "A House of Reeds",
    "The Quiet Engine",
    "Letters to Orla",
    "Paper Harbour",
)
SERVICES = """billing ledger mailer gatekeeper thumbnail scheduler catalogue invoices harvester beacon translator
archiver courier pricing sessions auditor""".split()
LANGUAGES = ("Rust", "Go", "Elixir", "Kotlin", "Python", "OCaml", "Erlang", "TypeScript")
STORES = ("PostgreSQL", "SQLite", "Redis", "Cassandra", "MongoDB", "DuckDB", "MariaDB")
CAUSES = (
    "the certificate had expired and nobody had renewed it",
    "a migration left an index half built",
    "two workers took the same lock in opposite order",
    "the disk was full of old core dumps",
    "a time zone change made the cron job run twice",
    "the client retried without any pause and flooded the queue",
    "a null byte in a file name broke the parser",
    "the cache kept a negative answer for a whole day",
    "an environment variable was missing after the move",
    "the connection pool was smaller than the number of threads",
    "a leap second stopped the timer wheel",
    "the load balancer still sent traffic to a drained host",
)
REPAIRS = (
    "We renewed it and added a reminder.",
    "Rolling back and building it again online helped.",
    "Ordering the locks by name solved it.",
    "A nightly cleaning job keeps it from coming back.",
    "Everything is scheduled in UTC now.",
    "Backing off exponentially made it calm again.",
    "Names are now checked at the door.",
    "The lifetime of such answers is a minute now.",
    "The start fails loudly now if it is missing.",
    "The pool grows with the threads since then.",
)
EVENTS = {
    "ran the half marathon": "half marathon",
    "had my wisdom tooth pulled": "wisdom tooth",
    "signed the lease for the studio": "lease for the studio",
    "planted the pear tree": "pear tree",
    "sold the old motorbike": "motorbike",
    "gave the talk about compilers": "talk about compilers",
    "broke the blue teapot": "blue teapot",
    "passed the sailing exam": "sailing exam",
    "adopted the neighbour's hens": "hens",
    "repaired the cuckoo clock": "cuckoo clock",
    "lost the green scarf on the tram": "green scarf",
    "finished the crossword championship": "crossword championship",
    "painted the kitchen yellow": "kitchen",
    "saw the northern lights": "northern lights",
    "replaced the bicycle chain": "bicycle chain",
    "donated blood for the first time": "donating blood",
    "cooked for the street party": "street party",
    "moved the piano upstairs": "piano",
    "learned to fold a crane out of paper": "paper crane",
    "visited the lighthouse museum": "lighthouse museum",
}
ITEMS = """lentils saffron rope lanterns candles vinegar thread stamps nails cardamom gloves yeast batteries chalk
paprika hinges twine almonds soap sandpaper honey envelopes tea cork varnish ribbons oats matches thyme screws""".split()
OCCASIONS = (
    "the midsummer party",
    "the camping trip",
    "the school fair",
    "the attic",
    "the wedding",
    "the allotment",
)
SMALL = (
    ("Good morning!", "Good morning, Robin. What is on your mind today?"),
    ("Thanks, that helps.", "Glad to hear it. Tell me when there is more."),
    ("It is raining again.", "A good day to stay in and get something done, then."),
    ("I slept badly.", "I am sorry. Perhaps a short walk will help."),
    ("Let's take a break.", "Of course. I am here when you are back."),
    ("What do you make of that?", "I would sleep on it. Nothing has to be decided today."),
    ("Ok, next topic.", "Go on, I am listening."),
)
REMARKS = (
    "It is easy to forget such things.", "I would write it down.", "That sounds like a full week.",
    "Small steps are steps too.", "There is usually more than one way.", "Let us look at it calmly.",
    "The details matter here.", "Many people underestimate that.", "You could ask around as well.",
    "I like how thorough you are.", "A second pair of eyes never hurts.", "That can wait until tomorrow.",
)  # fmt: skip
ADVICE = (
    "First measure, then change one thing at a time, and keep notes of what you saw.",
    "Write the test that fails before you touch the code, so that you know when you are done.",
    "Make the small version work end to end before you make any part of it large.",
    "Read the log from the first unusual line, not from the last error.",
    "Name things after what they are for, and the structure tends to follow.",
    "If a value crosses a boundary, check it there and nowhere else.",
    "Prefer plain data over clever objects, above all where threads meet.",
    "A timeout without a retry policy only moves the problem somewhere else.",
)


@dataclass(slots=True)
class _Talk:
    """The sessions as they are written, and the questions that become possible."""

    chance: random.Random
    sessions: list[dict[str, Any]] = field(default_factory=list)
    qa: list[dict[str, Any]] = field(default_factory=list)
    when: datetime = datetime(2025, 1, 6, 9, 0)

    def begin(self) -> None:
        self.when += timedelta(days=self.chance.choice((2, 3, 3, 4)), minutes=self.chance.randrange(90))
        self.sessions.append({"date_time": f"{self.when:%I:%M %p on %d %B, %Y}".lower(), "turns": []})

    def say(self, speaker: str, text: str) -> str:
        turns = self.sessions[-1]["turns"]
        name = f"D{len(self.sessions)}:{len(turns) + 1}"
        turns.append({"dia_id": name, "speaker": speaker, "text": text})
        return name

    def ask(self, category: int, question: str, *evidence: str, words: dict[str, str] | None = None) -> None:
        asked = {"question": question, "category": category, "evidence": list(evidence), "words": words or {}}
        self.qa.append(asked)

    def remark(self, count: int) -> str:
        return " ".join(self.chance.sample(REMARKS, count))


def _people(talk: _Talk) -> Iterator[Any]:
    """Facts about people, told one at a time; what can be asked is known at the end."""
    chance, told = talk.chance, {}
    pets = chance.sample(PET_NAMES, len(PET_NAMES))
    for i, name in enumerate(NAMES):
        kin = f"my {chance.choice(KIN)} {name}"
        fact: dict[str, str] = {"kin": kin, "job": list(JOBS)[i % len(JOBS)], "city": CITIES[i % len(CITIES)]}
        fact |= {"hobby": HOBBIES[i % len(HOBBIES)], "allergy": ALLERGIES[i % len(ALLERGIES)]}
        if i < len(pets):
            fact |= {"pet": PETS[i % len(PETS)], "pet name": pets[i]}
        fact["book"] = BOOKS[i % len(BOOKS)]
        told[name] = fact
    ways = {
        "city": ("{kin} has settled in {city} and loves it there.", "I got a postcard from {kin}: greetings from home in {city}."),
        "job": ("{kin} works as a {job} and {does}.", "Did I say that {kin} is a {job}? {name} {does}."),
        "pet": ("{kin} has a {pet} called {pet name}.", "{kin} could not come, because {pet name} the {pet} was ill."),
        "allergy": ("We must keep {allergy} away from {kin}: even a little is dangerous.", "{kin} cannot eat {allergy}, the doctor was clear."),
        "hobby": ("{kin} has taken up {hobby} and talks of nothing else.", "Every Thursday {kin} goes to {hobby} practice."),
        "book": ("I lent {kin} my copy of {book}.", "{kin} still has not returned {book} to me."),
    }  # fmt: skip
    questions = {
        "city": ("Where does {name} live?", "In which town would I visit {name}?"),
        "job": ("What does {name} do for a living?", "What is the profession of {name}?"),
        "pet": ("What is the name of the animal that {name} keeps?", "What is {name}'s {pet} called?"),
        "allergy": ("What is {name} allergic to?", "Which food should I not serve to {name}?"),
        "hobby": ("How does {name} spend free evenings?", "Which pastime has {name} taken up?"),
        "book": ("Which book did I lend to {name}?", "Which of my books does {name} have?"),
    }
    where: dict[tuple[str, str], str] = {}
    movers = set(chance.sample(NAMES, 12))
    plan = [(name, kind) for name in NAMES for kind in ways if kind != "pet" or "pet" in told[name]]
    chance.shuffle(plan)
    for name, kind in plan:
        fact = told[name]
        words = {**fact, "name": name, "does": JOBS[fact["job"]]}
        text = chance.choice(ways[kind]).format(**words)
        text = f"{text[0].upper()}{text[1:]} {talk.remark(chance.randrange(2))}".strip()
        where[name, kind] = talk.say(USER, text)
        if chance.random() < 0.4 and not (kind == "city" and name in movers):
            talk.ask(SINGLE, chance.choice(questions[kind]).format(**words), where[name, kind])
        talk.say(AI, f"{talk.remark(2)}")
        yield None
    for name in [name for name in NAMES if "pet" in told[name] and name not in movers]:
        fact = told[name]
        talk.ask(
            MULTI_HOP,
            f"Where does the owner of {fact['pet name']} live?",
            where[name, "pet"],
            where[name, "city"],
        )
    for name in chance.sample(NAMES, 8):
        fact = told[name]
        talk.ask(
            MULTI_HOP,
            f"{name} comes to dinner with an appetite: what can {name} not eat, and which hobby can we talk about?",
            where[name, "allergy"], where[name, "hobby"],
        )  # fmt: skip
    for pet in PETS:
        owners = [name for name in NAMES if told[name].get("pet") == pet]
        talk.ask(
            LIST, f"Which of my friends and relatives have a {pet}?", *(where[name, "pet"] for name in owners)
        )
    for book in BOOKS[:4]:
        holders = [name for name in NAMES if told[name]["book"] == book]
        talk.ask(LIST, f"To whom have I lent {book}?", *(where[name, "book"] for name in holders))
    for name in sorted(movers):
        city = chance.choice([city for city in CITIES if city != told[name]["city"]])
        text = f"News: {told[name]['kin']} has left {told[name]['city']} and moved to {city} for good."
        talk.ask(UPDATE, f"Where does {name} live now, after the move?", talk.say(USER, text))
        talk.say(AI, talk.remark(2))
        yield None


def _config(chance: random.Random, service: str, about: dict[str, Any]) -> str:
    limit, workers = about["limit"], chance.randrange(2, 33)
    return (
        f'```toml\n[service.{service}]\nlanguage = "{about["language"]}"\nport = {about["port"]}\n'
        f'store = "{about["store"]}"\nmemory_limit = "{limit}MiB"\nworkers = {workers}\n'
        f'log_level = "{chance.choice(("info", "warning", "debug"))}"\nretry_seconds = {chance.randrange(1, 60)}\n'
        f"```"
    )


def _log(chance: random.Random, service: str, when: datetime, code: str, lines: int) -> str:
    at, found = when - timedelta(hours=3), []
    for i in range(lines):
        at += timedelta(seconds=chance.randrange(1, 40))
        line = chance.choice(
            (
                f"request {chance.randrange(10**6):06d} took {chance.randrange(900)} ms",
                f"worker {chance.randrange(16)} is ready",
                f"cache hit rate {chance.randrange(100)} %",
                f"slow query on table t{chance.randrange(40)}",
                f"connection from 10.0.{chance.randrange(256)}.{chance.randrange(256)} closed",
            )
        )
        level = "INFO"
        if i == lines * 2 // 3:
            level, line = "ERROR", f"{code}: request aborted"
        found.append(f"{at:%H:%M:%S} {level:5} {service}: {line}")
    return "```\n" + "\n".join(found) + "\n```"


def _code(chance: random.Random, name: str) -> str:
    value, other = (
        chance.choice(("rows", "items", "lines", "events")),
        chance.choice(("seen", "total", "kept")),
    )
    return (
        f"```python\ndef {name}({value}, limit={chance.randrange(10, 900)}):\n"
        f'    """Go through {value} and stop at the limit."""\n    {other} = 0\n    for one in {value}:\n'
        f"        if not one:\n            continue\n        {other} += {chance.randrange(1, 9)}\n"
        f"        if {other} > limit:\n            break\n    return {other}\n```"
    )


def _services(talk: _Talk) -> Iterator[Any]:
    chance = talk.chance
    about: dict[str, dict[str, Any]] = {}
    ports = chance.sample(range(3000, 9900), len(SERVICES) * 2)
    owners = chance.sample(NAMES, len(SERVICES))
    for i, service in enumerate(SERVICES):
        fact = {"port": ports[i], "owner": owners[i], "limit": 128 * chance.randrange(2, 40)}
        fact |= {"language": chance.choice(LANGUAGES), "store": chance.choice(STORES)}
        about[service] = fact
    where: dict[tuple[str, str], str] = {}
    for service in chance.sample(SERVICES, len(SERVICES)):
        fact = about[service]
        text = f"Here is the configuration of the {service} service, please keep it in mind.\n\n{_config(chance, service, fact)}"
        where[service, "config"] = talk.say(USER, text)
        talk.say(AI, f"Noted. {chance.choice(ADVICE)} {talk.remark(2)}")
        kind = chance.choice(("port", "store", "limit"))
        question = {
            "port": f"On which port does the {service} service listen?",
            "store": f"Which database stands behind the {service} service?",
            "limit": f"How much memory may the {service} service use?",
        }[kind]
        talk.ask(SINGLE, question, where[service, "config"], words={where[service, "config"]: "memory_limit"})
        yield None
        text = f"If {service} breaks at night, {fact['owner']} is on call for it. {talk.remark(1)}"
        where[service, "owner"] = talk.say(USER, text)
        talk.say(AI, f"I will remember who to wake. {talk.remark(1)}")
        yield None
    for service in chance.sample(SERVICES, 12):
        fact, config = about[service], where[service, "config"]
        talk.ask(
            MULTI_HOP, f"Whom do I call when the service on port {fact['port']} is down?",
            config, where[service, "owner"], words={config: "port"},
        )  # fmt: skip
    for i, service in enumerate(chance.sample(SERVICES, 10)):
        port = ports[len(SERVICES) + i]
        text = f"The {service} service had to move: from today it listens on port {port} instead of {about[service]['port']}."
        talk.ask(UPDATE, f"Which port does {service} use since it was moved?", talk.say(USER, text))
        talk.say(AI, f"Understood, the old number is history. {talk.remark(1)}")
        yield None


def _incidents(talk: _Talk) -> Iterator[Any]:
    chance = talk.chance
    codes = [f"E{number}" for number in chance.sample(range(1000, 9999), 48)]
    for i, code in enumerate(codes):
        service, cause = SERVICES[i % len(SERVICES)], CAUSES[i % len(CAUSES)]
        lines = chance.randrange(20, 60)
        pasted = talk.say(
            USER, f"{service} is acting up, look at this:\n\n{_log(chance, service, talk.when, code, lines)}"
        )
        answer = talk.say(AI, f"The interesting line is {code}. {chance.choice(ADVICE)} {talk.remark(1)}")
        found = talk.say(
            USER, f"Found it: {service} failed with {code} because {cause}. {chance.choice(REPAIRS)}"
        )
        talk.say(AI, f"Well done. {talk.remark(2)}")
        if i % 3 == 0:
            talk.ask(SINGLE, f"What was the reason for {code} in {service}?", found)
        elif i % 3 == 1:
            talk.ask(TEMPORAL, f"When did {service} fail with {code}?", found)
        else:
            talk.ask(
                MULTI_HOP, f"Show me the log line of {code} and tell me what had caused it.",
                pasted, found, words={pasted: code},
            )  # fmt: skip
        del answer
        yield None


def _everyday(talk: _Talk) -> Iterator[Any]:
    chance = talk.chance
    for done, topic in EVENTS.items():
        when = chance.choice(("yesterday", "last weekend", "this morning", "on Tuesday", "last night"))
        said = talk.say(USER, f"Guess what: {when} I {done}. {talk.remark(1)}")
        talk.say(AI, f"That is worth remembering. {talk.remark(2)}")
        talk.ask(TEMPORAL, f"When was it with the {topic}: on which day did I tell you?", said)
        yield None
    for occasion in OCCASIONS * 3:
        items = chance.sample(ITEMS, 9)
        month = f"{talk.when:%B}"
        bullets = "\n".join(f"- {item}, {chance.randrange(1, 12)} pieces" for item in items)
        said = talk.say(
            USER, f"My list for {occasion} in {month}:\n\n{bullets}\n\nHave I forgotten anything?"
        )
        talk.say(AI, f"It looks complete to me. {talk.remark(2)}")
        question = f"What was on my list for {occasion} in {month} {talk.when.year}?"
        if question not in {asked["question"] for asked in talk.qa}:
            talk.ask(SINGLE, question, said)
        yield None
    for i in range(40):
        name = f"{chance.choice(('count', 'merge', 'trim', 'scan'))}_{chance.choice(ITEMS)}_{i}"
        said = talk.say(USER, f"Can you write a function {name} for me? {talk.remark(1)}")
        answer = talk.say(
            AI, f"Here it is. {chance.choice(ADVICE)}\n\n{_code(chance, name)}\n\n{talk.remark(2)}"
        )
        if i % 4 == 0:
            talk.ask(SINGLE, f"What is the default limit of {name}?", answer, words={answer: f"def {name}"})
        del said
        yield None


NOUNS = """queue parser index cache thread socket buffer page lock packet tree journal scheduler pipeline cursor token
heap branch snapshot shard replica handler frame router digest""".split()
VERBS = """drains feeds blocks wakes splits copies guards delays replays merges rejects signs scans rebuilds outlives
shadows""".split()
ADJECTIVES = """lazy shared bounded stale nested sparse durable empty crowded sorted remote frozen greedy partial
orphaned""".split()


def _lessons(talk: _Talk) -> Iterator[Any]:
    """Long answers about technical things, in which nothing is asked for later: they are in the way."""
    chance = talk.chance

    def sentence() -> str:
        one, two, three = chance.sample(NOUNS, 3)
        first, second = chance.sample(ADJECTIVES, 2)
        verb, other = chance.sample(VERBS, 2)
        return chance.choice(
            (
                f"A {first} {one} {verb} the {two} as soon as the {three} is {second}.",
                f"When the {two} {verb} a {first} {one}, the {three} stays {second}.",
                f"Never let a {first} {one} near the {two}, unless it {verb} the {three} first.",
                f"The {one} {verb} and the {two} {other}, so the {three} has to be {first}.",
                f"Think of the {one} as a {first} {two} that {other} its {three}.",
            )
        )

    for _ in range(110):
        one, two = chance.sample(NOUNS, 2)
        talk.say(USER, f"Why does the {one} depend on the {two} here? {sentence()}")
        paragraphs = [" ".join(sentence() for _ in range(chance.randrange(3, 6))) for _ in range(3)]
        steps = "\n".join(f"{i + 1}. {sentence()}" for i in range(chance.randrange(3, 6)))
        parts = [paragraphs[0], _code(chance, f"{one}_{two}"), paragraphs[1], steps, paragraphs[2]]
        talk.say(AI, "\n\n".join(parts))
        yield None


def build(seed: int = 7) -> dict[str, Any]:
    """The whole conversation, in the form of the LoCoMo files."""
    talk = _Talk(random.Random(seed))
    threads = [_people(talk), _services(talk), _incidents(talk), _everyday(talk), _lessons(talk)]
    shares = [5, 2, 2, 3, 3]
    while threads:
        talk.begin()
        for _ in range(talk.chance.randrange(3, 6)):
            if talk.chance.random() < 0.3:
                asked, answered = talk.chance.choice(SMALL)
                talk.say(USER, asked)
                talk.say(AI, f"{answered} {talk.remark(2)}")
            if not threads:
                break
            at = talk.chance.choices(range(len(threads)), shares)[0]
            if next(threads[at], StopIteration) is StopIteration:
                del threads[at], shares[at]
    talk.chance.shuffle(talk.qa)
    return {"speakers": [USER, AI], "sessions": talk.sessions, "qa": talk.qa}
