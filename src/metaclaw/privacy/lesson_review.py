"""The review of a lesson: a line that a model wrote about failed calls and the call that worked.

The model may word what it was shown, and bring in nothing: programs, flags, hosts and paths must
stand in the calls or in the person's own words. What an output proposed, or what concerns other
hosts, installing from elsewhere, force, permissions or credentials, is for the person to decide."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from metaclaw.domain.episode import Episode
from metaclaw.privacy.capabilities import capabilities

MOST_CHARS: Final = 240
_QUOTED = re.compile(r"`([^`\n]+)`")
_TECHNICAL = re.compile(
    r"(?<![\w/.+-])(?:-{1,2}[A-Za-z][\w-]*|\+[a-z][\w.-]*|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
    r"|[\w.~-]*/[\w./~-]+|\w[\w-]*(?:\.[A-Za-z]\w*)+)"
)
_WORD = re.compile(r"[\w+./-]{3,}")
_RISKY = re.compile(
    r"(?<![\w-])(?:--?force\S*|-f|--hard|sudo|doas|chmod|chown|--no-verify|--insecure|-k|--yes|-y"
    r"|--privileged|strict-ssl|password|passwd|token|secret|credential\w*|api[_-]?key)(?![\w-])",
    re.IGNORECASE,
)


class LessonRuling(StrEnum):
    IN_FORCE = "in force"
    ASK = "ask"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class LessonReview:
    """What becomes of a lesson, and why."""

    ruling: LessonRuling
    reason: str


def review_lesson(line: str, episodes: Sequence[Episode]) -> LessonReview:
    """Whether a lesson may come into force, must wait for the person, or is refused."""
    calls = "\n".join(
        call.arguments.replace('\\"', '"')
        for episode in episodes
        for call in (episode.failed, episode.fix)
        if call is not None
    )
    said = "\n".join(episode.said for episode in episodes)
    if "\n" in line.strip() or len(line) > MOST_CHARS:
        return LessonReview(
            LessonRuling.REFUSE, f"it is not one line of at most {MOST_CHARS} characters"
        )
    named = [*_QUOTED.findall(line), *_TECHNICAL.findall(line)]
    if strange := [name for name in named if not _stands_in(name, f"{calls}\n{said}")]:
        return LessonReview(
            LessonRuling.REFUSE, f"{strange[0]} stands in no call and in nothing the person said"
        )
    if not _names_its_fix(line, episodes, said):
        return LessonReview(LessonRuling.REFUSE, "it names nothing of the call that worked")
    if borrowed := sorted({word for episode in episodes for word in episode.borrowed}):
        return LessonReview(LessonRuling.ASK, f"an output of a tool had named {borrowed[0]} before")
    return _review_risk(f"{line}\n{calls}", said)


def _review_risk(text: str, said: str) -> LessonReview:
    found = capabilities(text) - capabilities(said)
    risky = _RISKY.search(text)
    if found.hosts or found.credentials or found.pipes or found.commands:
        return LessonReview(LessonRuling.ASK, f"it concerns {found.words()}")
    if risky is not None and risky[0].lower() not in said.lower():
        return LessonReview(LessonRuling.ASK, f"it concerns {risky[0]}")
    return LessonReview(LessonRuling.IN_FORCE, "it names what failed and what worked")


def _stands_in(name: str, text: str) -> bool:
    """Whether each word of a name stands in the text."""
    low = text.lower()
    return all(word.strip("./").lower() in low for word in name.split())


def _names_its_fix(line: str, episodes: Sequence[Episode], said: str) -> bool:
    """Whether the line has a word of a call that worked, or of what the person said."""
    mine = {word.strip("./-").lower() for word in _WORD.findall(line)} - {""}
    for episode in episodes:
        fix = "" if episode.fix is None else episode.fix.arguments
        theirs = {word.strip("./-").lower() for word in _WORD.findall(f"{fix}\n{said}")}
        parts = {part for word in theirs for part in word.split("/")}
        if mine & (theirs | parts):
            return True
    return False
