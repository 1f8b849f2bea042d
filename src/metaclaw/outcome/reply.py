"""What the person's next words say about the answer: something against it, do it again, take it back, thanks, or the next thing."""

import re
from dataclasses import dataclass, replace

from metaclaw.outcome import phrases, words
from metaclaw.outcome.forms import Form, form_of, is_about_it, shares_words, turns_to_new
from metaclaw.outcome.reading import Reading
from metaclaw.outcome.remarks import Remark, remarks_against

_CONTENT = re.compile(
    r" (?:that's|that is|exactly|just|precisely|it's|this is) (?:exactly |just |precisely )?what (?:i|we) "
    r"(?:wanted|needed|meant|asked for|was looking for|were looking for|had in mind|hoped for)(?: to \w+)?(?= )"
)
# With a stop behind it; "correct the date" is a wish, and "the correct value is 5" a correction.
_CONFIRMED = re.compile(
    r"\A\W{0,3}(?:(?:yes|ja|sí|oui|that's|that is|this is|it's|all|fully|entirely|quite|absolutely|das ist|alles)\W{1,2}){0,3}"
    r"(correct|korrekt|richtig|stimmt|correct[oa]|corretto|correto|exact|klopt|верно|правильно|正解|맞아요|정답)\s?(?:[!.。！]|\Z)",
    re.IGNORECASE,
)
# A statement of how it is; what is wished for, doubted or asked is none.
_IN_ORDER = re.compile(
    r" (?:correctly|properly|successfully|as (?:required|requested|expected|agreed|specified)"
    r"|(?:is|are|has|have|with|contains?) (?:a |an |the )?(?:correct|valid|compliant|proper)|(?:right|required) format\w*"
    r"|(?:follows?|meets?|matches|complies with) (?:\S+ ){0,3}"
    r"(?:conventions?|standards?|naming|requirements?|format|rules?|spec\w*))(?= )"
)
_OPEN = re.compile(
    r" (?:not|no|never|nor|\w+n't|but|except|however|although|make sure|ensure|should|must|please|check|verify|if|whether|needs?"
    r"|unless|wrong|missing|can|could|would|will|let's|instead|only|still|yet|how|why|what|want|wants|to be) "
)
_TOO = (" too ", " as well ", " also ", " auch ", " también ", " aussi ")
_GLAD = ("👍", "👌", "😍", "❤", "🎉", "👏", "🙏", "🙌", "💯", "😊", "✅", "🚀")
_QUOTE_CHARS = 120
_CLAUSE = re.compile(r"[^,.;:!?–—\n，。；：！？、]+[,.;:!?–—\n，。；：！？、]*")
_NOT_BEFORE = re.compile(
    r"(?: (?:don't|dont|do not|not|never|needn't|without|nothing|nicht|nichts|nie|kein\w*|no need|nada|sin|ne|n'|pas|rien|sans|não"
    r"|non|niet|niets|не|ничего)"
    r"(?: (?:to|have|has|need|needs|want|you|i|me|please|go|and|just|ever|mind|really|actually|be|bother|with|it|that|this|bitte"
    r"|mehr|es|das|alles|etwas|wieder|lo|la|les|le|tout|все|всё|это)){0,4}"
    r"|(?:不要|不用|不必|不需要|没必要|别|無需|无需)[^\s]{0,4}) ?\Z"
)
_NOT_BEHIND = re.compile(r" (?:nothing|rien|nada|nichts|niente|ничего)\b|\S{0,3}(?:ないで|なくて|지 ?마)")


@dataclass(frozen=True, slots=True)
class Reply:
    """The kinds of remark found, each with the words that show it."""

    corrections: tuple[Remark, ...] = ()
    redo: tuple[Remark, ...] = ()
    undo: str | None = None
    accepted: Remark | None = None
    next: Remark | None = None
    excuses: str | None = None

    @property
    def is_negative(self) -> bool:
        """Whether anything in it speaks against the answer."""
        return bool(self.corrections or self.redo or self.undo)


