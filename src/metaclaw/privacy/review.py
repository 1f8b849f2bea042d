"""Review of proposed skills and rules: a user's own words or an observed outcome must support each
instruction.

`review_skill` examines a proposed skill; `hidden_text` and `new_capabilities` examine a rule that a
model derived from a user's message. They compare words, not meanings: the result needs no language
model, and a person can understand it."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from metaclaw.domain.skill import Skill
from metaclaw.privacy.capabilities import (
    EXCEPTS,
    FORBIDS,
    Capabilities,
    capabilities,
    combined_capabilities,
    skill_capabilities,
    skill_text,
)
from metaclaw.privacy.provenance import Passage, PassageSource, Workspace, workspace_of
from metaclaw.privacy.redaction import Redaction, Redactor
from metaclaw.text import (
    Imperative,
    hides_characters,
    hides_text,
    instructions,
    is_imperative,
    sentence_terms,
    specific_terms,
    split_sentences,
    visible_text,
    without_hidden_characters,
)

_BORROWED_SHARE = 0.5
_BACKED_SHARE = 0.34
_FORGED = re.compile(
    r"</?(?:system|assistant|human|instructions?|admin|developer|im_start|im_end|tool_result|function_results"
    r"|system-reminder)(?:\s[^<>]{0,80})?>"
    r"|<\|[a-z_]{2,20}\|>|\[/?INST\]|<</?SYS>>|^#{1,4} ?(?:system|human|assistant|user)\b ?:?["
    r" \t]*$|^(?:system|human"
    r"|assistant|user): |\[(?:system|admin)\b[^\]]{0,40}\]",
    re.IGNORECASE | re.MULTILINE,
)
_HIDDEN_MARKUP = re.compile(
    r"<!--|display:\s*none|font-size:\s*0|visibility:\s*hidden|\x1b\[|color:\s*(?:white|#fff)",
    re.IGNORECASE,
)
_OVERRIDE = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:previous|prior|above|earlier|all|other|system|safety|these"
    r"|any)\b.{0,40}\b(?:instruction|rule|prompt|guideline|polic|polic|restriction|check|skill)\w*"
    r"|\b(?:do"
    r" not|don't|never|without)\b.{0,40}\b(?:tell|inform|mention|reveal|notify|telling|informing|mentioning|asking"
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
    r"(?<!user )(?<!user-)\b(?:agents?|assistants?|llms?|language"
    r" models?|chat-?bots?|copilot|claude|chatgpt|assistenten?"
    r"|asistentes?|agenten)\b|\b(?-i:AI|KI|IA)\b|代理|助手|人工智能|エージェント|アシスタント|ассистент|агент",
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
    """Why an instruction is refused."""

    UNBACKED = "unbacked"
    BORROWED = "borrowed"
    ATTRIBUTED = "attributed"
    CONTRADICTED = "contradicted"
    FORGED = "forged"
    HIDDEN = "hidden"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class AuthorityObjection:
    """An instruction of a proposal that no source with authority gave, and where it seems to come
    from.
    """

    doubt: Doubt
    instruction: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    terms: frozenset[str]


class _Backing:
    """The passages of the supporting steps, prepared for comparison."""

    def __init__(self, spans: Iterable[Passage]) -> None:
        self.said: list[_Sentence] = []
        self.outside: list[_Sentence] = []
        self.allowed: set[str] = set()
        self.assistant: set[str] = set()
        self.disguised = False
        for span in dict.fromkeys(spans):
            if span.source.commands:
                self._add(span)
            elif span.source.is_outside:
                self.outside += (
                    _Sentence(text, sentence_terms(text))
                    for text in _sentences_from_outside(span.text)
                )
                self.disguised |= (
                    hides_characters(span.text) or _FORGED.search(span.text) is not None
                )
            elif span.source is PassageSource.ASSISTANT:
                self.assistant |= sentence_terms(span.text)
        texts = [sentence.text for sentence in self.outside]
        self.addresses_agents = any(
            _ADDRESSED.search(text) and is_imperative(text) for text in texts
        )
        self.foreign = any(
            len(_FOREIGN_SCRIPT.findall(text)) > len(text) // 3 and is_imperative(text)
            for text in texts
        )
        self.tainted = frozenset(term for sentence in self.outside for term in sentence.terms)

    def _add(self, span: Passage) -> None:
        if span.source is PassageSource.OUTCOME:
            self.allowed |= sentence_terms(span.text)
            return
        for text in split_sentences(visible_text(span.text)):
            self.said.append(_Sentence(text, sentence_terms(text)))
            self.allowed |= self.said[-1].terms

    def is_suspect(self, proposal: str) -> bool:
        """Whether text from outside addresses agents, hides something, or is in a script that
        cannot be compared.
        """
        return (
            self.addresses_agents
            or self.disguised
            or (self.foreign and not _FOREIGN_SCRIPT.search(proposal))
        )

    @property
    def supported(self) -> frozenset[str]:
        """Terms of users and outcomes, and of the agent's own actions unless text from outside has
        them.
        """
        return frozenset(self.allowed | (self.assistant - self.tainted))


def authority_objections(proposal: str, spans: Sequence[Passage]) -> tuple[AuthorityObjection, ...]:
    """Objections to the instructions of a proposed text; empty if all are backed."""
    objections = [*disguises(proposal)]
    backing = _Backing(spans)
    supported = backing.supported
    orders = instructions(proposal)
    # If no text from outside addresses agents, a proposal with one backed instruction may have
    # others without side effects.
    strict = all(_is_unbacked(order, supported) for order in orders) or backing.is_suspect(proposal)
    for order in orders:
        objection = _examine(order, backing, supported, strict=strict)
        if objection is not None:
            objections.append(objection)
    objections += _claims(proposal, {order.text for order in orders}, backing, supported)
    return tuple(dict.fromkeys(objections))


def disguises(proposal: str) -> Iterator[AuthorityObjection]:
    """Objections to hidden or forged text, from any author."""
    if hides_characters(proposal) or _HIDDEN_MARKUP.search(proposal):
        yield AuthorityObjection(
            Doubt.HIDDEN,
            _cut(without_hidden_characters(proposal)),
            "it hides text from a reader: invisible or look-alike characters, comments or styles",
        )
    shown = visible_text(proposal)
    for forged in (_FORGED.search(proposal), _FORGED.search(without_hidden_characters(proposal))):
        if forged is not None:
            yield AuthorityObjection(
                Doubt.FORGED,
                _cut(forged[0]),
                "it imitates the marks of a system prompt or of another speaker",
            )
            break
    override = _OVERRIDE.search(shown)
    if override is not None:
        yield AuthorityObjection(
            Doubt.OVERRIDE,
            _cut(override[0]),
            "it sets other instructions aside or keeps something from the person",
        )
    for coded in _CODED.finditer(shown):
        text = _decoded(coded[0])
        if text and (is_imperative(text) or " " in text):
            yield AuthorityObjection(Doubt.HIDDEN, _cut(text), "it carries words in base64")


def _is_unbacked(imperative: Imperative, supported: frozenset[str]) -> bool:
    meant = specific_terms(sentence_terms(imperative.text))
    return bool(meant) and not meant & supported


def _examine(
    imperative: Imperative, backing: _Backing, supported: frozenset[str], *, strict: bool
) -> AuthorityObjection | None:
    """The objection to one instruction, or None."""
    contradiction = _contradicted(imperative, backing)
    if contradiction is not None:
        return AuthorityObjection(
            Doubt.CONTRADICTED,
            imperative.text,
            f"the person said the opposite: {_cut(contradiction)}",
        )
    everything = sentence_terms(imperative.text)
    ordered = (
        everything
        if imperative.is_command
        else sentence_terms(_QUOTED.sub(" ", imperative.text)) or everything
    )
    borrowed = _borrowed(everything, ordered, supported, backing, strict=strict)
    if borrowed is not None:
        return AuthorityObjection(
            Doubt.BORROWED, imperative.text, f"only text from outside says so: {_cut(borrowed)}"
        )
    acts = imperative.is_command or _ACTING.search(imperative.text)
    if (
        _is_unbacked(imperative, supported)
        and (strict or acts)
        and (backing.outside or not backing.said)
    ):
        return AuthorityObjection(
            Doubt.UNBACKED,
            imperative.text,
            "neither the person's words nor an observed outcome says so",
        )
    return None


def _borrowed(
    everything: frozenset[str],
    ordered: frozenset[str],
    supported: frozenset[str],
    backing: _Backing,
    *,
    strict: bool,
) -> str | None:
    """The sentence from outside that an instruction repeats without backing by the user's words.

    One word shared with a long text from outside is a coincidence, unless that text addresses
    agents."""
    meant = specific_terms(everything)
    alien = meant - supported
    share = len(meant & supported) / len(meant) if meant else 1.0
    for sentence in backing.outside if alien else ():
        shared = alien & sentence.terms
        if not shared:
            continue
        covered = len(meant & sentence.terms) / len(meant)
        alike = len(everything & sentence.terms) / len(everything | sentence.terms)
        # An instruction may quote words that only a tool said, but not order what they say.
        apart = [
            term for term in shared if not any(term != other and term in other for other in shared)
        ]
        repeats = len(apart) >= 2 and covered >= _BORROWED_SHARE
        if (
            repeats or alike >= _BORROWED_SHARE or (strict and share < _BACKED_SHARE)
        ) and is_imperative(sentence.text):
            return sentence.text
        if (
            (repeats or alike >= _BORROWED_SHARE)
            and covered > share
            and (specific_terms(ordered) - supported) & sentence.terms
        ):
            return sentence.text
    return None


def _contradicted(imperative: Imperative, backing: _Backing) -> str | None:
    """The user's prohibition that the instruction breaks, or None."""
    if _ANY_NEGATION.search(imperative.text):
        return None
    meant = specific_terms(sentence_terms(imperative.text))
    if not meant:
        return None
    for sentence in backing.said:
        if FORBIDS.search(sentence.text) and not EXCEPTS.search(sentence.text):
            forbidden = specific_terms(sentence_terms(FORBIDS.sub(" ", sentence.text)))
            if (
                forbidden
                and len(meant & forbidden) / len(meant) >= 0.8
                and len(meant & forbidden) / len(forbidden) >= 0.8
            ):
                return sentence.text
    return None


