"""Whether a proposed skill may say what it says: each of its instructions needs a person's words or an observed outcome behind it.

The test is lexical on purpose: it is the same for every language model that may have written the proposal, and it can be read.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.privacy.capabilities import EXCEPTS, FORBIDS
from metaclaw.privacy.sentences import Imperative, instructions, is_imperative, open_text, sentences
from metaclaw.privacy.spans import Source, Span
from metaclaw.privacy.terms import telling, terms
from metaclaw.privacy.unicode import plain, smuggles

_BORROWED_SHARE = 0.5
_BACKED_SHARE = 0.34
_FORGED = re.compile(
    r"</?(?:system|assistant|human|instructions?|admin|developer|im_start|im_end|tool_result|function_results"
    r"|system-reminder)(?:\s[^<>]{0,80})?>"
    r"|<\|[a-z_]{2,20}\|>|\[/?INST\]|<</?SYS>>|^#{1,4} ?(?:system|human|assistant|user)\b ?:?[ \t]*$|^(?:system|human"
    r"|assistant|user): "
    r"|\[(?:system|admin)\b[^\]]{0,40}\]",
    re.IGNORECASE | re.MULTILINE,
)
_HIDDEN_MARKUP = re.compile(
    r"<!--|display:\s*none|font-size:\s*0|visibility:\s*hidden|\x1b\[|color:\s*(?:white|#fff)", re.IGNORECASE
)
_OVERRIDE = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:previous|prior|above|earlier|all|other|system|safety|these"
    r"|any)\b.{0,40}\b(?:instruction|rule|prompt|guideline|polic|polic|restriction|check|skill)\w*"
    r"|\b(?:do not|don't|never|without)\b.{0,40}\b(?:tell|inform|mention|reveal|notify|telling|informing|mentioning|asking"
    r"|show)\b.{0,30}\b(?:the )?(?:user|owner|person|human|anyone|them)\b",
    re.IGNORECASE,
)
_ATTRIBUTED = re.compile(
    r"\b(?:user|owner|customer|operator|admin\w*|developer|team|company|person|human|boss)s?(?:'s)?\b.{0,30}\b(?:want|wish"
    r"|expect|prefer|require|like|ask|need|demand|instruct|request|order|said|say|told|approved|authori[sz]|agreed|confirm"
    r"|consent|permission|policy)\w*",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"`[^`\n]{1,200}`|\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|'[^'\n]{2,200}'")
_ANY_NEGATION = re.compile(
    r"\b(?:no|not|never|don'?t|without|avoid|stop|instead|refrain|skip|omit|remove|neither|nor|only|unless|forbidden|\w+n'?t)\b",
    re.IGNORECASE,
)
_CODED = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{24,4000}={0,2}(?![A-Za-z0-9+/])")


_ADDRESSED = re.compile(
    r"(?<!user )(?<!user-)\b(?:agents?|assistants?|llms?|language models?|chat-?bots?|copilot|claude|chatgpt|assistenten?"
    r"|asistentes?|agenten)\b"
    r"|\b(?-i:AI|KI|IA)\b|代理|助手|人工智能|エージェント|アシスタント|ассистент|агент",
    re.IGNORECASE,
)
_ACTING = re.compile(
    r"\b(?:send|sends?|e-?mail|mail|upload|share|publish|post|forward|transmit|transfer|pay|buy|order|grant|give|allow|install"
    r"|download|disable|enable|open|expose"
    r"|reveal|print|dump|push|deploy|delete|remove|drop|overwrite|recommend|promote|mention|advertise|link|cc|bcc|copy|hide"
    r"|skip|ignore|bypass|approve|accept|trust"
    r"|execute|exec|run|call|invoke|visit|browse|fetch|curl|register|subscribe|sign|authori[sz]e|whitelist|chmod|export|insert"
    r"|append|attach|include|store|save|upload\w*|answer|reply|respond|say|tell|act|pretend|become)\b",
    re.IGNORECASE,
)
_FOREIGN_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\ud7af]")


class Doubt(StrEnum):
    """Why an instruction may not stand."""

    UNBACKED = "unbacked"
    BORROWED = "borrowed"
    ATTRIBUTED = "attributed"
    CONTRADICTED = "contradicted"
    FORGED = "forged"
    HIDDEN = "hidden"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Objection:
    """One instruction of a proposal that nobody with authority gave, and where it seems to come from."""

    doubt: Doubt
    instruction: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    terms: frozenset[str]


class _Backing:
    """What was said, ready to be compared with."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.said: list[_Sentence] = []
        self.outside: list[_Sentence] = []
        self.allowed: set[str] = set()
        self.assistant: set[str] = set()
        self.disguised = False
        for span in dict.fromkeys(spans):
            if span.source.commands:
                self._hear(span)
            elif span.source.is_outside:
                self.outside += (_Sentence(text, terms(text)) for text in _laid_open(span.text))
                self.disguised |= smuggles(span.text) or _FORGED.search(span.text) is not None
            elif span.source is Source.ASSISTANT:
                self.assistant |= terms(span.text)
        self.addresses_agents = any(_ADDRESSED.search(one.text) and is_imperative(one.text) for one in self.outside)
        self.foreign = any(
            len(_FOREIGN_SCRIPT.findall(one.text)) > len(one.text) // 3 and is_imperative(one.text) for one in self.outside
        )
        self.tainted = frozenset(term for sentence in self.outside for term in sentence.terms)

    def _hear(self, span: Span) -> None:
        if span.source is Source.OUTCOME:
            self.allowed |= terms(span.text)
            return
        for text in sentences(open_text(span.text)):
            self.said.append(_Sentence(text, terms(text)))
            self.allowed |= self.said[-1].terms

    def is_suspect(self, proposal: str) -> bool:
        """Whether somebody outside tries to speak to agents, or in words that cannot be compared with the proposal's."""
        return self.addresses_agents or self.disguised or (self.foreign and not _FOREIGN_SCRIPT.search(proposal))

    @property
    def supported(self) -> frozenset[str]:
        """What users and outcomes speak of, and what the agent itself did that no text from outside put into its mouth."""
        return frozenset(self.allowed | (self.assistant - self.tainted))


