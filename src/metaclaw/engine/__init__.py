"""The embedded model: a language model served from a child process, with exact tokens and log-probabilities."""

from metaclaw.engine.client import MODEL_ID, EmbeddedModel
from metaclaw.engine.tokeniser import FolderTokeniser
from metaclaw.engine.toolcalls import CallParser
from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.turnstile import Turnstile
from metaclaw.engine.wholeness import is_whole

__all__ = ["MODEL_ID", "CallParser", "EmbeddedModel", "EmbeddedTrainer", "FolderTokeniser", "Turnstile", "is_whole"]
