"""The golden set: small things any version must still do, each with a check that a program can make.

Some are written by hand (`golden.toml`), about a thousand are made from tables (`golden_tables`). An item passes or it does not. A
model too small to pass many can still be asked how likely it finds the reference answers (`regression` makes points of that).
Standard library only: a machine with nothing installed can run it.
"""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from metaclaw.domain.chat import ChatRequest, Json, Message, Role, Sampling, Text, Tool, ToolCall, Wire
from metaclaw.train.golden_tables import golden_entries

_MAX_TOKENS = 64
_REFUSAL = re.compile(
    r"\b(can(?:'|’)?t|cannot|can not|won(?:'|’)?t|will not|unable to|not able to|not going to|must not)\b"
    r"|\b(sorry|apologi[sz]e|i refuse|i decline|illegal|unethical|against the law|not appropriate|inappropriate)\b",
    re.IGNORECASE,
)
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_Object: TypeAlias = dict[str, Json]


@dataclass(frozen=True, slots=True)
class WantedCall:
    """The one tool call that is right."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer must be like; all that is given must hold."""

    match: re.Pattern[str] | None = None
    reject: re.Pattern[str] | None = None
    whole_json: Json = None
    keys: frozenset[str] | None = None
    call: WantedCall | None = None
    no_call: bool = False
    refuses: bool | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its words, and the calls it makes."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class GoldenItem:
    """One question with its check, and a reference answer that passes it."""

    name: str
    category: str
    request: ChatRequest
    wanted: Wanted
    reference: str

    @property
    def max_tokens(self) -> int:
        """Room for the answer."""
        return self.request.sampling.max_tokens or _MAX_TOKENS

    def passes(self, answer: Answer) -> bool:
        """Whether the answer is what it must be."""
        wanted, text = self.wanted, answer.text.strip()
        return (
            (wanted.match is None or wanted.match.search(text) is not None)
            and (wanted.reject is None or wanted.reject.search(text) is None)
            and (wanted.whole_json is None or _equal(_document(text), wanted.whole_json))
            and (wanted.keys is None or _has_keys(_document(text), wanted.keys))
            and (wanted.call is None or self._is_called(wanted.call, answer.calls))
            and (not wanted.no_call or (not answer.calls and bool(text)))
            and (wanted.refuses is None or (bool(text) and (_REFUSAL.search(text) is not None) == wanted.refuses))
        )

    def _is_called(self, wanted: WantedCall, calls: Sequence[ToolCall]) -> bool:
        if len(calls) != 1 or calls[0].name != wanted.name:
            return False
        given = _document(calls[0].arguments)
        tool = next(tool for tool in self.request.tools if isinstance(tool, Tool) and tool.name == wanted.name)
        allowed = tool.parameters["properties"]
        if not isinstance(given, dict) or not isinstance(allowed, dict) or not given.keys() <= allowed.keys():
            return False
        return all(_equal(given.get(key), value) for key, value in wanted.arguments.items())


@dataclass(frozen=True, slots=True)
class GoldenScore:
    """Which items passed; and the mean log-probability of each reference's tokens, where that was asked."""

    passed: Mapping[str, bool]
    likelihood: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not self.passed:
            raise ValueError("a golden score without items")
        if self.likelihood is not None and not all(math.isfinite(value) and value <= 0 for value in self.likelihood.values()):
            raise ValueError("a mean log-probability is not a finite number up to zero")

    @property
    def share(self) -> float:
        """The share of items that passed."""
        return sum(self.passed.values()) / len(self.passed)

    def by_category(self, items: Sequence[GoldenItem]) -> dict[str, tuple[int, int]]:
        """Passed and tried, for each category."""
        counts: dict[str, tuple[int, int]] = {}
        for item in items:
            passed, tried = counts.get(item.category, (0, 0))
            counts[item.category] = (passed + self.passed[item.name], tried + 1)
        return counts


@cache
def golden_items() -> tuple[GoldenItem, ...]:
    """All items: first those of the file, then the generated ones."""
    return read_items(files("metaclaw.train").joinpath("golden.toml").read_text(encoding="utf-8"), golden_entries())


def read_items(text: str, more: Sequence[_Object] = ()) -> tuple[GoldenItem, ...]:
    """The items of a set written as `golden.toml` is, and `more` with its tools. Raises ValueError or KeyError for a bad one."""
    table = tomllib.loads(text)
    tools = {name: Tool(name, tool["description"], tool["parameters"]) for name, tool in table["tools"].items()}
    return tuple(_item(entry, tools) for entry in (*table["items"], *more))


