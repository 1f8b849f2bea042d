"""The user's reply: what it says about the answer (correction, repeated request, undo, acceptance)
or what comes next.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from metaclaw.outcome import phrases
from metaclaw.outcome.reading import StepReading


class SentenceKind(StrEnum):
    QUESTION = "question"
    REQUEST = "request"
    STATEMENT = "statement"
    SCRAP = "scrap"


_OPENERS = re.compile(
    r"^(?:"
    r" (?:ok|okay|alright|great|good|nice|cool|and|then|now|so|please|also|well|hm|hmm|lol|haha|bitte|dann|jetzt|und|gut"
    r"|ahora|bueno|y|et|alors|maintenant|bon)){1,4}(?= )"
)
_STATE_NOW = re.compile(
    r"^ (?:\w{1,20} )?(?:now|jetzt|ahora|maintenant)"
    r" (?:the|it|it's|its|my|all|every|everything|everybody|nothing|there|they|we"
    r"|none|i get|i have|ist|sind|geht|das|der|die|alles|el|la|los|todo|le|les|tout) "
)
_CLAUSE_WORDS = 3
_SHORT = 3  # a reply of at most 3 content words is about the answer


def sentence_kind(reading: StepReading, text: str) -> SentenceKind:
    raw = reading.raw
    if not is_clause(text):
        return SentenceKind.SCRAP
    if phrases.REQUESTS.opens(text) or phrases.POLITE_ENDS.closes(text):
        return SentenceKind.REQUEST
    if raw.endswith(("?", "？")) or phrases.QUESTIONS.opens(text):
        return SentenceKind.QUESTION
    bare = _OPENERS.sub("", text)
    if phrases.IMPERATIVES.opens(bare) or phrases.REQUESTS.opens(bare):
        return SentenceKind.REQUEST
    return SentenceKind.STATEMENT


def is_clause(said: str) -> bool:
    """Whether there are enough words for a sentence."""
    text = said.strip()
    return len(text.split()) >= _CLAUSE_WORDS or (not text.isascii() and len(text) > _CLAUSE_WORDS)


def turns_to_new(text: str) -> bool:
    """Whether the first words introduce something new. "Now the page is blank" does not."""
    if not text.strip():
        return True
    return (
        phrases.NEXT.opens(text) is not None
        and not _STATE_NOW.match(text)
        and not phrases.WHYS.opens(text)
    )


def is_about_it(reading: StepReading, text: str) -> bool:
    """Whether the reply is about the answer: it points at it, shares words with it or the task, or
    is very short.
    """
    return (
        phrases.POINTING.find(text) is not None
        or len(phrases.content_words(text)) <= _SHORT
        or shares_words(reading, text)
    )


def shares_words(reading: StepReading, said: str) -> bool:
    """Whether the reply shares words with the answer or the task."""
    spoken, texts = phrases.content_words(said), (reading.step.task, reading.answer)
    return any(spoken & phrases.content_words(text[: phrases.MAX_CHARS]) for text in texts)


Remark = tuple[str, str]
"""The kind of a remark and the words that show it."""

_BREAK = r"(?:^|[,.;!:(–—-]|\s-)\s*"
_SPANISH_NO = r"no(?=\s+(?:en|el|la|los|las|un|una|al|del|de|dos|tres|cuatro|\d|para|con)\b)"
_CONTRAST = re.compile(
    rf"{_BREAK}(?:not|nicht|pas|niet|{_SPANISH_NO})\s+(?!bad|now|yet|sure|really|only|just|quite|exactly|that|problem|worries|need|thanks"
    r"|hay|merci|danke|schlecht|mal|more|questions|rush|doubt|wonder|harm|complaints?|sé|if|to"
    r" mention)[\w'/@.]{2,}"
    r"|\bnot\s+(?!bad|now|yet|sure|really|only|just|quite|exactly|at"
    r" all)[\w'/@.-]{1,60}\s{0,4}[.!]{0,4}$"
    r"|\bnicht\b.{1,40}\bsondern\b|,\s*no\s+(?!problem|worries|thanks|need|rush|doubt|issues?)\w{1,40}[.!]{0,4}\Z"
    r"|不是.{1,16}[,，]?\s?是|而是|[，,]不要",
    re.IGNORECASE | re.MULTILINE,
)
_MOCK_THANKS = re.compile(
    r" (?:thanks|thank you|thx|danke|gracias|merci)(?: so much| a lot| very much)?"
    r" (?:for|dafür|por|pour) "
    r"(?:delet|remov|break|mix|ruin|destroy|kill|los|wreck|overwrit|wip|mess|eras|nuk|corrupt|spam|forget|ignor|tell)"
    r"| oh (?:perfect|great|brilliant|wonderful|fantastic) (?:just|another|now|so|because) | love"
    r" (?:it )?(?:when|how) "
)
_NO_CHANGE = re.compile(
    r"^ (?:but |it |this |that |it's |is |and ){0,4}still"
    r" (?!works|good|great|fine|love|like|nice)\w"
    r"| (?:not|isn't) any \w{1,20}er | nothing \w{1,20} (?:anymore|any more|now) | no longer "
    r"| (?:is|are) (?:all )?(?:gone|blank|broken|empty|dead) "
)
_SENTENCE_END = re.compile(r"[.!?。！？]\s+\S")
_SHOUT = re.compile(r"\b[A-ZÄÖÜÉÈÑ]{3,}\b")
_WORD = re.compile(r"\w+")
_ABBREVIATION = re.compile(
    r"API|ASCII|AWS|CLI|CPU|CSS|CSV|DNS|EOF|FAQ|GPU|HTML|HTTPS?|IDE|ISO|JPG|JSON|JWT|LLM|PDF|PNG|POST|RAM|README|REST|SDK|SQL|SSH|SSL"
    r"|SVG|TCP|TLS|TODO|TSV|TXT|UDP|URL|USB|UTC|UTF|UUID|VPN|XML|YAML|ZIP"
)
"""Usually written in capitals."""
_SAD = ("👎", "😡", "🤦", "😠", "🙄", "😤", "❌")
_MAX_CHARS = 600


def remarks_against(
    reading: StepReading, text: str, glad: Remark | None, *, begins_new: bool, has_changed: bool
) -> tuple[Remark, ...]:
    """All remarks against the answer in `text`, each kind once. `glad` is the praise or thanks in
    it; `begins_new`: its first words introduce something new; `has_changed`: the user changed their
    mind."""
    if phrases.HARMLESS_DENIALS.find(text) and not phrases.BUTS.find(text):
        return ()
    outright = list(_outright(reading, text))
    if has_changed and not outright:
        return ()
    mockery = _match(_MOCK_THANKS, text)
    found = [*outright, ("sarcasm", mockery)] if mockery else [*outright]
    if not begins_new:
        found += _statements(reading, text, glad)
        found += () if reading.asked_back else _denials(reading, text)
    return tuple({kind: (kind, quote) for kind, quote in reversed(found)}.values())


def _outright(reading: StepReading, text: str) -> Iterator[Remark]:
    """Reproaches, resignation and shouting, which need no context."""
    raw = reading.raw
    if quote := phrases.REPROACHES.find(text):
        yield "reproach", quote
    if quote := phrases.GIVES_UP.find(text):
        yield "gives_up", quote
    if quote := _shouted(raw, reading.step.task) or next(
        (emoji for emoji in _SAD if emoji in raw), None
    ):
        yield "shout", quote


def _statements(reading: StepReading, text: str, glad: Remark | None) -> list[Remark]:
    """Corrections and complaints. The same words count less in a question or about something
    else.
    """
    asks = _asks(reading, text)
    quote = phrases.CORRECTIONS.find(text)
    complaint = phrases.COMPLAINTS.find(text) or _match(_NO_CHANGE, text)
    found: list[Remark] = []
    if asks and (leading := phrases.LEADING_QUESTIONS.find(text)):
        found.append(("leading", leading))
    elif either := quote or complaint:
        if asks or not is_about_it(reading, text):
            found.append(("asked", either))
        else:
            found += [("plain", quote)] if quote else []
            found += [("complaint", complaint)] if complaint else []
            found += [("sarcasm", either)] if glad and glad[0] != "thanks" else []
    if not asks:
        found += _reservations(reading, text, glad)
    is_answer = reading.asked_back and phrases.DENIALS.opens(text) is not None
    return found or ([] if is_answer else _contradictions(reading, text, glad))


def _contradictions(reading: StepReading, text: str, glad: Remark | None) -> list[Remark]:
    """A statement that denies something, in words of the answer or the task."""
    if (
        glad
        or sentence_kind(reading, text) is not SentenceKind.STATEMENT
        or not shares_words(reading, text)
    ):
        return []
    quote = phrases.NEGATIONS.find(text)
    return [("denies", quote)] if quote else []


def _reservations(reading: StepReading, text: str, glad: Remark | None) -> list[Remark]:
    if glad and (quote := phrases.BUTS.find(text)):
        return [("but", quote)]
    if quote := phrases.NEARLY.find(text):
        return [("nearly", quote)]
    if glad and glad[0] == "praise":
        return []
    quote = phrases.MISGIVINGS.find(text)
    # A requirement in a request, or about something else, is the next task.
    if (
        not quote
        and sentence_kind(reading, text) is SentenceKind.STATEMENT
        and shares_words(reading, text)
    ):
        quote = phrases.REQUIREMENTS.find(text)
    return [("mild", quote)] if quote else []


def _denials(reading: StepReading, text: str) -> Iterator[Remark]:
    """A "no", or a contrast of two things."""
    if quote := phrases.DENIALS.opens(text):
        yield "no", quote
    is_whole = len(text) + 4 > len(reading.said)
    if is_whole and (quote := _match(_CONTRAST, reading.raw[:_MAX_CHARS])):
        yield "contrast", quote


def _asks(reading: StepReading, text: str) -> bool:
    """Whether the reply is a single question."""
    raw = reading.raw
    if not raw.endswith(("?", "？")) or _SENTENCE_END.search(raw[:-1][:_MAX_CHARS]):
        return False
    return (
        phrases.QUESTIONS.find(text) is not None or phrases.LEADING_QUESTIONS.find(text) is not None
    )


def _match(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[0].strip(" ,.;:!-") if found else None


def _shouted(raw: str, task: str) -> str | None:
    """A word of the task that is in capitals only in the reply, or a reply that is all in
    capitals.
    """
    if raw.isupper():
        return raw[:60] if len(raw) > 12 and not task.isupper() else None
    loud = [word for word in _SHOUT.findall(raw[:200]) if not _ABBREVIATION.fullmatch(word)]
    words = frozenset(_WORD.findall(task)) if loud else frozenset()
    quiet = {word.lower() for word in words}
    return next((word for word in loud if word.lower() in quiet and word not in words), None)


_CONTENT = re.compile(
    r" (?:that's|that is|exactly|just|precisely|it's|this is) (?:exactly |just |precisely )?what"
    r" (?:i|we) "
    r"(?:wanted|needed|meant|asked for|was looking for|were looking for|had in mind|hoped for)(?:"
    r" to \w+)?(?= )"
)
# Only before a full stop: "correct the date" is a request, and "the correct value is 5" a
# correction.
_CONFIRMED = re.compile(
    r"\A\W{0,3}(?:(?:yes|ja|sí|oui|that's|that is|this"
    r" is|it's|all|fully|entirely|quite|absolutely|das ist|alles)\W{1,2}){0,3}"
    r"(correct|korrekt|richtig|stimmt|correct[oa]|corretto|correto|exact|klopt|верно|правильно|正解|맞아요|정답)\s?(?:[!.。"
    r"！]|\Z)",
    re.IGNORECASE,
)
# A statement; not a request, doubt or question.
_IN_ORDER = re.compile(
    r" (?:correctly|properly|successfully|as (?:required|requested|expected|agreed|specified)"
    r"|(?:is|are|has|have|with|contains?) (?:a |an |the"
    r" )?(?:correct|valid|compliant|proper)|(?:right|required) format\w*"
    r"|(?:follows?|meets?|matches|complies with) (?:\S+ ){0,3}"
    r"(?:conventions?|standards?|naming|requirements?|format|rules?|spec\w*))(?= )"
)
_OPEN = re.compile(
    r" (?:not|no|never|nor|\w+n't|but|except|however|although|make"
    r" sure|ensure|should|must|please|check|verify|if|whether|needs?"
    r"|unless|wrong|missing|can|could|would|will|let's|instead|only|still|yet|how|why|what|want|wants|to"
    r" be) "
)
_TOO = (" too ", " as well ", " also ", " auch ", " también ", " aussi ")
_GLAD = ("👍", "👌", "😍", "❤", "🎉", "👏", "🙏", "🙌", "💯", "😊", "✅", "🚀")
_QUOTE_CHARS = 120
_CLAUSE = re.compile(r"[^,.;:!?–—\n，。；：！？、]+[,.;:!?–—\n，。；：！？、]*")
_NOT_BEFORE = re.compile(
    r"(?: (?:don't|dont|do not|not|never|needn't|without|nothing|nicht|nichts|nie|kein\w*|no"
    r" need|nada|sin|ne|n'|pas|rien|sans|não"
    r"|non|niet|niets|не|ничего)"
    r"(?: (?:to|have|has|need|needs|want|you|i|me|please|go|and|just|ever|mind|really|actually|be|bother|with|it|that|this|bitte"
    r"|mehr|es|das|alles|etwas|wieder|lo|la|les|le|tout|все|всё|это)){0,4}"
    r"|(?:不要|不用|不必|不需要|没必要|别|無需|无需)[^\s]{0,4}) ?\Z"
)
_NOT_BEHIND = re.compile(
    r" (?:nothing|rien|nada|nichts|niente|ничего)\b|\S{0,3}(?:ないで|なくて|지 ?마)"
)


@dataclass(frozen=True, slots=True)
class UserReply:
    """The remarks found in a reply."""

    corrections: tuple[Remark, ...] = ()
    redo: tuple[Remark, ...] = ()
    undo: str | None = None
    accepted: Remark | None = None
    next: Remark | None = None
    excuses: str | None = None

    @property
    def is_negative(self) -> bool:
        """Whether any remark is against the answer."""
        return bool(self.corrections or self.redo or self.undo)


def read_reply(reading: StepReading) -> UserReply:
    """Read the user's next message, given the task and the answer."""
    if not reading.has_said:
        return UserReply()
    reading = _without_negated_undo(reading)
    said = _CONTENT.sub(" perfect", reading.said)
    if cue := phrases.OTHER_TOPIC.find(said):
        said = said[
            : said.index(f" {cue} ") + 1
        ]  # only the words before the cue are about the answer
    excuse = phrases.OWN_MISTAKE.find(said) or phrases.MANNERS.find(said)
    changed = phrases.CHANGED_MIND.find(said)
    glad = _gladness(reading, said)
    begins_new = turns_to_new(said)
    corrections, redo, undo = tuple[Remark, ...](), tuple[Remark, ...](), None
    if not excuse:
        corrections = remarks_against(
            reading, said, glad, begins_new=begins_new, has_changed=changed is not None
        )
        undo = (
            None
            if begins_new or changed or phrases.ABOUT_UNDO.find(said)
            else phrases.UNDO.find(said)
        )
        redo = () if changed or corrections else _redo(reading, glad, begins_new=begins_new)
    order = None if changed else phrases.RULES.find(said)
    if order and not excuse and (corrections or undo or redo or _blames(reading, said)):
        corrections = (*corrections, ("rule", order))
    if corrections or undo or redo:
        return UserReply(corrections, redo, undo, excuses=excuse)
    going_on = ("reply.rule", order) if order else _going_on(reading, said, changed)
    return UserReply(accepted=glad, next=going_on, excuses=excuse)