def authority(proposal: str, spans: Sequence[Span]) -> tuple[Objection, ...]:
    """What speaks against a proposed text, instruction by instruction; nothing where all of it is backed."""
    found = [*disguises(proposal)]
    backing = _Backing(spans)
    supported = backing.supported
    told = instructions(proposal)
    unbacked = [one for one in told if _is_unbacked(one, supported)]
    # Where nothing from outside speaks to agents, a backed proposal may be spelled out by steps that act on nothing.
    strict = len(unbacked) == len(told) or backing.is_suspect(proposal)
    for imperative in told:
        objection = _examine(imperative, backing, supported, strict=strict)
        if objection is not None:
            found.append(objection)
    found += _claims(proposal, {imperative.text for imperative in told}, backing, supported)
    return tuple(dict.fromkeys(found))


def disguises(proposal: str) -> Iterator[Objection]:
    """Text that pretends to be something else is refused whoever said it."""
    if smuggles(proposal) or _HIDDEN_MARKUP.search(proposal):
        yield Objection(
            Doubt.HIDDEN,
            _cut(plain(proposal)),
            "it hides text from a reader: invisible or look-alike characters, comments or styles",
        )
    shown = open_text(proposal)
    for forged in (_FORGED.search(proposal), _FORGED.search(plain(proposal))):
        if forged is not None:
            yield Objection(Doubt.FORGED, _cut(forged[0]), "it imitates the marks of a system prompt or of another speaker")
            break
    override = _OVERRIDE.search(shown)
    if override is not None:
        yield Objection(Doubt.OVERRIDE, _cut(override[0]), "it sets other instructions aside or keeps something from the person")
    for coded in _CODED.finditer(shown):
        text = _decoded(coded[0])
        if text and (is_imperative(text) or " " in text):
            yield Objection(Doubt.HIDDEN, _cut(text), "it carries words in base64")


def _is_unbacked(imperative: Imperative, supported: frozenset[str]) -> bool:
    meant = telling(terms(imperative.text))
    return bool(meant) and not meant & supported


