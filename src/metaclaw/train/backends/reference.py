"""The distance to the untrained model, told to a training service in the advantages: its losses have no term for it.

With l a drawn token's log-probability under the weights that drew it, f under the reference (the untrained model), β = `Loss.kl`:

    the term        β (exp(f − l) − (f − l) − 1)      Schulman's k3, which a backend that has the term adds to its loss
    its gradient    β (1 − exp(f − l)) ∇l
    hence           A' = A − β (1 − exp(f − l))       because every loss pushes by −A ∇l where the ratio is one

So `kl` weighs the same on every backend, as long as data are taught to the weights that drew them, which every step's are. Near
the reference it is A − β (l − f), as Tinker's own recipes have it. A clip that cuts an advantage cuts the distance in it, too.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from metaclaw.domain.batch import Datum
from metaclaw.errors import TrainingError


def fold(datum: Datum, now_T: Sequence[float], reference_T: Sequence[float], weight: float) -> Datum:
    """The datum with the distance in its advantages. Raises TrainingError if the log-probabilities do not line up."""
    if not len(datum.tokens_T) == len(now_T) == len(reference_T):
        raise TrainingError(f"turn {datum.turn}: {len(reference_T)} reference log-probabilities for {len(datum.tokens_T)} tokens")
    terms = zip(datum.advantages_T, now_T, reference_T, strict=True)
    try:
        folded = tuple(advantage + weight * math.expm1(reference - now) for advantage, now, reference in terms)
    except OverflowError as error:
        raise TrainingError(f"turn {datum.turn}: a drawn token is too far from the untrained model to be weighed") from error
    return replace(datum, advantages_T=folded)


def distance(now_T: Sequence[float], reference_T: Sequence[float]) -> float:
    """The k3 estimate of the distance, summed over the tokens."""
    apart_T = [reference - now for now, reference in zip(now_T, reference_T, strict=True)]
    return math.fsum(math.expm1(apart) - apart for apart in apart_T)
