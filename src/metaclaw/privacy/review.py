"""Review of proposed skills and rules: a user's own words or an observed outcome must support each
instruction.

`review_skill` examines a proposed skill; `hidden_text` and `new_capabilities` examine a rule that a
model derived from a user's message. They compare words, not meanings: the result needs no language
model, and a person can understand it."""

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.domain.skill import Skill
from metaclaw.privacy.capabilities import (
    EXCEPTS,
    FORBIDS,
    Capabilities,
    capabilities,
)
from metaclaw.privacy.provenance import Passage, PassageSource, Workspace, workspace_of
from metaclaw.privacy.redaction import Redaction, Redactor
from metaclaw.text import (
    hides_characters,
    hides_text,
    sentence_terms,
    shorten,
    specific_terms,
    split_sentences,
    visible_text,
    without_hidden_characters,
)

_SHOWN_CHARS = 160
_BORROWED_SHARE = 0.5
_CONTRADICTED_SHARE = 0.8
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
_ANY_NEGATION = re.compile(
    r"\b(?:no|not|never|don'?t|without|avoid|stop|instead|refrain|skip|omit|remove|neither|nor|only|unless|forbidden|\w+n'?t)\b",
    re.IGNORECASE,
)
_CODED = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{24,4000}={0,2}(?![A-Za-z0-9+/])")

_WORD = re.compile(r"[^\W_]+")
_CODE = re.compile(r"`([^`\n]{1,300})`")
_ADDRESS_6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE)
# A name that ends in a number: of several parts, or of two behind a word of place.
_HOST_NAME = re.compile(
    r"(?<![\w./-])([a-z][a-z0-9]*(?:-[a-z0-9]+)+-[a-z]*\d+"
    r"|(?:(?<=\bat )|(?<=\bon )|(?<=\bvia )|(?<=\bfrom )|(?<=\bhost )|(?<=\bserver ))"
    r"[a-z][a-z0-9]*-[a-z]*\d+)(?![\w-]|\.\w)",
    re.IGNORECASE,
)
_FOREIGN_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\ud7af]")


class Doubt(StrEnum):
    """Why an instruction is refused."""

    UNBACKED = "unbacked"
    BORROWED = "borrowed"
    CONTRADICTED = "contradicted"
    FORGED = "forged"
    HIDDEN = "hidden"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class AuthorityObjection:
    """A sentence of a proposal that no source with authority gave, and where it seems to come
    from.
    """

    doubt: Doubt
    instruction: str
    reason: str


