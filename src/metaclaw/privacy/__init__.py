"""Privacy and safety: secrets, the sources of passages, and the review of proposed skills and rules."""

from metaclaw.privacy.capabilities import combined_capabilities as combined_capabilities
from metaclaw.privacy.capabilities import skill_capabilities as skill_capabilities
from metaclaw.privacy.known_secrets import KnownSecrets as KnownSecrets
from metaclaw.privacy.provenance import Passage as Passage
from metaclaw.privacy.provenance import PassageSource as PassageSource
from metaclaw.privacy.provenance import PersonsMessage as PersonsMessage
from metaclaw.privacy.provenance import own_words as own_words
from metaclaw.privacy.provenance import passages_of as passages_of
from metaclaw.privacy.provenance import split_message as split_message
from metaclaw.privacy.redaction import Redactor as Redactor
from metaclaw.privacy.redaction import render_step as render_step
from metaclaw.privacy.review import Doubt as Doubt
from metaclaw.privacy.review import review_skill as review_skill
from metaclaw.privacy.review import ungrounded as ungrounded
