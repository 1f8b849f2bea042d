"""A person's own words in a user message of a known agent, for whoever reads turns after they were served."""

from typing import Final

from metaclaw.proxy.origin.clients import CLIENTS
from metaclaw.proxy.origin.clients.sdks import UNKNOWN
from metaclaw.proxy.origin.glue import without_ephemeral
from metaclaw.proxy.origin.tasks import words

_BY_NAME: Final = {client.name: client for client in CLIENTS}


def own_words(agent: str, text: str) -> str:
    """What the person said, without what the agent or a channel glued to it; empty where a program wrote all of it."""
    return words(_BY_NAME.get(agent, UNKNOWN), without_ephemeral(text))
