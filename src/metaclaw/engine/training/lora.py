"""LoRA: what is learned beside a frozen model, as named pairs of small matrices and as the one long vector an optimiser works on.

A module's weight W becomes W + scale * B @ A with A of `rank` rows, B of `rank` columns and scale = alpha / rank. B begins at zero,
so a fresh adapter changes nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from metaclaw.errors import TrainingError

BUNDLES: Final = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""The projections of a layer of the Llama family. Those of one bundle read the same rows, so they run as one product."""

Shapes = Mapping[str, tuple[int, int]]
"""Rows and columns of each weight that is adapted, by the name of its module."""


class Pair(NamedTuple):
    """A module's change: `a` is rank × columns, `b` is rows × rank."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """The changes of all adapted modules, by name."""

    rank: int
    alpha: float
    pairs: Mapping[str, Pair]

    @property
    def scale(self) -> float:
        """What B @ A is multiplied with."""
        return self.alpha / self.rank


def projection_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The shapes of all seven projections of every layer, by module, in the order of the layers."""
    ends = [projection for bundle in BUNDLES for projection in bundle]
    layers = sorted({int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")})
    shapes = {}
    for layer in layers:
        for module in (f"model.layers.{layer}.{end}" for end in ends):
            weight = tensors.get(f"{module}.weight")
            if weight is None:
                raise TrainingError(f"the model's weights lack {module}.weight")
            shapes[module] = (weight.shape[0], weight.shape[1])
    return shapes


def fresh_adapter(shapes: Shapes, rank: int, alpha: float, seed: int) -> Adapter:
    """An adapter that changes nothing yet; the same on every device for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {
        module: Pair(_first_a(rank, columns, generator), torch.zeros(rows, rank)) for module, (rows, columns) in shapes.items()
    }
    return Adapter(rank, alpha, pairs)


def _first_a(rank: int, columns: int, generator: torch.Generator) -> Tensor:
    # Kaiming's uniform distribution as LoRA uses it: bounded by one over the root of the columns.
    bound = 1.0 / math.sqrt(columns)
    return torch.empty(rank, columns).uniform_(-bound, bound, generator=generator)


def refitted(adapter: Adapter, shapes: Shapes, rank: int, alpha: float, seed: int) -> Adapter:
    """The same change with another scale and at least as many ranks; new ranks begin as a fresh adapter's do.

    Raises TrainingError where the adapter belongs to another model or has more ranks.
    """
    check_modules(adapter, shapes)
    if adapter.rank > rank:
        raise TrainingError(f"the adapter's rank is {adapter.rank}, which does not fit into rank {rank}")
    if (adapter.rank, adapter.alpha) == (rank, alpha):
        return adapter
    fresh = fresh_adapter(shapes, rank, alpha, seed)
    pairs = {}
    for module, (a, b) in adapter.pairs.items():
        wider = fresh.pairs[module]
        widened_b = torch.cat((b.cpu() * (adapter.scale / fresh.scale), wider.b[:, adapter.rank :]), dim=1)
        pairs[module] = Pair(torch.cat((a.cpu(), wider.a[adapter.rank :])), widened_b)
    return Adapter(rank, alpha, pairs)


def check_modules(adapter: Adapter, shapes: Shapes) -> None:
    """Raises TrainingError unless the adapter changes exactly these modules."""
    strangers = sorted(set(adapter.pairs) ^ set(shapes))
    if strangers:
        raise TrainingError(f"adapter and model differ in {len(strangers)} modules, such as {strangers[0]}")
    for module, (a, b) in adapter.pairs.items():
        if (b.shape[0], a.shape[1]) != tuple(shapes[module]):
            raise TrainingError(f"{module}: a change of {b.shape[0]} × {a.shape[1]} does not fit a weight of {shapes[module]}")


class Parameters:
    """An adapter as one vector in single precision, its gradient as another, and views of both for each bundle.

    The A matrices of a bundle lie behind one another and so are one matrix, too.
    """

    def __init__(self, shapes: Shapes, rank: int, alpha: float, device: torch.device) -> None:
        self.shapes, self.rank, self.alpha = shapes, rank, alpha
        size = sum(rank * (rows + columns) for rows, columns in shapes.values())
        self.values = torch.zeros(size, device=device)
        self.gradient = torch.zeros(size, device=device)
        self._views: dict[str, Pair] = {}
        self.bundles = [self._bundle(modules, place) for modules, place in self._places()]

    def _places(self) -> Iterator[tuple[tuple[str, ...], int]]:
        place = 0
        names = iter(self.shapes)
        for _ in range(len(self.shapes) // sum(map(len, BUNDLES))):
            for bundle in BUNDLES:
                modules = tuple(next(names) for _ in bundle)
                yield modules, place
                place += sum(self.rank * sum(self.shapes[module]) for module in modules)

    def _bundle(self, modules: tuple[str, ...], place: int) -> "Bundle":
        columns = self.shapes[modules[0]][1]
        a = self._leaf(place, (len(modules) * self.rank, columns))
        place += a.numel()
        bs = []
        for number, module in enumerate(modules):
            b = self._leaf(place, (self.shapes[module][0], self.rank))
            place += b.numel()
            bs.append(b)
            self._views[module] = Pair(a.detach()[number * self.rank : (number + 1) * self.rank], b.detach())
        return Bundle(modules, a, tuple(bs))

    def _leaf(self, place: int, shape: tuple[int, int]) -> Tensor:
        # Shares its memory with the vector, and collects its gradient right in the gradient's vector.
        reach = slice(place, place + shape[0] * shape[1])
        leaf = self.values[reach].view(shape).requires_grad_()
        leaf.grad = self.gradient[reach].view(shape)
        return leaf

    @property
    def scale(self) -> float:
        """What B @ A is multiplied with."""
        return self.alpha / self.rank

    @property
    def pairs(self) -> Mapping[str, Pair]:
        """Views of the present values, by module."""
        return self._views

    def adapter(self) -> Adapter:
        """A copy of the present values, on the CPU."""
        pairs = {module: Pair(*(side.cpu().clone() for side in pair)) for module, pair in self._views.items()}
        return Adapter(self.rank, self.alpha, pairs)

    def adopt(self, adapter: Adapter) -> None:
        """Take the values of an adapter of the same modules and rank."""
        for module, view in self._views.items():
            given = adapter.pairs[module]
            view.a.copy_(given.a)
            view.b.copy_(given.b)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The trained matrices of projections that run as one product: their A behind one another, their B each for itself."""

    modules: Sequence[str]
    a: Tensor
    bs: tuple[Tensor, ...]


class LowRank(Protocol):
    """Low-rank changes by the name of the module they change: for each a down projection `a` and an up projection `b`."""

    @property
    def scale(self) -> float: ...
    @property
    def pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]: ...


def merged(base: Mapping[str, Tensor], adapter: LowRank) -> dict[str, Tensor]:
    """Every tensor of the base by its Hugging Face name, those that the adapter changes with the change added.

    The sum is made in single precision and rounded once to the base's dtype. What no change touches is shared with the base.
    """
    weights = dict(base)
    for module, (down, up) in adapter.pairs.items():
        name = f"{module}.weight"
        weights[name] = add_change(base[name], down, up, adapter.scale).to(base[name].dtype)
    return weights


def add_change(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """The weight plus `scale * up @ down`, in single precision."""
    down, up = (side.to(weight.device, torch.float32) for side in (down, up))
    return torch.addmm(weight.float(), up, down, alpha=scale)
