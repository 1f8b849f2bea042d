"""The attempts at one answer: what was sent and received in each, and which rules they broke.

The true sequence (attempt, refusal, attempt) is sent to the provider with the next attempt. Later
requests hold it in place of the message that the client was shown."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final

import msgspec

from metaclaw.domain.chat import Completion, Json, Part, Text, ToolCall, Usage, Wire
from metaclaw.domain.ids import SkillName, TurnId, new_turn_id
from metaclaw.domain.turn import (
    ATTEMPT,
    STOPPED_BY_US,
    EnforcedRule,
    Enforcement,
    Exchange,
    HoldEnd,
    ShownCall,
    TrueAnswer,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.errors import WireError
from metaclaw.proxy.enforcement.call_judge import HeldCalls, Ruling
from metaclaw.proxy.http.body import (
    JsonDocument,
    UnsafeBytesError,
    parse_object,
    skip_blanks_back,
)
from metaclaw.proxy.response import TurnBuilder
from metaclaw.wires import (
    AttemptMessages,
    CallOutput,
    HeldCall,
    encode_json,
    plain_text,
    wire_format,
)

MOST_RETRIES: Final = 2
MOST_LOOKUPS: Final = 8
"""The most times that the model is asked again with results of tools of ours."""
# The result, for the model, of a call beside a refused call.
_SIBLING: Final = (
    "Not run, because another call of the same answer was refused. Send this call again if it is"
    " still needed."
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an answer: what was sent, what came back, and which rules held which calls.
    `own` are our results of the calls of our own tools, by index, which the client never sees;
    `shown` are the parts of the answer without these calls.
    `messages` is the answer as a later request repeats it."""

    sent: bytes
    said: bytes
    stream: bool
    completion: Completion
    calls: Sequence[HeldCall]
    own: Mapping[int, str]
    shown: Sequence[Part]
    ruling: Ruling
    began: float
    messages: AttemptMessages

    @property
    def is_lookup(self) -> bool:
        """Whether it only calls tools of ours."""
        return len(self.own) == len(self.calls) > 0

    @property
    def shown_calls(self) -> list[HeldCall]:
        """The calls that are the client's to run."""
        return [call for place, call in enumerate(self.calls) if place not in self.own]

    def results(self, *, only_own: bool = False) -> list[CallOutput]:
        """The results of its calls, for the model."""
        found = []
        for place, call in enumerate(self.messages.calls):
            if place in self.own:
                found.append(CallOutput(call, self.own[place], is_error=False))
            elif not only_own:
                rules = [one for one in self.ruling.held if place in one.calls]
                found.append(CallOutput(call, refusal_text(rules) if rules else _SIBLING))
        return found


