"""Questions whose answers follow from a house rule, made by a seed: thousands of them, and no entity on both sides of the cut."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from benchmarks.house_rules.pools import CODES, COMPONENTS, DATES, EXTENSIONS, FAULTS, PEOPLE, TOPICS, Split
from benchmarks.house_rules.rules import Rule

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_LEVELS: Final = {"error": "ERROR", "warning": "WARNING", "notice": "NOTICE"}


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an answer: content (it depends on the question) or form (the rule alone says it)."""

    text: str
    is_content: bool


@dataclass(frozen=True, slots=True)
class Task:
    """A question, and the one right answer in pieces."""

    rule: Rule
    question: str
    pieces: tuple[Piece, ...]

    @property
    def answer(self) -> str:
        """The right answer as it must be written."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def contents(self) -> tuple[str, ...]:
        """What the answer takes from the question, in order."""
        return tuple(piece.text for piece in self.pieces if piece.is_content)


def make_tasks(rules: Sequence[Rule], split: Split, seed: int) -> Iterator[Task]:
    """Tasks without end, the rules taking turns, no question twice."""
    chance = random.Random(f"{split} {seed}")
    asked: set[str] = set()
    while True:
        for rule in rules:
            task = _MAKERS[rule](chance, split)
            while task.question in asked:
                task = _MAKERS[rule](chance, split)
            asked.add(task.question)
            yield task


def _task(rule: Rule, question: str, *pieces: str) -> Task:
    """Form and content take turns, beginning with form; a last form may be missing."""
    return Task(rule, question, tuple(Piece(text, number % 2 == 1) for number, text in enumerate(pieces) if text))


def _date_task(chance: random.Random, split: Split) -> Task:
    day = chance.choice(DATES.of(split))
    question = chance.choice(
        (
            "Write the date {} for the calendar.",
            "Our meeting is on {}. Write that date for the calendar.",
            "How is the date {} written in our calendar?",
            "The office is closed on {}. Which date do I put into the calendar?",
        )
    )
    written = chance.choice((_day_first, _month_first))(day)
    year, month, number = f"{day:%Y}", f"{day:%m}", f"{day:%d}"
    return _task(Rule.DATES, question.format(written), "", year, "-", month, "-", number, "/nb")


def _day_first(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _month_first(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.day}, {day.year}"


def _name_task(chance: random.Random, split: Split) -> Task:
    one, two = chance.sample(TOPICS.of(split), 2)
    version, extension = str(chance.randint(1, 9)), chance.choice(EXTENSIONS)
    question = chance.choice(
        (
            "Give me a filename for a {ext} about {one} and {two}, version {version}.",
            "I have written a {ext} about {one} and {two}. It is version {version}. What is the filename?",
            "Which filename has a new {ext} about {one} and {two}, version {version}?",
            "Version {version} of the {ext} about {one} and {two} needs a filename.",
        )
    )
    words = question.format(ext=extension, one=one, two=two, version=version)
    return _task(Rule.NAMES, words, "[", one, "_", two, "].v", version, ".", extension)


def _metadata_task(chance: random.Random, split: Split) -> Task:
    topic, person, revision = chance.choice(TOPICS.of(split)), chance.choice(PEOPLE.of(split)), str(chance.randint(1, 9))
    question = chance.choice(
        (
            "Write the metadata for a document about {topic} by {person}, revision {revision}.",
            "{person} wrote a document about {topic}. It is revision {revision}. What is its metadata?",
            "I need metadata: revision {revision} of a document about {topic}, written by {person}.",
            "What metadata belongs to {person}'s document about {topic}, revision {revision}?",
        )
    )
    words = question.format(topic=topic, person=person, revision=revision)
    return _task(Rule.METADATA, words, "{about: ", topic, ", by: ", person, ", rev: ", revision, "}")


def _backup_task(chance: random.Random, split: Split) -> Task:
    file, number = f"{chance.choice(TOPICS.of(split))}.{chance.choice(EXTENSIONS)}", str(chance.randint(1, 99))
    question = chance.choice(
        (
            "Where does backup {number} of {file} go?",
            "I am making backup copy {number} of {file}. What is its path?",
            "Give me the path for backup {number} of the file {file}.",
            "The file {file} gets its backup number {number}. Which path does the copy have?",
        )
    )
    return _task(Rule.BACKUPS, question.format(number=number, file=file), ".vault/", file, "~", number)


def _log_task(chance: random.Random, split: Split) -> Task:
    level, component = chance.choice(tuple(_LEVELS)), chance.choice(COMPONENTS.of(split))
    fault, code = chance.choice(FAULTS.of(split)), str(chance.choice(CODES.of(split)))
    question = chance.choice(
        (
            "Write the log line for this {level} of the {component}: {fault}, code {code}.",
            "The {component} sends a {level}: {fault}, code {code}. What is the log line?",
            "Make a log line of this {level}: the {component} says {fault} with code {code}.",
            "I need a log line. The {component} has a {level}, {fault}, and the code is {code}.",
        )
    )
    words = question.format(level=level, component=component, fault=fault, code=code).replace("a error", "an error")
    return _task(Rule.LOG_LINES, words, "[", _LEVELS[level], "] ", component, " | ", fault, " | ", code)


_MAKERS: Final[dict[Rule, Callable[[random.Random, Split], Task]]] = {
    Rule.DATES: _date_task,
    Rule.NAMES: _name_task,
    Rule.METADATA: _metadata_task,
    Rule.BACKUPS: _backup_task,
    Rule.LOG_LINES: _log_task,
}
