"""Signals with their weights (log-odds, fitted by `python -m benchmarks.failure_sense --fit`), and the step detectors observe."""

from functools import cached_property
from importlib.resources import files

import msgspec

from metaclaw.domain.verdict import Fault, Signal
from metaclaw.outcome.reading import StepReading
from metaclaw.outcome.reply import UserReply, read_reply
from metaclaw.outcome.results import InterpretedResult, ResultMeaning, interpret_results

_MAX_QUOTE = 200


class SignalWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted model. `scale` reduces the sum of `bias` and weights to what holds for new kinds of turns."""

    bias: float
    scale: float
    signals: dict[str, float]
    fitted_on: str


WEIGHTS = msgspec.json.decode(files("metaclaw.outcome").joinpath("weights.json").read_bytes(), type=SignalWeights)


def signal(name: str, quote: str, fault: Fault = Fault.AGENT) -> Signal:
    """A signal with its fitted weight; 0 for one that has not been fitted yet."""
    return Signal(name, WEIGHTS.signals.get(name, 0.0), " ".join(quote[: 4 * _MAX_QUOTE].split())[:_MAX_QUOTE], fault)


class ObservedStep(StepReading):
    """A step with its interpreted tool results and the user's reply."""

    @cached_property
    def findings(self) -> tuple[InterpretedResult, ...]:
        """The interpreted result of each answered call."""
        return interpret_results(self)

    @cached_property
    def reply(self) -> UserReply:
        """What the user's next message says about the answer."""
        return read_reply(self)

    def found(self, *meanings: ResultMeaning) -> InterpretedResult | None:
        """The first result with one of these meanings, or None."""
        return next((finding for finding in self.findings if finding.meaning in meanings), None)
