"""Matrix products for few rows: as the BLAS does them, or from weights packed once where that is much faster."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor

Linear: TypeAlias = Callable[[Tensor], Tensor]
"""Rows in, rows times the transposed weight out, plus the bias if there is one."""


class Change(NamedTuple):
    """A change of low rank: rows times `inwards` times `outwards` is added to what they are multiplied to."""

    inwards: Tensor
    outwards: Tensor


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest exact product with this weight on this machine."""
    if can_pack(weight.dtype):
        return pack(weight, bias)
    return lambda rows: functional.linear(rows, weight, bias)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether weights can be packed to advantage: Arm's compute library is in this torch, in single precision.

    OpenBLAS, the alternative there, packs the weight again on every call, which for a handful of rows costs more than the product.
    """
    has_library = bool(getattr(torch._C, "_has_mkldnn_acl", False))
    return dtype == torch.float32 and has_library and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A product from a packed copy. From two rows on, each row's result has the same bits however many rows go with it.

    A single row goes to the unpacked weight: a plain matrix-vector product reads memory nearly twice as fast.
    """
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    product = torch.ops.mkldnn._linear_pointwise.default

    def multiply(rows: Tensor) -> Tensor:
        if rows.shape[0] == 1:
            return functional.linear(rows, weight, bias)
        out: Tensor = product(rows, packed, bias, "none", [], "")
        return out

    return multiply


def change(product: Linear, added: Change | None) -> Linear:
    """A product with a weight to which a change is added, without making that sum: ready at once, if a little slower."""
    if added is None:
        return product
    inwards, outwards = added
    return lambda rows: product(rows).addmm_(rows @ inwards, outwards)