def _blames(reading: StepReading, text: str) -> bool:
    """Whether a rule for the future says that this answer broke it: "next time …", or "never …"
    about what the answer did.
    """
    if phrases.RULES_AFTER_FAULT.find(text):
        return True
    did = phrases.content_words(reading.answer[: phrases.MAX_CHARS])
    return phrases.NEGATIONS.find(text) is not None and bool(phrases.content_words(text) & did)


def _without_negated_undo(reading: StepReading) -> StepReading:
    """The reading without clauses such as "don't undo it", which are neither for nor against the
    answer.
    """
    raw = reading.step.said_after or ""
    if len(raw) > phrases.MAX_CHARS:
        return reading
    kept = "".join(
        clause for clause in _CLAUSE.findall(raw) if not _is_negated_undo(phrases.spoken(clause))
    )
    return (
        reading
        if len(kept) == len(raw)
        else StepReading(replace(reading.step, said_after=kept), reading.later)
    )


def _is_negated_undo(clause: str) -> bool:
    form = phrases.UNDO_FORMS.find(clause)
    found = form or phrases.UNDO.find(clause)
    if found is None:
        return False
    before, _, behind = clause.partition(found)
    if form and (form.startswith("n'") or before == " no "):
        return True
    return _NOT_BEFORE.search(before) is not None or _NOT_BEHIND.match(behind) is not None


