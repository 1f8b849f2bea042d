"""What the person's next words say about the answer: something against it, do it again, take it back, thanks, or the next thing."""

import re
from dataclasses import dataclass

from metaclaw.outcome import phrases, words
from metaclaw.outcome.reading import Reading
from metaclaw.outcome.remarks import Remark, remarks_against

_CONTENT = re.compile(
    r" (?:that's|that is|exactly|just|precisely|it's|this is) (?:exactly |just |precisely )?what (?:i|we) "
    r"(?:wanted|needed|meant|asked for|was looking for|were looking for|had in mind|hoped for)(?: to \w+)?(?= )"
)
_STATE_NOW = re.compile(
    r"^ (?:\w+ )?now (?:the|it|it's|its|my|all|every|everything|everybody|nothing|there|they|we|i get|i have|none) "
)
_TOO = (" too ", " as well ", " also ", " auch ", " también ", " aussi ")
_GLAD = ("👍", "👌", "😍", "❤", "🎉", "👏", "🙏", "🙌", "💯", "😊", "✅", "🚀")
_QUOTE_CHARS = 120
_CLAUSE_WORDS = 3


@dataclass(frozen=True, slots=True)
class Reply:
    """The kinds of remark found, each with the words that show it."""

    corrections: tuple[Remark, ...] = ()
    redo: tuple[Remark, ...] = ()
    undo: str | None = None
    accepted: Remark | None = None
    goes_on: Remark | None = None
    excuses: str | None = None

    @property
    def is_negative(self) -> bool:
        """Whether anything in it speaks against the answer."""
        return bool(self.corrections or self.redo or self.undo)


def read_reply(reading: Reading) -> Reply:
    """Look at the person's next words, with the task and the answer in mind."""
    if not reading.has_said:
        return Reply()
    said = _about_the_answer(_CONTENT.sub(" perfect", reading.said))
    excuse = phrases.OWN_MISTAKE.find(said) or phrases.MANNERS.find(said)
    changed = phrases.CHANGED_MIND.find(said)
    glad = _gladness(reading.raw, said)
    begins_new = not said.strip() or (phrases.NEXT.opens(said) is not None and not _STATE_NOW.match(said))
    corrections: tuple[Remark, ...] = ()
    redo: tuple[Remark, ...] = ()
    undo = None
    if not excuse:
        corrections = remarks_against(reading, said, glad, begins_new=begins_new, has_changed=changed is not None)
        undo = None if begins_new or phrases.ABOUT_UNDO.find(said) else phrases.UNDO.find(said)
        redo = () if changed or corrections else _redo(reading, glad, begins_new=begins_new)
    if corrections or undo or redo:
        return Reply(corrections, redo, undo, excuses=excuse or changed)
    return Reply(accepted=glad, goes_on=_going_on(reading, changed), excuses=excuse or changed)


def _about_the_answer(said: str) -> str:
    """The words before the person turns to another topic."""
    cue = phrases.OTHER_TOPIC.find(said)
    return said if cue is None else said[: said.index(f" {cue} ") + 1]


def _gladness(raw: str, said: str) -> Remark | None:
    if found := phrases.PRAISE.find(said) or next((one for one in _GLAD if one in raw), None):
        return "praise", found
    if found := phrases.THANKS.find(said):
        return "thanks", found
    found = phrases.ASSENT.opens(said)
    return ("assent", found) if found else None


def _redo(reading: Reading, glad: Remark | None, *, begins_new: bool) -> tuple[Remark, ...]:
    """The same request again. Who is content, answers a question, or goes on to something else does not repeat themselves."""
    if (found := phrases.REDO.find(reading.said)) and (glad is None or glad[0] == "assent"):
        return (("words", found),)
    if glad or reading.asked_back or begins_new or phrases.NEXT.find(reading.said):
        return ()
    task, said = reading.step.task, reading.raw
    like = words.likeness(task, said)
    if like.says_the_same:
        return (("same", said[:_QUOTE_CHARS]),)
    if like.puts_it_differently:
        return (("differently", said[:_QUOTE_CHARS]),)
    return (("echo", said[:_QUOTE_CHARS]),) if words.echoes(task, said) else ()


def _going_on(reading: Reading, changed: str | None) -> Remark | None:
    """What they do next, where they say nothing against the answer."""
    said, raw = reading.said, reading.raw
    if changed:
        return "changed", changed
    if found := phrases.NEXT.opens(said) or phrases.NEXT.find(said):
        return "next", found
    if said.endswith(_TOO):
        return "next", raw[-_QUOTE_CHARS:]
    like = words.likeness(reading.step.task, raw)
    if like.is_about_another and like.kept >= 0.5:
        return "another", raw[:_QUOTE_CHARS]
    is_clause = len(said.split()) >= _CLAUSE_WORDS or (not said.isascii() and len(raw) >= 3 * _CLAUSE_WORDS)
    if is_clause and like.is_unrelated:
        return "elsewhere", raw[:_QUOTE_CHARS]
    return ("asks", raw[:_QUOTE_CHARS]) if is_clause and raw.endswith(("?", "？")) else None
