"""What a person wanted instead of an answer, taken from their correction, for later turns that ask the same.

A correction holds a reference answer where it gives the answer itself ("No, it must be 2051-03-07/nb", or the corrected text), not
where it only says what is wrong with the one that was given.
"""

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.step import Step
from metaclaw.learn.assessment import in_words, is_corrected
from metaclaw.learn.slow.edit_distance import similarity

_LOOK_EVERY_S: Final = 10.0
_MOST_CHARS: Final = 2_000
_FENCED: Final = re.compile(r"^[ \t]*(```|~~~)[^\n`]*\n(?P<text>.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_SAID: Final = re.compile(
    r"\b(?:(?:must|should|has to|ought to|needs to) (?:be|read|say|have been)|(?:the )?(?:right|correct) (?:answer|one|version)"
    r" (?:is|was|would be)|I (?:wanted|meant|want)|muss|sollte|richtig (?:ist|wäre))\s*:?\s+(?P<text>\S.*)\Z",
    re.IGNORECASE | re.DOTALL,
)
_QUOTED: Final = re.compile(r"[\"“„'`‘](?P<text>[^\"”“'`’]+)[\"”“'`’][.!]?\Z", re.DOTALL)
_TRAILING: Final = re.compile(r"[.!]?\s*(?:heißen|sein|lauten|please|bitte|,? not .*)?[.!]?\s*\Z", re.IGNORECASE | re.DOTALL)
_EXACT: Final = re.compile(r"(?=\S*[\d/_:.@#+=-])\S{2,}")
_ALIKE: Final = 0.5
_VERSION_ALIKE: Final = 0.6


def wanted_answer(step: Step) -> str | None:
    """The answer that the person wanted, where their correction gives it."""
    said = (step.said_after or "").strip()
    if not said or len(said) > _MOST_CHARS or not is_corrected(step):
        return None
    answer = in_words(step.answer, ()).strip()
    fenced = _FENCED.search(said)
    if fenced is not None:
        return _other(fenced["text"].strip(), answer, _VERSION_ALIKE)
    told = _SAID.search(said)
    if told is None:
        return _other(said, answer, _VERSION_ALIKE)
    quoted = _QUOTED.fullmatch(told["text"].strip())
    if quoted is not None:
        return quoted["text"].strip() or None
    text = _TRAILING.sub("", told["text"], count=1).strip()
    # "it must be in ISO format" says how, not what.
    return text if _EXACT.fullmatch(text) else _other(text, answer, _ALIKE)


class References:
    """What was wanted, by what was asked and by whom. Reads the failures that are on record; blocks."""

    def __init__(
        self,
        *,
        failures: Callable[[], Sequence[TurnId]],
        step: Callable[[TurnId], Step | None],
        is_before: Callable[[TurnId, TurnId], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._step = step
        self._is_before = is_before
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = -_LOOK_EVERY_S
        self._known: dict[TurnId, tuple[_Key, str] | None] = {}

    def of(self, step: Step) -> str | None:
        """The answer that the same person wanted when they asked the same before; the newest where there are several."""
        with self._lock:
            self._look()
            mine = _key(step)
            found = [(turn, known[1]) for turn, known in self._known.items() if known is not None and known[0] == mine]
        return next((text for turn, text in found if turn != step.turn and self._is_before(turn, step.turn)), None)

    def _look(self) -> None:
        if self._clock() - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = self._clock()
        self._known = {turn: self._known[turn] if turn in self._known else self._read(turn) for turn in self._failures()}

    def _read(self, turn: TurnId) -> "tuple[_Key, str] | None":
        step = self._step(turn)
        wanted = None if step is None else wanted_answer(step)
        return None if step is None or wanted is None else (_key(step), wanted)


_Key = tuple[str, str, str]


def _key(step: Step) -> _Key:
    return step.scope.user or "", step.scope.workspace or "", " ".join(step.task.casefold().split())


def _other(text: str, answer: str, least: float) -> str | None:
    """A text that is another version of the answer."""
    return text if text and text != answer and similarity(text[:_MOST_CHARS], answer[:_MOST_CHARS]) >= least else None
