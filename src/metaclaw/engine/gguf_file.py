"""Read a GGUF file: its fields at once, its tensors one by one.

The `gguf` package's own reader takes half a minute for a vocabulary of 150,000 tokens."""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from metaclaw.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Value: TypeAlias = "str | int | float | bool | list[Value]"

_NUMBERS: Final = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_TEXT: Final = 8
_LIST: Final = 9
_VERSIONS: Final = (2, 3)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's name, its shape with the longest stride first, its kind and its place."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """The fields and tensors of a file. Raises EngineError if it is none."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.path = path
        self.fields: dict[str, Value] = {}
        try:
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
            cursor = _Cursor(self._bytes.data)
            if cursor.take(4) != b"GGUF" or cursor.number("I") not in _VERSIONS:
                raise ValueError("it does not begin as one")
            tensors, fields = cursor.number("Q"), cursor.number("Q")
            for _ in range(int(fields)):
                name = cursor.text()
                self.fields[name] = cursor.value(int(cursor.number("I")))
            self.tensors = [cursor.tensor() for _ in range(int(tensors))]
        except (OSError, ValueError, struct.error, KeyError) as error:
            raise EngineError(
                f"{path} is not a GGUF file this program can read: {error}"
            ) from error
        unit = self.fields.get("general.alignment", 32)
        unit = unit if isinstance(unit, int) and unit > 0 else 32
        self._begin = -(-cursor.place // unit) * unit

    def load(self, tensor: GgufTensor) -> "NDArray[np.float32]":
        """A tensor in single precision. Raises EngineError where the file is too short or the
        kind of quantisation is unknown."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        begin = self._begin + tensor.offset
        try:
            kind = GGMLQuantizationType(tensor.kind)
            block, size = GGML_QUANT_SIZES[kind]
            *rows, columns = tensor.shape
            shape = (*rows, columns // block * size)
            raw = self._bytes[begin : begin + prod(shape)].reshape(shape)
            return dequantize(raw, kind)
        except (ValueError, NotImplementedError) as error:
            raise EngineError(
                f"{self.path}: the tensor {tensor.name} cannot be read: {error}"
            ) from error


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        found = bytes(self._data[self.place : self.place + count])
        if len(found) < count:
            raise ValueError("it ends in the middle of its header")
        self.place += count
        return found

    def number(self, form: str) -> int | float | bool:
        (value,) = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))
        number: int | float | bool = value
        return number

    def text(self) -> str:
        return self.take(int(self.number("Q"))).decode(errors="replace")

    def value(self, kind: int) -> Value:
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            return self.number(_NUMBERS[kind])
        of, count = int(self.number("I")), int(self.number("Q"))
        if of in (_TEXT, _LIST):
            return [self.value(of) for _ in range(count)]
        form = f"<{count}{_NUMBERS[of]}"
        return list(struct.unpack(form, self.take(struct.calcsize(form))))

    def tensor(self) -> GgufTensor:
        name = self.text()
        lengths = [int(self.number("Q")) for _ in range(int(self.number("I")))]
        kind, offset = int(self.number("I")), int(self.number("Q"))
        return GgufTensor(name, tuple(reversed(lengths)), kind, offset)