def _gladness(reading: StepReading, text: str) -> Remark | None:
    raw = reading.raw
    if found := phrases.PRAISE.find(text) or next((emoji for emoji in _GLAD if emoji in raw), None):
        return "praise", found
    if confirmed := _CONFIRMED.match(raw):
        return "praise", confirmed[1]
    if (
        (in_order := _IN_ORDER.search(text))
        and not _OPEN.search(text)
        and sentence_kind(reading, text) is SentenceKind.STATEMENT
    ):
        return "praise", in_order[0].strip()
    if found := phrases.THANKS.find(text):
        return "thanks", found
    found = phrases.ASSENT.opens(text) or phrases.HARMLESS_DENIALS.find(text)
    return ("assent", found) if found else None


def _redo(reading: StepReading, glad: Remark | None, *, begins_new: bool) -> tuple[Remark, ...]:
    """A repeated request, unless the user is content, answers a question or goes on to something
    else.
    """
    if (found := phrases.REDO.find(reading.said)) and (glad is None or glad[0] == "assent"):
        return (("words", found),)
    if glad or reading.asked_back or begins_new or phrases.NEXT.find(reading.said):
        return ()
    task, said = reading.step.task, reading.raw
    like = phrases.likeness(task, said)
    if like.says_the_same:
        return (("same", said[:_QUOTE_CHARS]),)
    if like.puts_it_differently:
        return (("differently", said[:_QUOTE_CHARS]),)
    return (("echo", said[:_QUOTE_CHARS]),) if phrases.echoes(task, said) else ()


