"""Detectors: each looks at one kind of evidence in a step and yields signals. They are pure, quick
and free.

A signal has a weight (log-odds, fitted by `python -m benchmarks.failure_sense --fit`). The first
detectors look at what people do next (correct, repeat, interrupt, revert, accept, go on), then come
those of tool results, and those of the agent's own behaviour."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.resources import files

import msgspec

from metaclaw.domain.chat import Finish, ToolCall, ToolResult, text_of
from metaclaw.domain.turn import Step, TurnEnd
from metaclaw.domain.verdict import Fault, Signal
from metaclaw.outcome import phrases
from metaclaw.outcome.phrases import likeness, program_words, spoken
from metaclaw.outcome.reading import (
    GOOD,
    ResultMeaning,
    StepReading,
    ToolKind,
    bare_call_id,
    command_of,
    discards_changes,
    exchanges,
    is_edit,
    said_by,
    tool_kind,
)
from metaclaw.outcome.reply import UserReply, read_reply

_MAX_QUOTE = 200


class SignalWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted model. `scale` reduces the sum of `bias` and weights to what holds for new kinds
    of turns.
    """

    bias: float
    scale: float
    signals: dict[str, float]
    fitted_on: str


WEIGHTS = msgspec.json.decode(
    files("metaclaw.outcome").joinpath("weights.json").read_bytes(), type=SignalWeights
)


def signal(name: str, quote: str, fault: Fault = Fault.AGENT) -> Signal:
    """A signal with its fitted weight, or 0 if the weight has not been fitted yet."""
    return Signal(
        name,
        WEIGHTS.signals.get(name, 0.0),
        " ".join(quote[: 4 * _MAX_QUOTE].split())[:_MAX_QUOTE],
        fault,
    )


class ObservedStep(StepReading):
    """A step with the user's reply read as well."""

    @cached_property
    def reply(self) -> UserReply:
        """What the user's next message says about the answer."""
        return read_reply(self)


def corrections(observed: ObservedStep) -> Iterator[Signal]:
    """The user corrects the answer."""
    for kind, quote in observed.reply.corrections:
        yield signal(f"correction.{kind}", quote)


def repeated_requests(observed: ObservedStep) -> Iterator[Signal]:
    """The user repeats the request. After a failed turn the client repeats it, which is no
    signal.
    """
    if observed.step.end is not TurnEnd.FAILED:
        for kind, quote in observed.reply.redo:
            yield signal(f"redo.{kind}", quote)


def interruptions(observed: ObservedStep) -> Iterator[Signal]:
    """The user stopped the agent or refused a call, unless they say that it was not because of the
    answer.
    """
    if (
        observed.reply.excuses
        or observed.reply.accepted
        or (phrases.RESUME.find(observed.said) and not observed.reply.corrections)
    ):
        return
    if found := observed.found(ResultMeaning.REFUSED):
        yield signal("interrupt.refused", found.quote)
    elif quote := _stopped(observed):
        yield signal("interrupt.stopped", quote)
    elif observed.step.end is TurnEnd.CANCELLED and not any(environment_faults(observed)):
        yield signal("interrupt.hung_up", "the client went away")


def _stopped(observed: ObservedStep) -> str | None:
    if found := observed.found(ResultMeaning.STOPPED):
        return found.quote
    for note in observed.notes:
        if len(note) < 600 and (quote := phrases.INTERRUPTED.find(spoken(note))):
            return quote
    return None


_OWN_COMMAND = re.compile(
    r"<bash-input>([^<]{1,400})</bash-input>|<user_shell_command>[\s\S]{0,80}?<command>([^<]{1,400})"
)
_MAX_ARGUMENTS = 100_000
_OLD_TEXT = ("old_string", "oldString", "oldText", "old_str")
_NEW_TEXT = ("new_string", "newString", "newText", "new_str")


