"""The rules of placement told a second time, over decoded JSON, so that the byte-wise telling can
be held against them.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.turn import Placement, Splice

Body = dict[str, Any]
LIST_KEYS = {
    Wire.CHAT: "messages",
    Wire.MESSAGES: "messages",
    Wire.RESPONSES: "input",
    Wire.GEMINI: "contents",
}


def without(sent: bytes, splices: Sequence[Splice]) -> bytes:
    """What remains when everything inserted is taken out again; each insertion must be found in its
    place.
    """
    pieces: list[bytes] = []
    at = taken = 0
    for splice in splices:
        begin = splice.offset + taken
        assert sent[begin : begin + len(splice.inserted)] == splice.inserted
        pieces.append(sent[at:begin])
        at = begin + len(splice.inserted)
        taken += len(splice.inserted)
    return b"".join([*pieces, sent[at:]])


def place_by_rule(
    wire: Wire, body: Mapping[str, Json], placements: Sequence[Placement], index: int
) -> Body:
    """The decoded body with the system placements and those anchored at message `index` in it."""
    result: Body = copy.deepcopy(dict(body))
    later = "\n\n".join(placement.text for placement in placements if placement.anchor)
    system = "\n\n".join(placement.text for placement in placements if not placement.anchor)
    if later:
        _extend_message(wire, result, index, later)
    if system:
        {
            Wire.CHAT: _chat_system,
            Wire.MESSAGES: _messages_system,
            Wire.RESPONSES: _responses_system,
            Wire.GEMINI: _gemini_system,
        }[wire](result, system)
    return result


def anchorable(wire: Wire, body: Mapping[str, Any]) -> int | None:
    """The first user message that has a content, if there is one."""
    items = body[LIST_KEYS[wire]]
    if isinstance(items, str):
        return 0
    return next(
        (
            at
            for at, item in enumerate(items)
            if item.get("role") == "user" and item.get("content", item.get("parts")) is not None
        ),
        None,
    )


def _extend_message(wire: Wire, body: Body, index: int, text: str) -> None:
    key = LIST_KEYS[wire]
    if wire is Wire.GEMINI:
        body[key][index]["parts"].append({"text": text})
        return
    if isinstance(body[key], str):
        body[key] = _longer(body[key], text)
        return
    message = body[key][index]
    if wire is Wire.MESSAGES and isinstance(message["content"], str):
        message["content"] = [{"type": "text", "text": message["content"]}]
    message["content"] = _extended(
        message["content"], text, "input_text" if wire is Wire.RESPONSES else "text"
    )


def _chat_system(body: Body, text: str) -> None:
    leading = _leading(body["messages"])
    if leading:
        message = body["messages"][leading - 1]
        message["content"] = _extended(message["content"], text, "text")
    else:
        body["messages"].insert(0, {"role": "system", "content": text})


def _messages_system(body: Body, text: str) -> None:
    body["system"] = _extended(body["system"], text, "text") if "system" in body else text


def _gemini_system(body: Body, text: str) -> None:
    body.setdefault("systemInstruction", {"parts": []})["parts"].append({"text": text})


def _responses_system(body: Body, text: str) -> None:
    item = {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": text}],
    }
    if isinstance(body.get("instructions"), str):
        body["instructions"] = _longer(body["instructions"], text)
    elif isinstance(body["input"], list):
        body["input"].insert(_leading(body["input"]), item)
    elif "instructions" in body:
        body["input"] = [item, {"type": "message", "role": "user", "content": body["input"]}]
    else:
        body["instructions"] = text


def _leading(items: list[Any]) -> int:
    roles = [item.get("role") in ("system", "developer") for item in items]
    return (*roles, False).index(False)


def _extended(content: Any, text: str, kind: str) -> Any:
    return (
        _longer(content, text)
        if isinstance(content, str)
        else [*content, {"type": kind, "text": text}]
    )


def _longer(content: str, text: str) -> str:
    return f"{content}\n\n{text}" if content else text
