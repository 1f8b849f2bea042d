"""How the models that read messages answer: which one fails now, when it is asked again, and whether its answers can be used."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from metaclaw.text import shorten

_PAUSES_S: Final = (2.0, 5.0, 15.0)
_COSTLY_PAUSES_S: Final = (2.0, 15.0, 60.0)
_REASON_CHARS: Final = 200


@dataclass(slots=True)
class _Outage:
    """A model that has failed since its last answer. `is_probed` says that a message is being read by it now."""

    since: str
    reason: str = ""
    failures: int = 0
    again_at: float = 0.0
    is_probed: bool = False


@dataclass(slots=True)
class _Unusable:
    """Answers of a model that could not be used: how many messages were not understood, in all and since the last one that was."""

    model: str
    reason: str = ""
    at: str = ""
    messages: int = 0
    in_a_row: int = 0


class ListenerHealth:
    """Remembers failures by the name of the model. One that fails is asked about one message at a time, at most 15 seconds after
    the last failure; a minute if it fails by giving no answer in time, since that costs tokens. Its first answer ends the pause
    for all messages."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._outages: dict[str, _Outage] = {}
        self._unusable: dict[str, _Unusable] = {}

    def admits(self, model: str) -> bool:
        """Whether a message may be read by it now; the caller calls `release` when that has ended."""
        outage = self._outages.get(model)
        if outage is None:
            return True
        if outage.is_probed or outage.again_at > self._now():
            return False
        outage.is_probed = True
        return True

    def release(self, model: str) -> None:
        """The message that it was asked about is no longer being read."""
        if (outage := self._outages.get(model)) is not None:
            outage.is_probed = False

    def failures(self, model: str) -> int:
        """How often it has failed since its last answer."""
        outage = self._outages.get(model)
        return 0 if outage is None else outage.failures

    def failed(self, model: str, reason: str, *, is_costly: bool) -> None:
        """It gave no answer; `is_costly` says that the provider may charge for it all the same."""
        outage = self._outages.setdefault(model, _Outage(_utc_now()))
        pauses_s = _COSTLY_PAUSES_S if is_costly else _PAUSES_S
        outage.again_at = self._now() + pauses_s[min(outage.failures, len(pauses_s) - 1)]
        outage.failures += 1
        outage.reason = shorten(reason, _REASON_CHARS)

    def understood(self, model: str) -> None:
        """It gave an answer that could be used."""
        self._outages.pop(model, None)
        if (unusable := self._unusable.get(model)) is not None:
            unusable.in_a_row = 0

    def not_understood(self, model: str, reason: str) -> None:
        """It answered, and what it says about a message cannot be used."""
        self._outages.pop(model, None)
        unusable = self._unusable.setdefault(model, _Unusable(model))
        unusable.reason, unusable.at = shorten(reason, _REASON_CHARS), _utc_now()
        unusable.messages += 1
        unusable.in_a_row += 1

    def facts(self, unread: int) -> Mapping[str, object]:
        """For `status`: models that fail now, how many messages wait, and answers that could not be used since the start."""
        return {
            "unread": unread,
            "failing": [
                {"model": model, "reason": one.reason, "since": one.since, "failures": one.failures}
                for model, one in self._outages.items()
            ],
            "not_understood": [
                {"model": one.model, "messages": one.messages, "in_a_row": one.in_a_row, "reason": one.reason, "at": one.at}
                for one in self._unusable.values()
            ],
        }


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
