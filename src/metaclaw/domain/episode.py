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

    @staticmethod
    def uses_of(signature: str) -> tuple[str, str]:
        """The tool and the program in a signature: all but the error, or all if it has none."""
        return signature.rpartition(" · ")[0], signature


@dataclass(frozen=True, slots=True)
class Episode:
    """A failure with what followed. `later` are the signatures of tries that failed after it,
    `error` is the masked error line, and `fix` the call that worked instead. `said` is what the
    person said in between, and `borrowed` the words of the fix that a tool result had named before.
    `output` is what the failed calls put out: data that no model is shown. `remedy` is the
    signature of the call that worked, where it is another program's. `between` are the same failure
    with other calls that worked before that one: each may be what made the difference."""

    signature: Signature
    later: tuple[Signature, ...]
    failed: ToolCall
    error: str
    fix: ToolCall
    said: str
    borrowed: frozenset[str]
    output: str
    remedy: Signature | None
    between: tuple["Episode", ...] = ()

    @property
    def signatures(self) -> tuple[Signature, ...]:
        return tuple(dict.fromkeys((self.signature, *self.later)))
