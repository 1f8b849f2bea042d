"""Detectors of tool results: errors, failed commands, exceptions, tests, faults of the environment, and progress."""

import re

from metaclaw.domain.turn import TurnEnd
from metaclaw.domain.verdict import Fault, Signal
from metaclaw.outcome.phrases import likeness, programs_of
from metaclaw.outcome.reading import ToolKind
from metaclaw.outcome.results import GOOD, ResultMeaning
from metaclaw.outcome.signals import ObservedStep, signal

# aider has no tools: it reports in a user message.
_EDIT_NOTES = programs_of("note_edit")


def tool_errors(observed: ObservedStep) -> tuple[Signal, ...]:
    """A tool reports that the call was wrong: no such text, file or tool."""
    if found := observed.found(ResultMeaning.ERROR):
        return (signal("tool_error.reported", found.quote),)
    if found := observed.found(ResultMeaning.UNKNOWN_TOOL):
        return (signal("tool_error.no_such_tool", found.quote),)
    for note in observed.notes:
        low = note[:600].lower()
        if any(sign in low for sign in _EDIT_NOTES):
            return (signal("tool_error.reported", note),)
    return ()


def failed_commands(observed: ObservedStep) -> tuple[Signal, ...]:
    """A command failed or did not end."""
    found = []
    if failed := observed.found(ResultMeaning.EXIT):
        found.append(signal("exit.failed", failed.quote))
    if hung := observed.found(ResultMeaning.HANGS):
        found.append(signal("exit.hangs", hung.quote))
    return tuple(found)


def exceptions(observed: ObservedStep) -> tuple[Signal, ...]:
    """A program ended in an exception, a panic or a crash."""
    found = observed.found(ResultMeaning.EXCEPTION)
    return (signal("exception.raised", found.quote),) if found else ()


# Clients without tool results write this in a user message.
_SCHEMA_NOTES = programs_of("note_schema")


def rejected_calls(observed: ObservedStep) -> tuple[Signal, ...]:
    """A call does not match its tool's schema, or an answer the client's format."""
    if found := observed.found(ResultMeaning.SCHEMA):
        return (signal("schema.rejected", found.quote),)
    for note in observed.notes:
        low = note[:600].lower()
        if sign := next((sign for sign in _SCHEMA_NOTES if sign in low), None):
            return (signal("schema.rejected", sign),)
    return ()


_NOTHING_DONE = re.compile(
    r"^(?:UPDATE|DELETE|INSERT 0|MERGE) 0$|\b0 rows? (?:affected|updated|deleted|changed)|\b0 files? changed|\b0 replacements?\b"
    r"|no tests ran|collected 0 items|no test files|no tests? (?:were )?found|nothing (?:added )?to commit"
    r"|no changes added to commit|\bno (?:files|changes) (?:were )?(?:changed|made|applied)|\bmodified 0\b"
    r"|nothing to (?:do|update|push)|no files? matched",
    re.MULTILINE,
)
_NOT_THERE = re.compile(r"[\w./-]{1,40}: (?:\S.{0,160}: )?no such file or directory", re.IGNORECASE)
_FEW_LINES = 2


def calls_without_effect(observed: ObservedStep) -> tuple[Signal, ...]:
    """A call succeeded but changed nothing, or its object does not exist."""
    for ran, finding in zip(observed.ran, observed.findings, strict=True):
        if finding.meaning is not ResultMeaning.FINE or ran.kind is not ToolKind.SHELL:
            continue
        if found := _NOTHING_DONE.search(ran.text):
            return (signal("hollow.nothing_done", found[0]),)
        lines = [line for line in ran.text.splitlines() if line.strip()]
        if 0 < len(lines) <= _FEW_LINES and all(_NOT_THERE.match(line) for line in lines):
            return (signal("hollow.not_there", lines[0]),)
    return ()


def test_results(observed: ObservedStep) -> tuple[Signal, ...]:
    """Tests passed or failed."""
    if failed := observed.found(ResultMeaning.TESTS_FAILED):
        name = "tests.failed" if observed.has_edited else "tests.failed_untouched"
        return (signal(name, failed.quote),)
    passed = observed.found(ResultMeaning.TESTS_PASSED)
    return (signal("tests.passed", passed.quote),) if passed else ()


def environment_faults(observed: ObservedStep) -> tuple[Signal, ...]:
    """Network, quota, disk, rights, a missing program, or the provider failed, not the agent."""
    if observed.reply.corrections:
        return ()  # the person says that the agent should have known
    if found := observed.found(ResultMeaning.ENVIRONMENT):
        return (signal("environment.fault", found.quote, Fault.ENVIRONMENT),)
    if observed.step.end is TurnEnd.FAILED:
        return (signal("environment.provider", "the provider failed", Fault.ENVIRONMENT),)
    if _was_sent_again(observed):
        return (signal("environment.line", "the same request came again", Fault.ENVIRONMENT),)
    return ()


def _was_sent_again(observed: ObservedStep) -> bool:
    """Whether the connection broke and the client, not the user, repeated the request."""
    said = observed.step.said_after
    if observed.step.end is not TurnEnd.CANCELLED or said is None:
        return False
    like = likeness(observed.step.task, said)
    return said.strip() == observed.step.task.strip() or (like.size > 0 and like.lost == like.added == 0)


def progress(observed: ObservedStep) -> tuple[Signal, ...]:
    """Every call was answered and none failed. If the user spoke, their words count instead."""
    if observed.has_said or not observed.findings or any(finding.meaning not in GOOD for finding in observed.findings):
        return ()
    if observed.found(ResultMeaning.EXPECTED):
        return (signal("progress.expected", observed.findings[-1].quote),)
    if found := observed.found(ResultMeaning.ANSWER):
        return (signal("progress.answer", found.quote),)
    return (signal("progress.tools", f"{len(observed.findings)} calls went well"),)