def reverted_work(observed: ObservedStep) -> Iterator[Signal]:
    """The work of the turn is reverted, by the user's request or command or by the agent's next
    answer.
    """
    if quote := observed.reply.undo:
        yield signal("undone.asked", quote)
        return
    for note in observed.notes:
        found = _OWN_COMMAND.search(note)
        if found and discards_changes(found[1] or found[2]):
            yield signal("undone.by_person", found[1] or found[2])
            return
    if quote := _undone_later(observed):
        yield signal("undone.by_agent", quote)


def _undone_later(observed: ObservedStep) -> str | None:
    """How the next answer reverts this one's edits without being asked to; None if it does not."""
    if observed.later is None or observed.has_said or not any(map(is_edit, observed.step.calls)):
        return None
    if phrases.UNDO.find(spoken(observed.step.task)):
        return None
    opposite = {texts[::-1] for call in observed.step.calls if (texts := _texts(call))}
    for call in observed.later.calls:
        if tool_kind(call.name) is ToolKind.SHELL and discards_changes(command := command_of(call)):
            return command
        if (texts := _texts(call)) and texts in opposite:
            return f"{call.name} puts back {texts[1]}"
    return None


def _texts(call: ToolCall) -> tuple[str, str] | None:
    """The text before and after an edit, under the names that clients use."""
    if tool_kind(call.name) is not ToolKind.EDIT or len(call.arguments) > _MAX_ARGUMENTS:
        return None
    fields = call.fields
    before, after = (
        next((text for name in names if isinstance(text := fields.get(name), str)), None)
        for names in (_OLD_TEXT, _NEW_TEXT)
    )
    return (before, after) if before is not None and after is not None else None


def acceptance(observed: ObservedStep) -> Iterator[Signal]:
    """The user is content, or takes the blame."""
    reply = observed.reply
    if reply.accepted:
        yield signal(f"accepted.{reply.accepted[0]}", reply.accepted[1])
    if reply.excuses and not reply.is_negative:
        yield signal("accepted.excused", reply.excuses)


def next_sentence(observed: ObservedStep) -> Iterator[Signal]:
    """The kind of the user's next sentence, if no phrase in it praises or criticises the answer."""
    reply = observed.reply
    if not observed.has_said or reply.is_negative:
        return
    if observed.asked_back and (
        phrases.ASSENT.opens(observed.said) or phrases.DENIALS.opens(observed.said)
    ):
        yield signal("progress.answered", observed.said.strip())
    elif reply.next is not None and not reply.accepted:
        yield signal(*reply.next)


# aider has no tools: it reports in a user message.
_EDIT_NOTES = program_words("note_edit")


def tool_errors(observed: ObservedStep) -> Iterator[Signal]:
    """A tool reports that the call was wrong: no such text, file or tool."""
    if found := observed.found(ResultMeaning.ERROR):
        yield signal("tool_error.reported", found.quote)
    elif found := observed.found(ResultMeaning.UNKNOWN_TOOL):
        yield signal("tool_error.no_such_tool", found.quote)
    else:
        for note in observed.notes:
            if _EDIT_NOTES.find(note[:600].lower()):
                yield signal("tool_error.reported", note)


def failed_commands(observed: ObservedStep) -> Iterator[Signal]:
    """A command failed or did not end."""
    if failed := observed.found(ResultMeaning.EXIT):
        yield signal("exit.failed", failed.quote)
    if hung := observed.found(ResultMeaning.HANGS):
        yield signal("exit.hangs", hung.quote)


def exceptions(observed: ObservedStep) -> Iterator[Signal]:
    """A program ended in an exception, a panic or a crash."""
    if found := observed.found(ResultMeaning.EXCEPTION):
        yield signal("exception.raised", found.quote)


# Clients without tool results write this in a user message.
_SCHEMA_NOTES = program_words("note_schema")


def rejected_calls(observed: ObservedStep) -> Iterator[Signal]:
    """A call does not match its tool's schema, or an answer the client's format."""
    if found := observed.found(ResultMeaning.SCHEMA):
        yield signal("schema.rejected", found.quote)
    for note in observed.notes:
        if sign := _SCHEMA_NOTES.find(note[:600].lower()):
            yield signal("schema.rejected", sign)


