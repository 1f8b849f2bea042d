"""What a page shows, as JSON or CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from metaclaw.api.router import ApiError, ApiResponse

FORMATS: Final = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
_FORMULA: Final = tuple("=+-@\t\r")


def exported(rows: Sequence[object], kind: str, name: str) -> ApiResponse:
    """The rows as a file. Raises ApiError for an unknown kind."""
    if kind not in FORMATS:
        raise ApiError(f"as must be one of {', '.join(FORMATS)}, not {kind!r}")
    plain = msgspec.to_builtins(rows, str_keys=True, enc_hook=str)
    body = msgspec.json.encode(plain) if kind == "json" else _csv(plain)
    header = ("content-disposition", f'attachment; filename="{name}.{kind}"')
    return ApiResponse(200, body, FORMATS[kind], (header, ("cache-control", "no-store")))


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    flat = [dict(_flat("", row)) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().encode("utf-8", "replace")


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """The cells of a value: nested names are joined by dots, lists are JSON."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, inner)
    elif isinstance(value, list | tuple):
        yield prefix, msgspec.json.encode(value).decode()
    elif isinstance(value, str) and value.startswith(_FORMULA):
        yield prefix, f"'{value}"  # a spreadsheet would run it
    else:
        yield prefix, value