def _claims(
    proposal: str, orders: set[str], backing: _Backing, supported: frozenset[str]
) -> Iterator[AuthorityObjection]:
    """Objections to statements that act as orders: claims about what the user wants, and sentences
    copied from outside.
    """
    for text in split_sentences(visible_text(proposal), with_code=True):
        meant = specific_terms(sentence_terms(text))
        if not meant:
            continue
        share = len(meant & supported) / len(meant)
        if _ATTRIBUTED.search(text) and share < 0.5 and (backing.outside or not backing.said):
            yield AuthorityObjection(
                Doubt.ATTRIBUTED, text, "it says what the person wants, and the person did not"
            )
        elif text not in orders and share < _BACKED_SHARE:
            for sentence in backing.outside:
                if len(meant & sentence.terms) / len(meant) >= 0.8 and is_imperative(sentence.text):
                    yield AuthorityObjection(
                        Doubt.BORROWED,
                        text,
                        f"it repeats an instruction from outside: {_cut(sentence.text)}",
                    )
                    break


def _sentences_from_outside(text: str) -> Iterator[str]:
    """The sentences of a text from outside, including those in base64."""
    shown = visible_text(text)
    yield from split_sentences(shown, with_code=True)
    yield from (line.strip() for line in shown.splitlines() if "`" in line)
    for coded in _CODED.finditer(shown):
        yield from split_sentences(_decoded(coded[0]))


