"""What torch hands to a function that brings its own backward pass; torch leaves it untyped."""

from typing import Protocol

from torch import Tensor


class Context(Protocol):
    """What a forward pass keeps for its backward pass. Functions add what else they keep."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...
    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...