def authority_objections(proposal: str, spans: Sequence[Passage]) -> tuple[AuthorityObjection, ...]:
    """Objections to the sentences of a proposed text: those that hide something, that the person
    forbade, or whose words stand together only in a text from outside."""
    passages = list(dict.fromkeys(spans))
    outside = [
        text
        for span in passages
        if span.source.is_outside
        for text in _sentences_from_outside(span.text)
    ]
    from_outside = [(text, sentence_terms(text)) for text in outside]
    allowed = _terms(span.text for span in passages if span.source.commands)
    done = _terms(span.text for span in passages if span.source is PassageSource.ASSISTANT)
    # What the agent did is no support if it did what a text from outside says.
    supported = allowed | (done - _terms(outside))
    forbidden = [
        (sentence, specific_terms(sentence_terms(FORBIDS.sub(" ", sentence))))
        for span in passages
        if span.source is PassageSource.USER
        for sentence in split_sentences(visible_text(span.text))
        if FORBIDS.search(sentence) and not EXCEPTS.search(sentence)
    ]
    # A text in another script cannot be compared.
    needs_support = not passages or (
        not _FOREIGN_SCRIPT.search(proposal)
        and any(len(_FOREIGN_SCRIPT.findall(text)) > len(text) // 3 for text in outside)
    )
    objections = [*disguises(proposal)]
    for sentence in split_sentences(visible_text(proposal), with_code=True):
        meant = specific_terms(sentence_terms(sentence))
        alien = meant - supported
        if against := None if _ANY_NEGATION.search(sentence) else _against(meant, forbidden):
            reason = f"the person said the opposite: {shorten(against, _SHOWN_CHARS)}"
            objections.append(AuthorityObjection(Doubt.CONTRADICTED, sentence, reason))
        elif source := _borrowed(meant, alien, from_outside):
            reason = f"only text from outside says so: {shorten(source, _SHOWN_CHARS)}"
            objections.append(AuthorityObjection(Doubt.BORROWED, sentence, reason))
        elif alien and alien == meant and needs_support:
            reason = "neither the person's words nor an observed outcome says so"
            objections.append(AuthorityObjection(Doubt.UNBACKED, sentence, reason))
    return tuple(dict.fromkeys(objections))


def _terms(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(term for text in texts for term in sentence_terms(visible_text(text)))


def _borrowed(
    meant: frozenset[str], alien: frozenset[str], outside: Iterable[tuple[str, frozenset[str]]]
) -> str | None:
    """The sentence from outside that has these words. One shared word is a coincidence."""
    least = max(min(2, len(meant)), _BORROWED_SHARE * len(meant))
    found = (text for text, terms in outside if alien and len(alien & terms) >= least)
    return next(found, None)


def _against(meant: frozenset[str], forbidden: Iterable[tuple[str, frozenset[str]]]) -> str | None:
    """The person's prohibition that a sentence breaks."""
    for sentence, terms in forbidden:
        least = _CONTRADICTED_SHARE * max(len(meant), len(terms))
        if meant and terms and len(meant & terms) >= least:
            return sentence
    return None


def disguises(proposal: str) -> Iterator[AuthorityObjection]:
    """Objections to hidden or forged text, from any author."""
    if hides_characters(proposal) or _HIDDEN_MARKUP.search(proposal):
        yield AuthorityObjection(
            Doubt.HIDDEN,
            shorten(without_hidden_characters(proposal), _SHOWN_CHARS),
            "it hides text from a reader: invisible or look-alike characters, comments or styles",
        )
    shown = visible_text(proposal)
    for forged in (_FORGED.search(proposal), _FORGED.search(without_hidden_characters(proposal))):
        if forged is not None:
            yield AuthorityObjection(
                Doubt.FORGED,
                shorten(forged[0], _SHOWN_CHARS),
                "it imitates the marks of a system prompt or of another speaker",
            )
            break
    override = _OVERRIDE.search(shown)
    if override is not None:
        yield AuthorityObjection(
            Doubt.OVERRIDE,
            shorten(override[0], _SHOWN_CHARS),
            "it sets other instructions aside or keeps something from the person",
        )
    for coded in _CODED.finditer(shown):
        text = _decoded(coded[0])
        if " " in text:
            yield AuthorityObjection(
                Doubt.HIDDEN, shorten(text, _SHOWN_CHARS), "it carries words in base64"
            )


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
    """Capabilities in the text of a rule that the person's words do not name, and hosts, addresses,
    paths and code whose words do not stand in them. Commands that the rule forbids are harmless.
    """
    added = capabilities(text) - capabilities(said)
    words = frozenset(_WORD.findall(said.casefold()))
    joined = "".join(_WORD.findall(said.casefold()))

    def unsaid(details: Iterable[str]) -> frozenset[str]:
        split = ((one, _WORD.findall(one.casefold())) for one in details)
        return frozenset(
            one for one, own in split if not words.issuperset(own) and "".join(own) not in joined
        )

    hosts = (match[1] for match in _HOST_NAME.finditer(text))
    addresses = (match[0] for match in _ADDRESS_6.finditer(text) if _is_address_6(match[0]))
    added = added._replace(
        hosts=added.hosts | unsaid((*hosts, *addresses)),
        paths=unsaid(added.paths),
        commands=added.commands | unsaid(match[1] for match in _CODE.finditer(text)),
        credentials=frozenset(),
    )
    if FORBIDS.search(text) and not EXCEPTS.search(text):
        added = added._replace(pipes=frozenset(), commands=frozenset())
    return added


def _is_address_6(text: str) -> bool:
    try:
        return not ipaddress.IPv6Address(text).is_unspecified
    except ValueError:
        return False


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
    wanted = _capabilities_of(skill) - workspace.granted
    for other in existing:
        if wanted:
            wanted -= _capabilities_of(other)
    paths = (path for path in wanted.paths if not _is_inside(path, workspace.roots))
    return wanted._replace(paths=frozenset(paths))


def _capabilities_of(skill: Skill) -> Capabilities:
    return capabilities(f"{skill.name}\n{skill.trigger}\n{skill.body}")


def _is_inside(path: str, roots: Sequence[str]) -> bool:
    return ".." not in path and any(
        path == root or path.startswith((f"{root}/", f"{root}\\")) for root in roots
    )


def review_skill(
    skill: Skill, spans: Sequence[Passage], existing: Iterable[Skill], redactor: Redactor
) -> Review:
    """Review a proposed skill, given the passages of its supporting steps and the active skills."""
    reach = added_capabilities(skill, existing, workspace_of(spans))
    # The name is not searched for secrets: it consists of words of the trigger and body, and a
    # number in it looks random.
    text = f"{skill.trigger}\n\n{skill.body}"
    return Review(redactor.text(text).found, authority_objections(text, spans), reach)
