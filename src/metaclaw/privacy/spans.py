"""Words with their source."""

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where words come from. Only a user's words and outcomes have authority."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    WEB = "web"
    OUTCOME = "outcome"

    @property
    def commands(self) -> bool:
        """Whether an instruction may come from here."""
        return self in (Source.USER, Source.OUTCOME)

    @property
    def is_outside(self) -> bool:
        """Whether anybody could have written this."""
        return self in (Source.TOOL, Source.WEB)


@dataclass(frozen=True, slots=True)
class Span:
    """Words with their source."""

    source: Source
    text: str