class Attempts:
    """The attempts at the answer of one request, first to last: `made`."""

    def __init__(self, builder: TurnBuilder) -> None:
        self.made: list[Attempt] = []
        self._builder = builder

    @property
    def last(self) -> Attempt:
        return self.made[-1]

    @property
    def names(self) -> tuple[SkillName, ...]:
        """The names of the rules that held calls of any attempt."""
        return tuple(self.held_rules())

    def next_body(self) -> bytes | None:
        """The body of the next request to the provider; None if there is no further attempt."""
        refused = sum(bool(made.ruling.held) for made in self.made)
        lookups = len(self.made) - refused
        if refused > MOST_RETRIES or lookups > MOST_LOOKUPS or not self._are_exact():
            return None
        return append_items(self._builder.provider_wire, self.made[0].sent, self._sequence())

    def held_rules(self) -> dict[SkillName, HeldCalls]:
        """The rules that held calls of any attempt, each with the last attempt that broke it or
        else could not be checked.
        """
        all_held = [one for made in self.made for one in made.ruling.held]
        last = {one.rule.name: one for one in all_held}
        return last | {one.rule.name: one for one in all_held if one.is_checked}

    def usage(self) -> Usage | None:
        """The tokens of all attempts together."""
        counts = [
            astuple(made.completion.usage)
            for made in self.made
            if made.completion.usage is not None
        ]
        return Usage(*map(sum, zip(*counts, strict=True))) if counts else None

    def is_empty(self) -> bool:
        """Whether the client would get an empty answer: no calls in the last attempt, and no text
        in any.
        """
        return not self.last.shown_calls and not self._all_text()

    def enforcement(self, turn: Turn, end: HoldEnd, text: str, trouble: str) -> Enforcement:
        """The record: the rules that held, each attempt as a turn like `turn`, and the true answer.
        `text` was
        shown in place of the calls; `trouble` says why the provider could not be asked again."""
        more = f"; the model could not be asked again: {trouble}" if trouble else ""
        broken = [one.rule.name for made in self.made for one in made.ruling.held if one.is_checked]
        rules = [
            EnforcedRule(name, broken.count(name), end, held.reason + more)
            for name, held in self.held_rules().items()
        ]
        return Enforcement(tuple(rules), tuple(self._turns(turn)), self._true_answer(end, text))

    def _are_exact(self) -> bool:
        """Whether all attempts can be repeated exactly. An answer that continues an assistant
        message of the client cannot be separated from it."""
        if not all(
            made.messages.is_exact and len(made.messages.calls) == len(made.calls)
            for made in self.made
        ):
            return False
        wire = wire_format(self._builder.provider_wire)
        try:
            items = parse_object(self.made[0].sent).get(wire.list_key)
        except WireError:
            return False
        last = items[-1] if isinstance(items, list) and items else None
        is_assistant = isinstance(last, dict) and last.get("role") == "assistant"
        return not (wire.continues_messages and is_assistant)

    def _sequence(self, *, is_shown: bool = False) -> list[Json]:
        """The messages of all attempts, each followed by our results of its calls. If the last one
        `is_shown`, the client has the results of the others.
        """
        wire = wire_format(self._builder.provider_wire)
        found: list[Json] = []
        for made in self.made:
            found += made.messages.messages
            results = made.results(only_own=is_shown and made is self.last)
            if results:
                found += wire.call_results(results)
        return found

    def _true_answer(self, end: HoldEnd, text: str) -> TrueAnswer | None:
        if not self._are_exact():
            return None
        builder, last = self._builder, self.last
        wire = wire_format(builder.provider_wire)
        shown: tuple[ShownCall, ...] = ()
        rest: list[Json] = []
        if end is HoldEnd.STOPPED:
            mark = str(builder.id)
            messages = [*self._sequence(), wire.own_words(text)]
            rest = [*wire.call_results(last.results()), wire.own_words(text)]
        else:
            shown = tuple(ShownCall(call.id, call.arguments) for call in last.shown_calls)
            mark = "" if shown else self._all_text()
            messages = self._sequence(is_shown=True)
            rest = wire.call_results(last.results(only_own=True)) if last.own else []
        return TrueAnswer(
            wire=builder.provider_wire,
            calls=shown,
            mark=mark,
            answer_id=self.made[0].completion.id,
            last_id=last.messages.id,
            messages=encode_json(messages),
            rest=encode_json(rest),
        )

    def _all_text(self) -> str:
        return plain_text("".join(text_of(made.completion) for made in self.made))

    def _turns(self, base: Turn) -> Iterator[Turn]:
        for made in self.made:
            completion = made.completion
            yield replace(
                base,
                id=new_turn_id(),
                kind=TurnKind.SIDE,
                kind_reason=ATTEMPT,
                wire=self._builder.provider_wire,
                stream=made.stream,
                status=200,
                end=TurnEnd.COMPLETED,
                error=None,
                exchange=Exchange(made.sent, said=made.said),
                finish=completion.finish,
                usage=completion.usage,
                tokens=completion.tokens,
                times=replace(base.times, duration_s=time.perf_counter() - made.began),
                retry_of=None,
                placements=(),
                enforcement=None,
            )


def parts_without(completion: Completion, own: Mapping[int, str]) -> list[Part]:
    """The parts of an answer without the calls of these indices."""
    found, place = list[Part](), 0
    for part in completion.parts:
        is_call = isinstance(part, ToolCall)
        if not is_call or place not in own:
            found.append(part)
        place += is_call
    return found


def calls_of(completion: Completion) -> list[HeldCall]:
    return [
        HeldCall(part.id, part.name, part.arguments)
        for part in completion.parts
        if isinstance(part, ToolCall)
    ]


def text_of(completion: Completion) -> str:
    """The words of an answer."""
    return "\n".join(part.text for part in completion.parts if isinstance(part, Text))


