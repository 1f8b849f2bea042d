"""What a learner goes on from: its adapter, the optimiser's moments, the gradient so far, and how far it has come."""

from collections.abc import Mapping

import torch
from torch import Tensor

from metaclaw.engine.training.adamw import AdamW
from metaclaw.errors import TrainingError


def save(values: Tensor, gradient: Tensor, adamw: AdamW, pieces: int) -> dict[str, Tensor]:
    """Everything that was learned and accumulated, as copies on the CPU."""
    copies = {name: vector.detach().cpu().clone() for name, vector in _vectors(values, gradient, adamw).items()}
    return copies | {"steps": torch.tensor(adamw.steps), "pieces": torch.tensor(pieces)}


def restore(values: Tensor, gradient: Tensor, adamw: AdamW, state: Mapping[str, Tensor]) -> int:
    """Fill all of it from a state that `save` gave, in place, and return the pieces; one of another shape is refused."""
    vectors = _vectors(values, gradient, adamw)
    if set(state) != {*vectors, "steps", "pieces"}:
        raise TrainingError(f"a learner's state does not consist of {', '.join(sorted(state)) or 'nothing'}")
    for name, vector in vectors.items():
        if state[name].shape != vector.shape or not bool(state[name].isfinite().all()):
            raise TrainingError(f"the state's {name} is not of this learner's size, or not finite")
    for name, vector in vectors.items():
        vector.copy_(state[name])
    adamw.steps = int(state["steps"])
    return int(state["pieces"])


def _vectors(values: Tensor, gradient: Tensor, adamw: AdamW) -> dict[str, Tensor]:
    return {"adapter": values, "moment_1": adamw.first, "moment_2": adamw.second, "gradient": gradient}