_NOTHING_DONE = re.compile(
    r"^(?:UPDATE|DELETE|INSERT 0|MERGE) 0$|\b0 rows? (?:affected|updated|deleted|changed)|\b0"
    r" files? changed|\b0 replacements?\b"
    r"|no tests ran|collected 0 items|no test files|no tests? (?:were )?found|nothing (?:added )?to"
    r" commit"
    r"|no changes added to commit|\bno (?:files|changes) (?:were"
    r" )?(?:changed|made|applied)|\bmodified 0\b"
    r"|nothing to (?:do|update|push)|no files? matched",
    re.MULTILINE,
)
_NOT_THERE = re.compile(r"[\w./-]{1,40}: (?:\S.{0,160}: )?no such file or directory", re.IGNORECASE)
_FEW_LINES = 2


def calls_without_effect(observed: ObservedStep) -> Iterator[Signal]:
    """A call succeeded but changed nothing, or its object does not exist."""
    for ran, finding in zip(observed.ran, observed.findings, strict=True):
        if finding.meaning is not ResultMeaning.FINE or ran.kind is not ToolKind.SHELL:
            continue
        if found := _NOTHING_DONE.search(ran.text):
            yield signal("hollow.nothing_done", found[0])
            return
        lines = [line for line in ran.text.splitlines() if line.strip()]
        if 0 < len(lines) <= _FEW_LINES and all(map(_NOT_THERE.match, lines)):
            yield signal("hollow.not_there", lines[0])
            return


def test_results(observed: ObservedStep) -> Iterator[Signal]:
    """Tests passed or failed."""
    if failed := observed.found(ResultMeaning.TESTS_FAILED):
        name = "tests.failed" if observed.has_edited else "tests.failed_untouched"
        yield signal(name, failed.quote)
    elif passed := observed.found(ResultMeaning.TESTS_PASSED):
        yield signal("tests.passed", passed.quote)


def environment_faults(observed: ObservedStep) -> Iterator[Signal]:
    """Network, quota, disk, rights, a missing program, or the provider failed, not the agent."""
    if observed.reply.corrections:
        return  # the user blames the agent
    if found := observed.found(ResultMeaning.ENVIRONMENT):
        yield signal("environment.fault", found.quote, Fault.ENVIRONMENT)
    elif observed.step.end is TurnEnd.FAILED:
        yield signal("environment.provider", "the provider failed", Fault.ENVIRONMENT)
    elif _was_sent_again(observed):
        yield signal("environment.line", "the same request came again", Fault.ENVIRONMENT)


def _was_sent_again(observed: ObservedStep) -> bool:
    """Whether the connection broke and the client, not the user, repeated the request."""
    said = observed.step.said_after
    if observed.step.end is not TurnEnd.CANCELLED or said is None:
        return False
    like = likeness(observed.step.task, said)
    return said.strip() == observed.step.task.strip() or (
        like.size > 0 and like.lost == like.added == 0
    )


def progress(observed: ObservedStep) -> Iterator[Signal]:
    """Every call was answered and none failed. If the user spoke, their words count instead."""
    if (
        observed.has_said
        or not observed.findings
        or any(finding.meaning not in GOOD for finding in observed.findings)
    ):
        return
    if observed.found(ResultMeaning.EXPECTED):
        yield signal("progress.expected", observed.findings[-1].quote)
    elif found := observed.found(ResultMeaning.ANSWER):
        yield signal("progress.answer", found.quote)
    else:
        yield signal("progress.tools", f"{len(observed.findings)} calls went well")


_MAX_COMPARED = 20_000