_MOST_RULE_CHARS: Final = 300
_AGAIN: Final = (
    "",
    ", also after the model was asked again",
    ", also after the model was asked again twice",
)


def refusal_text(held: Sequence[HeldCalls]) -> str:
    """The result of a call that these rules hold, for the model."""
    broken = [one for one in held if one.is_checked]
    if not broken:
        named = "; ".join(
            f"`{one.rule.name}`: {_short(one.rule.text).rstrip('.')} ({_short(one.reason)})"
            for one in held
        )
        return (
            f"Held: this call could not be checked against {_rules(held)} of the person you work"
            f" for and was not run. {named}. Send it in a form that can be checked, or say in words"
            " why you cannot."
        )
    named = "; ".join(f"`{one.rule.name}`: {_short(one.rule.text)}" for one in broken)
    return (
        f"Refused: this call breaks {_rules(broken)} of the person you work for and was not run."
        f" {named.rstrip('.')}. Send calls that follow the rule, or say in words why you cannot."
    )


def stop_text(
    held: Mapping[SkillName, HeldCalls], turn: TurnId, asked_again: int, trouble: str
) -> str:
    """The text in place of calls that these rules hold. `trouble` says why the model could not be
    asked again.
    """
    again = (
        f", and the model could not be asked again: {trouble}"
        if trouble
        else _AGAIN[min(asked_again, len(_AGAIN) - 1)]
    )
    return (
        f"{STOPPED_BY_US}, because it {_because(held.values())}{again}. Nothing was run. "
        f"The rule is the person's: follow it, or ask them. What happened: `metaclaw why {turn}`."
    )


def silence_text(held: Mapping[SkillName, HeldCalls], turn: TurnId) -> str:
    """The text in place of an empty message, because providers refuse empty messages in later
    requests.
    """
    if not held:
        return f"The model looked up procedures and said nothing. See `metaclaw why {turn}`."
    return (
        f"{STOPPED_BY_US}, because it {_because(held.values(), has_texts=False)}, and the model had"
        f" nothing else to say. Nothing was run. What happened: `metaclaw why {turn}`."
    )


def warning_text(held: Sequence[HeldCalls]) -> str:
    """The text before calls that rules hold and that are let through."""
    return f"MetaClaw warning: the next tool call {_because(held)}."


def _because(held: Iterable[HeldCalls], *, has_texts: bool = True) -> str:
    """`breaks the rule …`, or `could not be checked against the rule …` for rules of which nothing
    is known.
    """
    named: dict[bool, list[str]] = {}
    for one in held:
        more = f" ({_short(one.rule.text)})" if has_texts else ""
        why = f": {_short(one.reason)}" if has_texts and not one.is_checked else ""
        named.setdefault(one.is_checked, []).append(f"`{one.rule.name}`{more}{why}")
    verbs = {True: "breaks", False: "could not be checked against"}
    return " and ".join(
        f"{verbs[key]} the rule {'; '.join(named[key])}" for key in (True, False) if key in named
    )


def _rules(held: Sequence[HeldCalls]) -> str:
    return "a rule" if len(held) == 1 else "rules"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_RULE_CHARS else line[: _MOST_RULE_CHARS - 1] + "…"


def append_items(wire: Wire, body: bytes, items: Sequence[Json]) -> bytes:
    """A request's body with messages appended; the bytes before them stay the same."""
    key, added = wire_format(wire).list_key, b",".join(map(encode_json, items))
    try:
        begin, end = JsonDocument(body).field(key)
    except (UnsafeBytesError, msgspec.MsgspecError, UnicodeError, IndexError):
        fields = parse_object(body)
        spoken = fields.get(key)
        before = list(spoken) if isinstance(spoken, list) else [{"role": "user", "content": spoken}]
        return encode_json({**fields, key: [*before, *items]})
    if body[begin : begin + 1] != b"[":
        return (
            body[:begin]
            + b'[{"role":"user","content":'
            + body[begin:end]
            + b"},"
            + added
            + b"]"
            + body[end:]
        )
    at = skip_blanks_back(body, end - 1)
    comma = b"" if body[at - 1 : at] == b"[" else b","
    return body[:at] + comma + added + body[at:]
