"""Privacy and safety: secrets, the sources of passages, and the review of proposed skills and
rules.
"""

from metaclaw.privacy.known_secrets import KnownSecrets, secrets_of
from metaclaw.privacy.lesson_review import review_lesson
from metaclaw.privacy.provenance import (
    Passage,
    PassageSource,
    command_in,
    marked_message,
    own_words,
    passages_of,
)
from metaclaw.privacy.redaction import Redactor, render_step
from metaclaw.privacy.review import Doubt, hidden_text, new_capabilities, review_skill