def repeated_calls(observed: ObservedStep) -> Iterator[Signal]:
    """The same call with the same arguments and result again, without a change in between."""
    earlier = _earlier_answers(observed)
    if not earlier:
        return
    answers = {bare_call_id(result.call_id): _text(result) for result in observed.step.results}
    for call in observed.step.calls:
        before = earlier.get(_key(call), [])
        now = answers.get(bare_call_id(call.id))
        same = [text for text in before if now is None or text == now]
        if len(same) >= 2 or (same and now is not None):
            kind = "loop" if len(same) >= 2 else "same"
            yield signal(f"repeat.{kind}", f"{call.name} {call.arguments}")
            return


# Not in the name of a file, such as `src/error.py` or `failed_jobs.sql`.
_FAILED_EDIT = re.compile(
    r"(?<![\w./-])(?:\w{0,40}error|could not find|failed)(?![\w/-]|\.\w)", re.IGNORECASE
)


def _earlier_answers(observed: ObservedStep) -> dict[str, list[str]]:
    """The results of each call of this task since the last edit."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in exchanges(observed.run):
        if isinstance(one, str):
            continue
        call, result = one
        text = _text(result)
        has_failed = result.is_error or _FAILED_EDIT.search(text[:200]) is not None
        if is_edit(call) and not has_failed:
            found.clear()
        found[_key(call)].append(text)
    return found


def _key(call: ToolCall) -> str:
    """The name and arguments of a call, independent of the order and spacing of its fields."""
    fields = call.fields if len(call.arguments) <= _MAX_COMPARED else {}
    fields.pop("description", None)
    shown = json.dumps(fields, sort_keys=True) if fields else call.arguments.strip()
    return f"{call.name} {shown}"


def _text(result: ToolResult) -> str:
    whole = text_of(result.parts)
    # Codex adds a number and a time to every output.
    return whole.partition("\nOutput:\n")[2] or whole


_HEAD_CHARS = 240
_MOSTLY_REFUSAL_CHARS = 400


def apologies(observed: ObservedStep) -> Iterator[Signal]:
    """The agent apologises for this answer in the next one, or in two answers in a row."""
    if observed.later is not None and (quote := _apology(observed.later)):
        yield signal("apology.next", quote)
    previous = observed.step.previous
    if previous is not None and _apology(previous) and (quote := _apology(observed.step)):
        yield signal("apology.loop", quote)


def _apology(step: Step) -> str | None:
    return phrases.APOLOGIES.find(spoken(said_by(step.answer)[:_HEAD_CHARS]))


def bad_endings(observed: ObservedStep) -> Iterator[Signal]:
    """An answer that is empty, cut off, or refuses a harmless task."""
    if observed.step.end is not TurnEnd.COMPLETED:
        return
    if not observed.step.calls and not observed.answer.strip():
        yield signal("ending.empty", "the answer is empty")
        return
    if quote := _cut_off(observed):
        yield signal("ending.cut", quote)
    if quote := _refusal(observed):
        yield signal("ending.refusal", quote)


def _cut_off(observed: ObservedStep) -> str | None:
    if observed.step.finish is Finish.LENGTH:
        return f"…{observed.answer[-60:]}"
    if quote := phrases.CUT_OFF.find(observed.said):
        return quote
    is_open = not observed.step.calls and observed.answer.count("```") % 2 == 1
    return f"…{observed.answer[-60:]}" if is_open else None


def _refusal(observed: ObservedStep) -> str | None:
    if observed.step.calls or len(observed.answer) > _MOSTLY_REFUSAL_CHARS:
        return None
    if observed.step.finish is Finish.CONTENT_FILTER:
        return "stopped by a content filter"
    quote = phrases.REFUSALS.find(spoken(observed.answer[:_HEAD_CHARS]))
    return None if quote is None or phrases.HARM.find(spoken(observed.step.task)) else quote


Detector = Callable[[ObservedStep], Iterator[Signal]]

DETECTORS: tuple[Detector, ...] = (
    tool_errors,
    failed_commands,
    exceptions,
    rejected_calls,
    calls_without_effect,
    test_results,
    environment_faults,
    repeated_calls,
    corrections,
    repeated_requests,
    interruptions,
    reverted_work,
    apologies,
    bad_endings,
    acceptance,
    next_sentence,
    progress,
)
