"""The golden set: small tasks with exact checks that every version must still pass, and whether a
candidate lost some of them.

Some items are written one by one (`golden.toml`), about a thousand as rows of grids
(`golden_grids.toml`). Candidate and serving version are compared item by item, with an interval that
may be checked after every wave of items.

**Passes.** Of n items the candidate broke b and fixed f. The change is (f - b)/n; its standard
error is that of paired differences, with one change more than was observed, so that a few items
without a change prove nothing. Of N items in all, the interval after n is

    (f - b)/n ± z·√(N/n)·error,

the bounds of O'Brien and Fleming: wide at the first checks, and at the last hardly wider than for a
single check.

- the interval is above -margin                        → the abilities hold
- it is below -margin, or at the end below zero        → lost
- neither at the end                                   → the likelihood of the references decides: they hold only above -margin

**Likelihoods.** With ℓ the mean log-probability of an item's reference answer, e^ℓ is the
probability of a typical token. It changes by

    points = 100 · mean(e^ℓ_candidate - e^ℓ_serving).

It varies less than passes. If the serving version passes almost no items, it cannot lose any: then
the likelihood must hold, too."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from statistics import NormalDist
from typing import Any, Final

import msgspec

from metaclaw.domain.chat import (
    ChatRequest,
    Json,
    Message,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    Wire,
)
from metaclaw.errors import TrainingError
from metaclaw.training.advantages import spread
from metaclaw.training.answers import parts_of, words_of, written_call

_MOST_NAMED = 5
_REFUSAL = re.compile(
    r"\b(can(?:'|’)?t|cannot|can not|won(?:'|’)?t|will not|unable to|not able to|not going to|must"
    r" not)\b"
    r"|\b(sorry|apologi[sz]e|i refuse|i decline|illegal|unethical|against the law|not"
    r" appropriate|inappropriate)\b",
    re.IGNORECASE,
)
_Z: Final = 1.72
"""Half the width of an interval in standard errors."""
_WEAK: Final = 0.1


class WantedCall(msgspec.Struct, frozen=True):
    """The one tool call that is right."""

    name: str
    arguments: dict[str, Any]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The check of an item: every condition that is set must hold."""

    match: str | None = None
    reject: str | None = None
    whole_json: Any = msgspec.field(default=None, name="json")
    keys: list[str] | None = None
    call: WantedCall | None = None
    no_call: bool = False
    refuses: bool | None = None


class _Entry(Wanted, frozen=True, kw_only=True):
    """An item as it is written."""

    name: str
    category: str
    ask: str
    system: str | None = None
    tools: list[str] = []
    max_tokens: int = 64
    reference: str = ""


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
        return self.request.sampling.max_tokens or 0

    def passes(self, said: str) -> bool:
        """Whether an answer, as the model writes it, is right."""
        tools = [tool for tool in self.request.tools if isinstance(tool, Tool)]
        parts = parts_of(said, tools)
        text, wanted = words_of(parts), self.wanted
        calls = [part for part in parts if isinstance(part, ToolCall)]
        return (
            (wanted.match is None or _finds(wanted.match, text))
            and (wanted.reject is None or not _finds(wanted.reject, text))
            and (wanted.whole_json is None or _equal(_document(text), wanted.whole_json))
            and (wanted.keys is None or _has_keys(_document(text), wanted.keys))
            and (wanted.call is None or _is_called(wanted.call, calls, tools))
            and (not wanted.no_call or (not calls and bool(text)))
            and (
                wanted.refuses is None
                or (bool(text) and (_REFUSAL.search(text) is not None) == wanted.refuses)
            )
        )


@dataclass(frozen=True, slots=True)
class GoldenScore:
    """Which items passed, and, if measured, the mean log-probability of each reference's tokens."""

    passed: Mapping[str, bool]
    likelihood: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not self.passed:
            raise ValueError("a golden score has no items")
        if self.likelihood is not None and not all(
            math.isfinite(value) and value <= 0 for value in self.likelihood.values()
        ):
            raise ValueError("a mean log-probability is not a finite number at or below zero")

    @property
    def share(self) -> float:
        """The share of items that passed."""
        return sum(self.passed.values()) / len(self.passed)


def is_weak(serving: GoldenScore) -> bool:
    """Whether the serving version passes so little that likelihoods are always compared."""
    return serving.share < _WEAK


