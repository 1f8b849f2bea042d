"""How much each signal weighs: log-odds fitted on the training turns by `python -m benchmarks.failure_sense --fit`."""

from importlib.resources import files

import msgspec

from metaclaw.domain.verdict import Fault, Signal

_MAX_QUOTE = 200


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted model. The sum of `bias` and weights is tempered by `scale` to what can be said about new kinds of turns."""

    bias: float
    scale: float
    signals: dict[str, float]
    fitted_on: str


WEIGHTS = msgspec.json.decode(files("metaclaw.outcome").joinpath("weights.json").read_bytes(), type=Weights)


def signal(name: str, quote: str, fault: Fault = Fault.AGENT) -> Signal:
    """A signal with its fitted weight."""
    return Signal(name, WEIGHTS.signals[name], " ".join(quote[: 4 * _MAX_QUOTE].split())[:_MAX_QUOTE], fault)
