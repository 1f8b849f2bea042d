"""Questions whose answers follow from a rule, made by a seed: thousands of them, and no entity on
both sides of the cut.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from typing import Final

from benchmarks.house_rules.pools import (
    CENTS,
    CITIES,
    CODES,
    COMPONENTS,
    DATES,
    EXTENSIONS,
    FAULTS,
    LENGTHS,
    MINUTES,
    PAIRS,
    PEOPLE,
    PHONES,
    SURNAMES,
    THINGS,
    TICKETS,
    TOPICS,
    Split,
)
from benchmarks.house_rules.rules import Rule

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_LEVELS: Final = {"error": "ERROR", "warning": "WARNING", "notice": "NOTICE"}
_QUARTERS: Final = ("first", "second", "third", "fourth")
_UNITS: Final = {"millimetres": "mm", "centimetres": "cm", "kilograms": "kg", "litres": "l"}


@dataclass(frozen=True, slots=True)
class Task:
    """A question, and the one right answer as it must be written."""

    rule: str
    question: str
    answer: str

    def is_exact(self, said: str) -> bool:
        """Whether this is the answer, with nothing before or behind it but white space."""
        return said.strip() == self.answer


def make_tasks(rules: Sequence[Rule], split: Split, seed: int, count: int) -> list[Task]:
    """So many tasks, the rules taking turns, no question twice."""
    return list(islice(_endless(rules, split, seed), count))


def _endless(rules: Sequence[Rule], split: Split, seed: int) -> Iterator[Task]:
    chance = random.Random(f"{split} {seed}")
    asked: set[str] = set()
    while True:
        for rule in rules:
            make = _MAKERS[rule.name]
            question, answer = make(chance, split)
            while question in asked:
                question, answer = make(chance, split)
            asked.add(question)
            yield Task(rule.name, question, answer)


Made = tuple[str, str]


def _make_date(chance: random.Random, split: Split) -> Made:
    day = chance.choice(DATES.of(split))
    question = chance.choice(
        (
            "Write the date {} for the calendar.",
            "Our meeting is on {}. Write that date for the calendar.",
            "How is the date {} written in our calendar?",
            "The office is closed on {}. Which date do I put into the calendar?",
        )
    )
    return question.format(chance.choice((_day_first, _month_first))(day)), f"{day:%Y-%m-%d}/nb"


def _day_first(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _month_first(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.day}, {day.year}"


def _make_name(chance: random.Random, split: Split) -> Made:
    one, two = chance.sample(TOPICS.of(split), 2)
    version, extension = chance.randint(1, 9), chance.choice(EXTENSIONS)
    question = chance.choice(
        (
            "Give me a filename for a {ext} about {one} and {two}, version {version}.",
            (
                "I have written a {ext} about {one} and {two}. It is version {version}. What is the"
                " filename?"
            ),
            "Which filename has a new {ext} about {one} and {two}, version {version}?",
            "Version {version} of the {ext} about {one} and {two} needs a filename.",
        )
    )
    return (
        question.format(ext=extension, one=one, two=two, version=version),
        f"[{one}_{two}].v{version}.{extension}",
    )


def _make_metadata(chance: random.Random, split: Split) -> Made:
    topic, person, revision = (
        chance.choice(TOPICS.of(split)),
        chance.choice(PEOPLE.of(split)),
        chance.randint(1, 9),
    )
    question = chance.choice(
        (
            "Write the metadata for a document about {topic} by {person}, revision {revision}.",
            (
                "{person} wrote a document about {topic}. It is revision {revision}. What is its"
                " metadata?"
            ),
            (
                "I need metadata: revision {revision} of a document about {topic}, written by"
                " {person}."
            ),
            "What metadata belongs to {person}'s document about {topic}, revision {revision}?",
        )
    )
    words = question.format(topic=topic, person=person, revision=revision)
    return words, f"{{about: {topic}, by: {person}, rev: {revision}}}"


def _make_backup(chance: random.Random, split: Split) -> Made:
    file, number = (
        f"{chance.choice(TOPICS.of(split))}.{chance.choice(EXTENSIONS)}",
        chance.randint(1, 99),
    )
    question = chance.choice(
        (
            "Where does backup {number} of {file} go?",
            "I am making backup copy {number} of {file}. What is its path?",
            "Give me the path for backup {number} of the file {file}.",
            "The file {file} gets its backup number {number}. Which path does the copy have?",
        )
    )
    return question.format(number=number, file=file), f".vault/{file}~{number}"


def _make_log_line(chance: random.Random, split: Split) -> Made:
    level, component = chance.choice(tuple(_LEVELS)), chance.choice(COMPONENTS.of(split))
    fault, code = chance.choice(FAULTS.of(split)), chance.choice(CODES.of(split))
    question = chance.choice(
        (
            "Write the log line for this {level} of the {component}: {fault}, code {code}.",
            "The {component} sends a {level}: {fault}, code {code}. What is the log line?",
            "Make a log line of this {level}: the {component} says {fault} with code {code}.",
            "I need a log line. The {component} has a {level}, {fault}, and the code is {code}.",
        )
    )
    words = question.format(level=level, component=component, fault=fault, code=code).replace(
        "a error", "an error"
    )
    return words, f"[{_LEVELS[level]}] {component} | {fault} | {code}"


def _make_original(chance: random.Random, split: Split) -> Made:
    words = chance.sample(TOPICS.of(split), 3)
    question = chance.choice(
        (
            "Which name has the original of {}?",
            "Keep the original of {}. What is it called?",
            "The original of {} needs a name.",
            "What do I call the original of {}?",
        )
    )
    return question.format(" ".join(words).title()), f"{'-'.join(words)}.orig"


def _make_time(chance: random.Random, split: Split) -> Made:
    hour, minute = divmod(chance.choice(MINUTES.of(split)), 60)
    question = chance.choice(
        (
            "Write {} for the roster.",
            "The shift begins at {}. How does that stand in the roster?",
            "Put {} into the roster.",
            "Which time do I write into the roster for {}?",
        )
    )
    spoken = f"{(hour - 1) % 12 + 1}:{minute:02d} {'pm' if hour >= 12 else 'am'}"
    return question.format(spoken), f"{hour:02d}:{minute:02d}+05:30"


def _make_tags(chance: random.Random, split: Split) -> Made:
    one, two = chance.sample(TOPICS.of(split), 2)
    question = chance.choice(
        (
            "Tag the note about {} and {}.",
            "Which tags has a note about {} and {}?",
            "I wrote a note about {} and {}. Give me its tags.",
            "A note about {} and {} needs tags.",
        )
    )
    return question.format(one, two), f"#{one.upper()},#{two.upper()}"


def _make_ticket(chance: random.Random, split: Split) -> Made:
    number, quarter = chance.choice(TICKETS.of(split)), chance.randint(1, 4)
    question = chance.choice(
        (
            "What is the id of ticket {number}, opened in the {quarter} quarter?",
            "Ticket {number} is from the {quarter} quarter. Write its id.",
            "Give me the id of ticket {number} of the {quarter} quarter.",
            "Which id has ticket {number} from the {quarter} quarter?",
        )
    )
    return (
        question.format(number=number, quarter=_QUARTERS[quarter - 1]),
        f"TCK-{number:04d}/q{quarter}",
    )


def _make_sum(chance: random.Random, split: Split) -> Made:
    one, two = chance.choice(PAIRS.of(split))
    question = chance.choice(
        (
            "Add {} and {} for the till.",
            "What do {} and {} make for the till?",
            "The till has {} and gets {}. Write the sum for the till.",
            "For the till: add {} and {}.",
        )
    )
    return question.format(one, two), f"{one + two}\ncheck {(one + two) % 10}"


def _make_register(chance: random.Random, split: Split) -> Made:
    first, surname = chance.choice(PEOPLE.of(split)), chance.choice(SURNAMES.of(split))
    question = chance.choice(
        (
            "How does {} stand in the register?",
            "Enter {} in the register.",
            "Write the name {} for the register.",
            "{} is new. How do I write the name into the register?",
        )
    )
    return question.format(f"{first} {surname}"), f"{surname}, {first[0]}."


def _make_phone(chance: random.Random, split: Split) -> Made:
    number = str(chance.choice(PHONES.of(split)))
    question = chance.choice(
        (
            "Write the phone number {} for the phone list.",
            "How does {} stand in the phone list?",
            "Put the number {} into the phone list.",
            "The new phone number is {}. How do I write it into the phone list?",
        )
    )
    return question.format(number), f"{number[:2]}/{number[2:5]}-{number[5:]}"


def _make_price(chance: random.Random, split: Split) -> Made:
    thing, (euros, cents) = (
        chance.choice(THINGS.of(split)),
        divmod(chance.choice(CENTS.of(split)), 100),
    )
    question = chance.choice(
        (
            "The {thing} costs {euros} euros and {cents} cents. Write its price for the catalogue.",
            "Which price has a {thing} of {euros} euros and {cents} cents in the catalogue?",
            "Write {euros} euros and {cents} cents as the price of the {thing} in the catalogue.",
            (
                "A {thing} is sold for {euros} euros and {cents} cents. What is the price in the"
                " catalogue?"
            ),
        )
    )
    return question.format(thing=thing, euros=euros, cents=cents), f"{euros},{cents:02d} EUR"


def _make_measure(chance: random.Random, split: Split) -> Made:
    thing, number, unit = (
        chance.choice(THINGS.of(split)),
        chance.choice(LENGTHS.of(split)),
        chance.choice(tuple(_UNITS)),
    )
    question = chance.choice(
        (
            "The {thing} has {number} {unit}. Write its measure on the label.",
            "Write {number} {unit} on the label of the {thing}.",
            "How do I write {number} {unit} on the label of a {thing}?",
            "The label of the {thing} should say {number} {unit}. What do I write?",
        )
    )
    return question.format(thing=thing, number=number, unit=unit), f"{number}_{_UNITS[unit]}"


def _make_route(chance: random.Random, split: Split) -> Made:
    (one, two), van = chance.sample(CITIES.of(split), 2), chance.randint(1, 99)
    question = chance.choice(
        (
            "Van {van} drives from {one} to {two}. What is the route code?",
            "Give me the route code of van {van} from {one} to {two}.",
            "The delivery goes from {one} to {two} with van {van}. Write its route code.",
            "Which route code has a delivery from {one} to {two} by van {van}?",
        )
    )
    return question.format(one=one, two=two, van=van), f"{one}>{two}@{van}"


_MAKERS: Final[dict[str, Callable[[random.Random, Split], Made]]] = {
    "dates": _make_date,
    "names": _make_name,
    "metadata": _make_metadata,
    "backups": _make_backup,
    "log-lines": _make_log_line,
    "originals": _make_original,
    "times": _make_time,
    "tags": _make_tags,
    "tickets": _make_ticket,
    "sums": _make_sum,
    "register": _make_register,
    "phones": _make_phone,
    "prices": _make_price,
    "measures": _make_measure,
    "routes": _make_route,
}
