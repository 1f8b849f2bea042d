"""The privacy room's whole opinion of a proposal: secrets in it, instructions nobody gave, reach that waits for a person."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metaclaw.domain.skill import Skill
from metaclaw.privacy.authority import Objection, authority
from metaclaw.privacy.capabilities import Capabilities, added, capabilities, workspace_of
from metaclaw.privacy.combination import emergent
from metaclaw.privacy.redact import Finding, Redactor
from metaclaw.privacy.sentences import instructions, open_text, sentences
from metaclaw.privacy.spans import Source, Span
from metaclaw.privacy.terms import telling, terms


@dataclass(frozen=True, slots=True)
class Review:
    """Secrets and objections refuse a proposal; reach makes it wait for a person."""

    secrets: tuple[Finding, ...]
    objections: tuple[Objection, ...]
    reach: Capabilities

    @property
    def is_refused(self) -> bool:
        """Whether the proposal may not go on as it is."""
        return bool(self.secrets or self.objections)

    @property
    def must_wait(self) -> bool:
        """Whether a person must say yes first."""
        return bool(self.reach)

    @property
    def may_pass(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.is_refused and not self.must_wait

    def words(self) -> str:
        """Why not, in one line; empty where it may pass."""
        secrets = [f"it contains a secret ({finding.placeholder})" for finding in self.secrets]
        doubts = [f"{one.doubt}: {one.instruction!r}: {one.reason}" for one in self.objections]
        return "; ".join((*secrets, *doubts, *((f"waits for a person, it adds {self.reach.words()}",) if self.reach else ())))


def _hosts_for_something_else(skill: Skill, spans: Sequence[Span]) -> Capabilities:
    """Hosts that a skill uses for something that no person named them for. Naming a host does not say what to do with it."""
    found: set[str] = set()
    own = [text for span in spans if span.source is Source.USER for text in sentences(open_text(span.text), with_code=True)]
    for order in instructions(skill.body):
        for host in capabilities(order.text).hosts:
            meant = _terms_beside(host, order.text)
            named_for = [_terms_beside(host, text) for text in own if host in text.lower()]
            if meant and named_for and not any(meant & terms for terms in named_for):
                found.add(host)
    return Capabilities(hosts=frozenset(found))


def _terms_beside(host: str, text: str) -> frozenset[str]:
    return telling(terms(text)) - terms(host)


def review(
    skill: Skill, spans: Sequence[Span], existing: Iterable[Skill], redactor: Redactor, companions: Sequence[Skill] = ()
) -> Review:
    """Examine a proposed skill against what was said (`spans` of its supporting steps), what is in force, and its neighbours."""
    reach = added(skill, existing, workspace_of(spans))
    reach |= _hosts_for_something_else(skill, spans)
    if companions:
        reach |= emergent((skill, *companions))
    # The name is not looked through: it is made of words of the trigger and body, and numbers between words look random.
    text = f"{skill.trigger}\n\n{skill.body}"
    return Review(redactor.text(text).found, authority(text, spans), reach)