class GoldenStanding(StrEnum):
    """What a comparison shows. OPEN: more items are needed. UNSURE: all items were tried, and the
    likelihoods are needed.
    """

    HOLDS = "holds"
    LOST = "lost"
    OPEN = "open"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class PointChange:
    """A mean change in percentage points, with half the width of its interval."""

    points: float
    width: float

    @property
    def low(self) -> float:
        return self.points - self.width

    @property
    def high(self) -> float:
        return self.points + self.width


@dataclass(frozen=True, slots=True)
class GoldenComparison:
    """The change of the share of passed items from the serving version to the candidate, and that
    of the likelihood of references, if it was measured.
    """

    passes: PointChange
    likelihood: PointChange | None
    standing: GoldenStanding
    words: str

    @property
    def points(self) -> float:
        """The change of the share of passed items, in percentage points."""
        return self.passes.points

    @property
    def is_worse(self) -> bool:
        """Whether abilities were lost, or not shown to hold."""
        return self.standing in (GoldenStanding.LOST, GoldenStanding.UNSURE)


@cache
def golden_items() -> tuple[GoldenItem, ...]:
    """All items: first those written one by one, then those of the grids."""
    folder = files("metaclaw.training")
    return read_items(
        folder.joinpath("golden.toml").read_text(encoding="utf-8"),
        folder.joinpath("golden_grids.toml").read_text(encoding="utf-8"),
    )


def read_items(text: str, grids: str = "") -> tuple[GoldenItem, ...]:
    """The items of a text in the format of `golden.toml`, and those of the grids of another, which
    may use its tools. Raises ValueError or KeyError for an invalid item."""
    table = tomllib.loads(text)
    tools = {
        name: Tool(name, tool["description"], tool["parameters"])
        for name, tool in table["tools"].items()
    }
    rows = [
        _filled(grid["item"], row.split("|"))
        for grid in tomllib.loads(grids).get("grids", ())
        for row in grid["rows"]
    ]
    entries = msgspec.convert([*table["items"], *rows], list[_Entry])
    return tuple(_item(entry, tools) for entry in entries)


def _filled(item: dict[str, Json], columns: Sequence[str]) -> dict[str, Json]:
    text = json.dumps(item)
    for number, column in enumerate(columns, 1):
        text = text.replace(f"<{number}>", column)
    entry: dict[str, Json] = json.loads(text)
    return entry | {"json": json.loads(str(entry["json"]))} if "json" in entry else entry


def golden_version(items: Sequence[GoldenItem]) -> str:
    """A hash that changes whenever a question, a check or a reference does."""
    return hashlib.sha256(repr(items).encode()).hexdigest()[:16]