def set_version(items: Sequence[GoldenItem]) -> str:
    """A hash that changes whenever a question, a check or a reference does."""
    digest = hashlib.sha256()
    for item in items:
        wanted = item.wanted
        patterns = [None if one is None else one.pattern for one in (wanted.match, wanted.reject)]
        calls = wanted.call, wanted.no_call, wanted.refuses
        said = item.name, item.request, patterns, wanted.whole_json, sorted(wanted.keys or ()), calls, item.reference
        digest.update(repr(said).encode())
    return digest.hexdigest()[:16]


def golden_score(items: Sequence[GoldenItem], answers: Sequence[Answer], logprobs: Sequence[Sequence[float]] = ()) -> GoldenScore:
    """The score of one answer for each item; `logprobs` are those of each reference's tokens, if they were asked."""
    passed = {item.name: item.passes(answer) for item, answer in zip(items, answers, strict=True)}
    if not logprobs:
        return GoldenScore(passed)
    pairs = zip(items, logprobs, strict=True)
    return GoldenScore(passed, {item.name: math.fsum(values) / len(values) for item, values in pairs})


def reference_pairs(
    items: Sequence[GoldenItem], prompt: Callable[[ChatRequest], Sequence[int]], encode: Callable[[str], Sequence[int]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and reference tokens of each item, as `TrainingBackend.score` takes them."""
    return [(tuple(prompt(item.request)), tuple(encode(item.reference))) for item in items]


def read_answer(text: str) -> Answer:
    """Words and calls of a model that writes calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

    What stands between the tags and is no call stays among the words, where no check takes it for one.
    """
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        found = _calls_in(match[1])
        calls.extend(found)
        return "" if found else match[0]

    words = _CALL.sub(take, text)
    return Answer(words, tuple(calls))


def _calls_in(text: str) -> list[ToolCall]:
    document = _document(text)
    listed = document if isinstance(document, list) else [document]
    calls: list[ToolCall] = []
    for entry in listed:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str):
            return []
        calls.append(ToolCall("", name, json.dumps(entry.get("arguments", {}))))
    return calls


def _item(entry: _Object, tools: Mapping[str, Tool]) -> GoldenItem:
    offered = tuple(tools[name] for name in _texts(entry.get("tools", [])))
    call = _call(entry["call"]) if "call" in entry else None
    system = (Message(Role.SYSTEM, (Text(str(entry["system"])),)),) if "system" in entry else ()
    asked = Message(Role.USER, (Text(str(entry["ask"])),))
    most = entry.get("max_tokens", _MAX_TOKENS)
    sampling = Sampling(max_tokens=most if isinstance(most, int) else _MAX_TOKENS, temperature=0.0, seed=0)
    request = ChatRequest(Wire.CHAT, "", (*system, asked), offered, sampling=sampling)
    wanted = Wanted(
        match=_pattern(entry.get("match")),
        reject=_pattern(entry.get("reject")),
        whole_json=entry.get("json"),
        keys=frozenset(_texts(entry["keys"])) if "keys" in entry else None,
        call=call,
        no_call=entry.get("no_call") is True,
        refuses=None if "refuses" not in entry else entry["refuses"] is True,
    )
    reference = str(entry["reference"]) if call is None else _written(call)
    return GoldenItem(str(entry["name"]), str(entry["category"]), request, wanted, reference)


def _call(value: Json) -> WantedCall:
    if not isinstance(value, dict) or not isinstance(arguments := value.get("arguments"), dict):
        raise ValueError(f"{value!r} is no call")
    return WantedCall(str(value["name"]), arguments)


def _written(call: WantedCall) -> str:
    return f"<tool_call>{json.dumps({'name': call.name, 'arguments': call.arguments})}</tool_call>"


def _pattern(value: Json) -> re.Pattern[str] | None:
    return None if value is None else re.compile(str(value), re.IGNORECASE)


def _texts(value: Json) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def _document(text: str) -> Json:
    """The JSON a whole text is; None if it is none."""
    try:
        document: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document


def _equal(given: Json, wanted: Json) -> bool:
    """Equal as people see it: the case of words, and 100 for 100.0, make no difference."""
    if isinstance(given, str) and isinstance(wanted, str):
        return given.strip().casefold() == wanted.casefold()
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(_equal(given[key], value) for key, value in wanted.items())
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(_equal, given, wanted))
    return type(given) is not bool and given == wanted


def _has_keys(document: Json, keys: frozenset[str]) -> bool:
    return isinstance(document, dict) and document.keys() == keys
