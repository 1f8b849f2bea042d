"""Failures of tool calls: what failed, how, and what worked instead."""

from dataclasses import dataclass

from metaclaw.domain.chat import ToolCall


@dataclass(frozen=True, slots=True)
class Signature:
    """What failed and how, in words that are the same whenever it fails this way."""

    tool: str
    head: str
    error: str

    def __str__(self) -> str:
        return " · ".join(filter(None, (self.tool, self.head, self.error)))


@dataclass(frozen=True, slots=True)
class Episode:
    """A failure with what followed. `error` is the masked error line; `fix` is None if nothing of
    the same purpose worked before the task ended. `said` is what the person said in between, and
    `borrowed` the words of the fix that a tool result had named before."""

    signatures: tuple[Signature, ...]
    failed: ToolCall
    error: str
    fix: ToolCall | None
    said: str
    borrowed: frozenset[str]

    @property
    def signature(self) -> Signature:
        return self.signatures[0]