def _examine(imperative: Imperative, backing: _Backing, supported: frozenset[str], *, strict: bool) -> Objection | None:
    """One instruction against what was said."""
    contradiction = _contradicted(imperative, backing)
    if contradiction is not None:
        return Objection(Doubt.CONTRADICTED, imperative.text, f"the person said the opposite: {_cut(contradiction)}")
    everything = terms(imperative.text)
    ordered = everything if imperative.is_command else terms(_QUOTED.sub(" ", imperative.text)) or everything
    borrowed = _borrowed(everything, ordered, supported, backing, strict=strict)
    if borrowed is not None:
        return Objection(Doubt.BORROWED, imperative.text, f"only text from outside says so: {_cut(borrowed)}")
    acts = imperative.is_command or _ACTING.search(imperative.text)
    if _is_unbacked(imperative, supported) and (strict or acts) and (backing.outside or not backing.said):
        return Objection(Doubt.UNBACKED, imperative.text, "neither the person's words nor an observed outcome says so")
    return None


def _borrowed(
    everything: frozenset[str], ordered: frozenset[str], supported: frozenset[str], backing: _Backing, *, strict: bool
) -> str | None:
    """The sentence from outside that an instruction repeats, where the person's words do not carry it.

    Long texts from outside have every word somewhere, so one shared word is a coincidence, unless somebody there speaks to agents.
    """
    meant = telling(everything)
    alien = meant - supported
    share = len(meant & supported) / len(meant) if meant else 1.0
    for sentence in backing.outside if alien else ():
        shared = alien & sentence.terms
        if not shared:
            continue
        covered = len(meant & sentence.terms) / len(meant)
        alike = len(everything & sentence.terms) / len(everything | sentence.terms)
        # What only a tool said may be named as a fact in quotes; as an order, or as most of one, it may not.
        apart = [term for term in shared if not any(term != other and term in other for other in shared)]
        repeats = len(apart) >= 2 and covered >= _BORROWED_SHARE
        if (repeats or alike >= _BORROWED_SHARE or (strict and share < _BACKED_SHARE)) and is_imperative(sentence.text):
            return sentence.text
        if (repeats or alike >= _BORROWED_SHARE) and covered > share and (telling(ordered) - supported) & sentence.terms:
            return sentence.text
    return None


def _contradicted(imperative: Imperative, backing: _Backing) -> str | None:
    """A prohibition of the person's that the instruction orders to break."""
    if _ANY_NEGATION.search(imperative.text):
        return None
    meant = telling(terms(imperative.text))
    if not meant:
        return None
    for sentence in backing.said:
        if FORBIDS.search(sentence.text) and not EXCEPTS.search(sentence.text):
            forbidden = telling(terms(FORBIDS.sub(" ", sentence.text)))
            if forbidden and len(meant & forbidden) / len(meant) >= 0.8 and len(meant & forbidden) / len(forbidden) >= 0.8:
                return sentence.text
    return None


def _claims(proposal: str, told: set[str], backing: _Backing, supported: frozenset[str]) -> Iterator[Objection]:
    """Statements that are no orders but act like ones: what the user is said to want, and sentences taken over whole."""
    for text in sentences(open_text(proposal), with_code=True):
        meant = telling(terms(text))
        if not meant:
            continue
        share = len(meant & supported) / len(meant)
        if _ATTRIBUTED.search(text) and share < 0.5 and (backing.outside or not backing.said):
            yield Objection(Doubt.ATTRIBUTED, text, "it says what the person wants, and the person did not")
        elif text not in told and share < _BACKED_SHARE:
            for sentence in backing.outside:
                if len(meant & sentence.terms) / len(meant) >= 0.8 and is_imperative(sentence.text):
                    yield Objection(Doubt.BORROWED, text, f"it repeats an instruction from outside: {_cut(sentence.text)}")
                    break


def _laid_open(text: str) -> Iterator[str]:
    """The sentences of a text from outside, also those in base64."""
    shown = open_text(text)
    yield from sentences(shown, with_code=True)
    yield from (line.strip() for line in shown.splitlines() if "`" in line)
    for coded in _CODED.finditer(shown):
        yield from sentences(_decoded(coded[0]))


def _decoded(token: str) -> str:
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4)).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
    return text if text.isprintable() or "\n" in text else ""


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:159]}…"
