"""The embedded model: a language model served from a child process, with exact tokens and log-probabilities."""

from metaclaw.engine.client import MODEL_ID, EmbeddedModel
from metaclaw.engine.toolcalls import CallParser

__all__ = ["MODEL_ID", "CallParser", "EmbeddedModel"]
