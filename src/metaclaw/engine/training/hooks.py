"""LoRA on any torch model: each linear layer's output gains scale * B A x by a hook, all A and B being views of one vector."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from metaclaw.engine.training.lora import Adapter, Pair


class HookedPairs:
    """An adapter on the named linear layers of a model, as one vector in single precision with its gradient as another."""

    def __init__(self, layers: Mapping[str, nn.Linear], rank: int, alpha: float, device: torch.device) -> None:
        self.rank, self.alpha = rank, alpha
        self.shapes = {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}
        size = sum(rank * (rows + columns) for rows, columns in self.shapes.values())
        self.values = torch.zeros(size, device=device)
        self.gradient = torch.zeros(size, device=device)
        self._is_on = True
        self._pairs: dict[str, Pair] = {}
        place = 0
        for name, (rows, columns) in self.shapes.items():
            a, place = self._leaf(place, (rank, columns))
            b, place = self._leaf(place, (rows, rank))
            self._pairs[name] = Pair(a, b)
            layers[name].register_forward_hook(_Hook(self, self._pairs[name]))

    def _leaf(self, place: int, shape: tuple[int, int]) -> tuple[Tensor, int]:
        # Shares its memory with the vector, and collects its gradient right in the gradient's vector.
        end = place + shape[0] * shape[1]
        leaf = self.values[place:end].view(shape).requires_grad_()
        leaf.grad = self.gradient[place:end].view(shape)
        return leaf, end

    @property
    def is_on(self) -> bool:
        """Whether the model is the adapted one."""
        return self._is_on

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The model as it was before anything was learned."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def adapter(self) -> Adapter:
        """A copy of the present values, on the CPU."""
        pairs = {name: Pair(*(side.detach().cpu().clone() for side in pair)) for name, pair in self._pairs.items()}
        return Adapter(self.rank, self.alpha, pairs)

    @torch.no_grad()
    def adopt(self, adapter: Adapter) -> None:
        """Take the values of an adapter of the same layers and rank."""
        for name, pair in self._pairs.items():
            pair.a.copy_(adapter.pairs[name].a)
            pair.b.copy_(adapter.pairs[name].b)


class _Hook:
    def __init__(self, pairs: HookedPairs, pair: Pair) -> None:
        self._pairs, self._pair = pairs, pair
        self._scale = pairs.alpha / pairs.rank

    def __call__(self, layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if not self._pairs.is_on:
            return out
        inner = given[0] @ self._pair.a.to(out.dtype).mT
        return torch.add(out, inner @ self._pair.b.to(out.dtype).mT, alpha=self._scale)
