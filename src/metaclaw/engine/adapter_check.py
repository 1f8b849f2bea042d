"""Whether an adapter on disk is all there, told in a moment and without what is needed to load it."""

from pathlib import Path
from typing import Final

import msgspec

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_LENGTH_BYTES: Final = 8
_LONGEST_HEADER: Final = 100_000_000  # what safetensors itself allows


class _Tensor(msgspec.Struct):
    """Where a tensor lies behind the header; the header's notes about the file have no such place."""

    data_offsets: tuple[int, int] = (0, 0)


_header = msgspec.json.Decoder(dict[str, _Tensor])


def is_whole(folder: Path) -> bool:
    """Whether its files are there and as long as they say they are. Their content is checked when they are loaded."""
    weights = folder / WEIGHTS_FILE
    try:
        with weights.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if header_bytes > _LONGEST_HEADER:
                return False
            tensors = _header.decode(file.read(header_bytes))
        ends = [tensor.data_offsets[1] for tensor in tensors.values()]
        expected_bytes = _LENGTH_BYTES + header_bytes + max(ends, default=0)
        return weights.stat().st_size == expected_bytes and (folder / CONFIG_FILE).stat().st_size > 0
    except (OSError, msgspec.MsgspecError):
        return False