def _decoded(token: str) -> str:
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4)).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
    return text if text.isprintable() or "\n" in text else ""


def _cut(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:159]}…"


def hidden_text(text: str, said: str) -> str | None:
    """What the text of a rule hides from a reader or forges; None if it is plain. Marks that stand
    in the person's own words are not forged."""
    if hides_text(text):
        return "it holds encoded text"
    return next(
        (
            one.reason
            for one in disguises(text)
            if one.doubt in (Doubt.HIDDEN, Doubt.FORGED) and one.instruction not in said
        ),
        None,
    )


def new_capabilities(text: str, said: str) -> Capabilities:
    """Capabilities in the text of a rule that the person's words do not name. Paths alone are
    harmless: a model may write one out in full.
    """
    added = capabilities(text) - capabilities(said)
    return replace(added, paths=frozenset(), credentials=frozenset())


@dataclass(frozen=True, slots=True)
class Review:
    """The result of a review. Secrets and objections refuse a proposal; new capabilities need a
    person's approval.
    """

    secrets: tuple[Redaction, ...]
    objections: tuple[AuthorityObjection, ...]
    reach: Capabilities


def added_capabilities(
    skill: Skill, existing: Iterable[Skill], workspace: Workspace
) -> Capabilities:
    """Capabilities of a proposed skill that are outside the workspace, in no active skill, and not
    named by the user.

    A skill with any of them needs a person's approval.
    """
    wanted = skill_capabilities(skill_text(skill)) - workspace.granted
    for other in existing:
        if not wanted:
            break
        wanted -= skill_capabilities(skill_text(other))
    return replace(
        wanted,
        paths=frozenset(path for path in wanted.paths if not _is_inside(path, workspace.roots)),
    )


def _is_inside(path: str, roots: Sequence[str]) -> bool:
    return ".." not in path and any(
        path == root or path.startswith((f"{root}/", f"{root}\\")) for root in roots
    )


def _hosts_for_something_else(skill: Skill, spans: Sequence[Passage]) -> Capabilities:
    """Hosts that a skill uses for another purpose than the one the user named them for."""
    found: set[str] = set()
    own = [span.text for span in spans if span.source is PassageSource.USER]
    said = [
        sentence for text in own for sentence in split_sentences(visible_text(text), with_code=True)
    ]
    for order in instructions(skill.body):
        for host in capabilities(order.text).hosts:
            meant = _terms_beside(host, order.text)
            named_for = [_terms_beside(host, text) for text in said if host in text.lower()]
            if meant and named_for and not any(meant & terms for terms in named_for):
                found.add(host)
    return Capabilities(hosts=frozenset(found))


def _terms_beside(host: str, text: str) -> frozenset[str]:
    return specific_terms(sentence_terms(text)) - sentence_terms(host)


def review_skill(
    skill: Skill,
    spans: Sequence[Passage],
    existing: Iterable[Skill],
    redactor: Redactor,
    companions: Sequence[Skill] = (),
) -> Review:
    """Review a proposed skill, given the passages of its supporting steps, the active skills, and
    those it is placed with.
    """
    reach = added_capabilities(skill, existing, workspace_of(spans))
    reach |= _hosts_for_something_else(skill, spans)
    if companions:
        reach |= combined_capabilities((skill, *companions))
    # The name is not searched for secrets: it consists of words of the trigger and body, and a
    # number in it looks random.
    text = f"{skill.trigger}\n\n{skill.body}"
    return Review(redactor.text(text).found, authority_objections(text, spans), reach)