def read_reply(reading: Reading) -> Reply:
    """Look at the person's next words, with the task and the answer in mind."""
    if not reading.has_said:
        return Reply()
    reading = _without_negated_undo(reading)
    said = _about_the_answer(_CONTENT.sub(" perfect", reading.said))
    excuse = phrases.OWN_MISTAKE.find(said) or phrases.MANNERS.find(said)
    changed = phrases.CHANGED_MIND.find(said)
    glad = _gladness(reading, said)
    begins_new = turns_to_new(said)
    corrections: tuple[Remark, ...] = ()
    redo: tuple[Remark, ...] = ()
    undo = None
    if not excuse:
        corrections = remarks_against(reading, said, glad, begins_new=begins_new, has_changed=changed is not None)
        undo = None if begins_new or changed or phrases.ABOUT_UNDO.find(said) else phrases.UNDO.find(said)
        redo = () if changed or corrections else _redo(reading, glad, begins_new=begins_new)
    if corrections or undo or redo:
        return Reply(corrections, redo, undo, excuses=excuse)
    return Reply(accepted=glad, next=_going_on(reading, said, changed), excuses=excuse)


def _without_negated_undo(reading: Reading) -> Reading:
    """The reading without clauses that say not to undo anything: those speak neither for nor against the answer."""
    raw = reading.step.said_after or ""
    if len(raw) > words.MAX_CHARS:
        return reading
    kept = "".join(clause for clause in _CLAUSE.findall(raw) if not _is_negated_undo(words.spoken(clause)))
    return reading if len(kept) == len(raw) else Reading(replace(reading.step, said_after=kept), reading.later)


def _is_negated_undo(clause: str) -> bool:
    form = phrases.UNDO_FORMS.find(clause)
    found = form or phrases.UNDO.find(clause)
    if found is None:
        return False
    before, _, behind = clause.partition(found)
    if form and (form.startswith("n'") or before == " no "):
        return True
    return _NOT_BEFORE.search(before) is not None or _NOT_BEHIND.match(behind) is not None


def _about_the_answer(said: str) -> str:
    """The words before the person turns to another topic."""
    cue = phrases.OTHER_TOPIC.find(said)
    return said if cue is None else said[: said.index(f" {cue} ") + 1]


def _gladness(reading: Reading, said: str) -> Remark | None:
    raw = reading.raw
    if found := phrases.PRAISE.find(said) or next((one for one in _GLAD if one in raw), None):
        return "praise", found
    if confirmed := _CONFIRMED.match(raw):
        return "praise", confirmed[1]
    if (in_order := _IN_ORDER.search(said)) and not _OPEN.search(said) and form_of(reading, said) is Form.STATEMENT:
        return "praise", in_order[0].strip()
    if found := phrases.THANKS.find(said):
        return "thanks", found
    found = phrases.ASSENT.opens(said) or phrases.HARMLESS_DENIALS.find(said)
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


def _going_on(reading: Reading, said: str, changed: str | None) -> Remark | None:
    """What they do next, where no phrase speaks against the answer. What kind of sentence it is must do for the rest."""
    raw = reading.raw
    if changed:
        return "reply.changed", changed  # they want something else now: that says nothing about the answer
    if found := _next_cue(said):
        return "progress.next", found
    form, like = form_of(reading, said), words.likeness(reading.step.task, raw)
    match form:
        case Form.SCRAP:
            return None
        case Form.STATEMENT:
            return _of_statement(reading, said), raw[:_QUOTE_CHARS]
        case Form.QUESTION if phrases.WHYS.opens(said) and is_about_it(reading, said):
            return "reply.doubts", raw[:_QUOTE_CHARS]
        case Form.QUESTION if shares_words(reading, said):
            return "progress.asks", raw[:_QUOTE_CHARS]
    if like.is_about_another and like.kept >= 0.5:
        return "progress.another", raw[:_QUOTE_CHARS]
    return ("progress.request" if shares_words(reading, said) else "progress.elsewhere"), raw[:_QUOTE_CHARS]


def _next_cue(said: str) -> str | None:
    """A word that leads on at the beginning, or a phrase that does so anywhere."""
    if turns_to_new(said):
        return phrases.NEXT.opens(said) or phrases.OTHER_TOPIC.opens(said) or "another topic"
    found = phrases.NEXT.find(said)
    if found and (" " in found or not found.isascii()):
        return found
    return said.strip()[-_QUOTE_CHARS:] if said.endswith(_TOO) else None


def _of_statement(reading: Reading, said: str) -> str:
    if phrases.PLANS.find(said):
        return "progress.informs"
    return "reply.statement" if shares_words(reading, said) or phrases.POINTING.find(said) else "reply.aside"