def _going_on(reading: StepReading, text: str, changed: str | None) -> Remark | None:
    """What the user does next, if no phrase is against the answer."""
    raw = reading.raw
    if changed:
        return "reply.changed", changed  # a changed mind says nothing about the answer
    if found := _next_cue(text):
        return "progress.next", found
    form, like = sentence_kind(reading, text), phrases.likeness(reading.step.task, raw)
    match form:
        case SentenceKind.SCRAP:
            return None
        case SentenceKind.STATEMENT if phrases.PLANS.find(text):
            return "progress.informs", raw[:_QUOTE_CHARS]
        case SentenceKind.STATEMENT:
            is_about = shares_words(reading, text) or phrases.POINTING.find(text)
            return ("reply.statement" if is_about else "reply.aside"), raw[:_QUOTE_CHARS]
        case SentenceKind.QUESTION if phrases.WHYS.opens(text) and is_about_it(reading, text):
            return "reply.doubts", raw[:_QUOTE_CHARS]
        case SentenceKind.QUESTION if shares_words(reading, text):
            return "progress.asks", raw[:_QUOTE_CHARS]
    if like.is_about_another and like.kept >= 0.5:
        return "progress.another", raw[:_QUOTE_CHARS]
    return ("progress.request" if shares_words(reading, text) else "progress.elsewhere"), raw[
        :_QUOTE_CHARS
    ]


def _next_cue(text: str) -> str | None:
    """A word at the beginning, or a phrase anywhere, that introduces something new."""
    if turns_to_new(text):
        return phrases.NEXT.opens(text) or phrases.OTHER_TOPIC.opens(text) or "another topic"
    found = phrases.NEXT.find(text)
    if found and (" " in found or not found.isascii()):
        return found
    return text.strip()[-_QUOTE_CHARS:] if text.endswith(_TOO) else None
