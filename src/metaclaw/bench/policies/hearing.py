"""What a person said in a prompt, whatever agents and the proxy have glued to it."""

from metaclaw.bench.policies.minds import Message, Prompt
from metaclaw.proxy import own_words
from metaclaw.skills import remove_blocks

# Of the agents that a simulated model has been put behind, the one that glues something to what is said.
_AGENT = "openclaw"


def said(message: Message) -> str:
    """A message without what a program added; empty where a program wrote all of it."""
    text = remove_blocks(message.text)
    return own_words(_AGENT, text) if message.role == "user" else text


def last_words(prompt: Prompt) -> tuple[int, str] | None:
    """Where a person spoke last, and what they said; None where nobody did."""
    spoken = ((at, said(one)) for at, one in reversed(list(enumerate(prompt.messages))) if one.role == "user")
    return next(((at, words) for at, words in spoken if words), None)