def reference_pairs(
    items: Sequence[GoldenItem],
    prompt: Callable[[ChatRequest], Sequence[int]],
    encode: Callable[[str], Sequence[int]],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and reference tokens of each item, as `TrainingBackend.score` takes them."""
    return [(tuple(prompt(item.request)), tuple(encode(item.reference))) for item in items]


def compare_golden(
    serving: GoldenScore,
    candidate: GoldenScore,
    margin: float = 2.0,
    *,
    tries: int = 1,
    of: int | None = None,
) -> GoldenComparison:
    """Compare on the items tried so far, of `of` in all. `margin` is in percentage points. Intervals
    are so wide that `tries` comparisons together are wrong no more often than a single one. Raises
    TrainingError if the two were not tried on the same items.
    """
    _same_items(serving.passed, candidate.passed)
    tried = len(serving.passed)
    whole = max(tried, of or tried)
    normal = NormalDist()
    z = normal.inv_cdf(1.0 - (1.0 - normal.cdf(_Z)) / tries) * math.sqrt(whole / tried)
    broken = [name for name, was in serving.passed.items() if was and not candidate.passed[name]]
    fixed = sum(candidate.passed[name] and not was for name, was in serving.passed.items())
    passes = _change_of_passes(tried, len(broken), fixed, z)
    likelihood = None
    if serving.likelihood is not None and candidate.likelihood is not None:
        points, error = likelihood_points(serving.likelihood, candidate.likelihood)
        likelihood = PointChange(points, z * error)
    standing = _standing(
        passes,
        likelihood,
        is_weak=is_weak(serving),
        is_all=tried == whole,
        margin=margin,
    )
    change = f"{passes.points:+.1f} points, at worst {passes.low:+.1f}, on {tried:,} questions"
    if likelihood is not None:
        change += f"; reference answers {likelihood.points:+.1f} points as likely"
    words = f"{_VERDICTS[standing]} ({change})"
    if standing is GoldenStanding.LOST:
        named = ", ".join(broken[:_MOST_NAMED]) + (" …" if len(broken) > _MOST_NAMED else "")
        lost = f"; broken: {named}" if broken else ""
        words = (
            f"{_VERDICTS[standing]}, or not shown to be within {margin:g} points ({change}{lost})"
        )
    return GoldenComparison(passes, likelihood, standing, words)


def likelihood_points(
    serving: Mapping[str, float], candidate: Mapping[str, float]
) -> tuple[float, float]:
    """The gain in percentage points and its standard error, from the mean log-probability of each
    item's reference.
    """
    _same_items(serving, candidate)
    gains = [
        100.0 * (math.exp(candidate[name]) - math.exp(before)) for name, before in serving.items()
    ]
    mean, deviation = spread(gains)
    return mean, deviation / math.sqrt(max(1, len(gains) - 1))


def _item(entry: _Entry, tools: Mapping[str, Tool]) -> GoldenItem:
    system = () if entry.system is None else (Message(Role.SYSTEM, (Text(entry.system),)),)
    request = ChatRequest(
        Wire.CHAT,
        "",
        (*system, Message(Role.USER, (Text(entry.ask),))),
        tuple(tools[name] for name in entry.tools),
        sampling=Sampling(max_tokens=entry.max_tokens, temperature=0.0, seed=0),
    )
    call = entry.call
    reference = entry.reference if call is None else written_call(call.name, call.arguments)
    return GoldenItem(entry.name, entry.category, request, entry, reference)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def _finds(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text) is not None


def _is_called(wanted: WantedCall, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> bool:
    if [call.name for call in calls] != [wanted.name]:
        return False
    arguments = _document(calls[0].arguments)
    (allowed,) = [tool.parameters["properties"] for tool in tools if tool.name == wanted.name]
    return (
        isinstance(arguments, dict)
        and isinstance(allowed, dict)
        and arguments.keys() <= allowed.keys()
        and all(_equal(arguments.get(key), value) for key, value in wanted.arguments.items())
    )


def _document(text: str) -> Json:
    """The text as one JSON document; None if it is not JSON."""
    try:
        document: Json = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document


def _equal(given: Json, wanted: Json) -> bool:
    """Whether two values are equal, ignoring case and the difference of 100 and 100.0."""
    if isinstance(given, str) and isinstance(wanted, str):
        return given.strip().casefold() == wanted.casefold()
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(
            _equal(given[key], value) for key, value in wanted.items()
        )
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(_equal, given, wanted))
    return type(given) is not bool and given == wanted


def _has_keys(document: Json, keys: Sequence[str]) -> bool:
    return isinstance(document, dict) and document.keys() == set(keys)


def _change_of_passes(items: int, broken: int, fixed: int, z: float) -> PointChange:
    mean = (fixed - broken) / items
    error = math.sqrt(max(0.0, (broken + fixed + 1) / items - mean**2) / items)
    return PointChange(100.0 * mean, 100.0 * z * error)


def _standing(
    passes: PointChange,
    likelihood: PointChange | None,
    *,
    is_weak: bool,
    is_all: bool,
    margin: float,
) -> GoldenStanding:
    if passes.high < -margin or (likelihood is not None and is_weak and likelihood.high < -margin):
        return GoldenStanding.LOST
    is_likely = likelihood is not None and likelihood.low > -margin
    if passes.low > -margin and (is_likely or not is_weak):
        return GoldenStanding.HOLDS
    if not is_all:
        return GoldenStanding.OPEN
    if passes.high < 0.0 or (likelihood is not None and not is_likely):
        return GoldenStanding.LOST
    return GoldenStanding.HOLDS if is_likely else GoldenStanding.UNSURE


def _same_items(one: Mapping[str, object], other: Mapping[str, object]) -> None:
    if not one or one.keys() != other.keys():
        raise TrainingError(
            f"golden sets of {len(one)} and {len(other)} items cannot be compared item by item"
        )


_VERDICTS = {
    GoldenStanding.HOLDS: "general abilities kept",
    GoldenStanding.LOST: "general abilities lost",
    GoldenStanding.OPEN: "general abilities: more questions are needed",
    GoldenStanding.UNSURE: "general abilities: the likelihood of the reference answers is needed",
}
