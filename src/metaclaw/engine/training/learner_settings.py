"""The settings that all learners have."""

from dataclasses import dataclass
from typing import Final, NotRequired, TypedDict

import torch

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LearnerOptions(TypedDict):
    """The named arguments of a learner; `LearnerSettings` explains them."""

    rank: int
    seed: int
    device: NotRequired[str]
    dtype: NotRequired[str]
    threads: NotRequired[int | None]
    alpha: NotRequired[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Rank, scale and first values of the adapter; `device` is "cpu" or "cuda", or one of several, `dtype` that of all products,
    "float32" or "bfloat16"; `threads` are torch's, None as they are."""

    rank: int
    seed: int
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    @property
    def place(self) -> torch.device:
        """Where everything lies."""
        return torch.device(self.device)

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return "cpu" if self.place.type == "cpu" else "cuda"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of all products."""
        return _DTYPES[self.dtype]

    @property
    def scale(self) -> float:
        """LoRA's alpha: twice the rank unless it is given."""
        return self.alpha or 2.0 * self.rank
