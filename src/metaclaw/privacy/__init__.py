"""What may not travel: secrets, other people's words, and authority that text from outside does not have."""

from metaclaw.privacy.authority import Doubt, Objection, authority
from metaclaw.privacy.capabilities import Capabilities, Workspace, added, capabilities, workspace_of
from metaclaw.privacy.combination import emergent
from metaclaw.privacy.evidence import CallRecord, Evidence, Outcome, evidence_of, render, render_step
from metaclaw.privacy.grounding import Ungrounded, ungrounded
from metaclaw.privacy.hits import Certainty
from metaclaw.privacy.known import KnownSecrets, collect
from metaclaw.privacy.provenance import PersonsMessage, own_words, spans_of, take_apart, user_spans
from metaclaw.privacy.redact import Finding, Redacted, Redactor
from metaclaw.privacy.review import Review, review
from metaclaw.privacy.sentences import Imperative, imperatives, instructions
from metaclaw.privacy.spans import Source, Span

__all__ = [
    "CallRecord",
    "Capabilities",
    "Certainty",
    "Doubt",
    "Evidence",
    "Finding",
    "Imperative",
    "KnownSecrets",
    "Objection",
    "Outcome",
    "PersonsMessage",
    "Redacted",
    "Redactor",
    "Review",
    "Source",
    "Span",
    "Ungrounded",
    "Workspace",
    "added",
    "authority",
    "capabilities",
    "collect",
    "emergent",
    "evidence_of",
    "imperatives",
    "instructions",
    "own_words",
    "render",
    "render_step",
    "review",
    "spans_of",
    "take_apart",
    "ungrounded",
    "user_spans",
    "workspace_of",
]
