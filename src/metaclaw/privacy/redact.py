"""Takes secrets out of texts and conversations, and puts typed placeholders where they stood."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from metaclaw.domain.chat import Json, Message, Part
from metaclaw.domain.step import Step
from metaclaw.privacy.detect import Detector, TimeLimit
from metaclaw.privacy.hits import PLACEHOLDER, Certainty, Hit, merged
from metaclaw.privacy.known import KnownSecrets
from metaclaw.privacy.walk import Walker

_SEAM_CHARS = 4_000
_CALL_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A secret that was taken out: where it stood in the original, and what stands there now. Never the secret itself."""

    start: int
    end: int
    placeholder: str
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text without secrets, and what was taken out of it."""

    text: str
    found: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether there was nothing to take out."""
        return not self.found


class _Call:
    """What one call knows: which secret of a label is which, and what it has read already, since a conversation repeats itself."""

    def __init__(self, detector: Detector, limit_s: float) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        limit = TimeLimit(limit_s)
        self.find = cache(partial(detector.find, limit=limit))
        self.across = cache(partial(detector.across, limit=limit))

    def placeholder(self, label: str, secret: str) -> str:
        numbers = self._numbers.setdefault(label, {})
        number = numbers.setdefault(secret, len(numbers) + 1)
        return f"<{label}>" if number == 1 else f"<{label}#{number}>"


class Redactor:
    """Replaces secrets by placeholders such as `<API_KEY:openai>`; within one call the same secret has the same placeholder.

    A call spends at most about `limit_s` of processor time: text that it did not get to is replaced as a whole by `<WITHHELD>`.
    """

    def __init__(self, known: KnownSecrets | None = None, limit_s: float = _CALL_S) -> None:
        self._detector = Detector(known)
        self._limit_s = limit_s

    def text(self, text: str) -> Redacted:
        """One text."""
        return self._texts((text,), self._call())[0]

    def texts(self, texts: Sequence[str]) -> tuple[Redacted, ...]:
        """Texts that follow one another: a secret cut in two by a seam is found as well."""
        return self._texts(texts, self._call())

    def parts(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """The parts of one message or answer."""
        return self._walker().parts(tuple(parts))

    def messages(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        """A conversation."""
        return self._walker().messages(tuple(messages))

    def value(self, value: Json) -> Json:
        """Any JSON value; keys are looked at as names."""
        return self._walker().value(value)

    def step(self, step: Step) -> Step:
        """A step with everything in it, also the steps before it."""
        call = self._call()
        for text in (step.task, step.said_after or ""):
            call.find(text)  # The person's words come first, so that a long history cannot use up their time.
        return self._walker(call).step(step)

    def _call(self) -> _Call:
        return _Call(self._detector, self._limit_s)

    def _walker(self, call: _Call | None = None) -> Walker:
        call = call or self._call()
        return Walker(lambda texts: [redacted.text for redacted in self._texts(texts, call)])

    def _texts(self, texts: Sequence[str], call: _Call) -> tuple[Redacted, ...]:
        hits = [list(call.find(text)) for text in texts]
        for at in range(len(texts) - 1):
            left, right = texts[at][-_SEAM_CHARS:], texts[at + 1][:_SEAM_CHARS]
            shift = len(texts[at]) - len(left)
            for hit in call.across(left, right) if left and right else ():
                hits[at].append(Hit(hit.start + shift, min(hit.end + shift, len(texts[at])), hit.label, hit.certainty))
                hits[at + 1].append(Hit(max(0, hit.start - len(left)), hit.end - len(left), hit.label, hit.certainty))
        return tuple(_replaced(text, merged(found), call) for text, found in zip(texts, hits, strict=True))


def _replaced(text: str, hits: list[Hit], call: _Call) -> Redacted:
    pieces: list[str] = []
    found: list[Finding] = []
    at = 0
    for hit in hits:
        secret = text[hit.start : hit.end]
        if PLACEHOLDER.fullmatch(secret):
            continue
        placeholder = call.placeholder(hit.label, secret)
        pieces += (text[at : hit.start], placeholder)
        found.append(Finding(hit.start, hit.end, placeholder, hit.certainty))
        at = hit.end
    return Redacted("".join((*pieces, text[at:])), tuple(found)) if found else Redacted(text, ())
