"""The embedded model: a language model served from a child process, with exact tokens and log-probabilities.

Imports nothing heavy: torch is loaded in child processes. `vocabulary` is imported by its own name, since it loads a tokenizer.
"""

from metaclaw.engine.adapter_check import is_whole
from metaclaw.engine.client import MODEL_ID, EmbeddedModel
from metaclaw.engine.frames import Generate
from metaclaw.engine.prompt import Prompt, build_prompt, make_message
from metaclaw.engine.tokeniser import FolderTokeniser
from metaclaw.engine.tool_calls import CallParser
from metaclaw.engine.trainer import EmbeddedTrainer
from metaclaw.engine.training_pause import TrainingPause

__all__ = [
    "MODEL_ID",
    "CallParser",
    "EmbeddedModel",
    "EmbeddedTrainer",
    "FolderTokeniser",
    "Generate",
    "Prompt",
    "TrainingPause",
    "build_prompt",
    "is_whole",
    "make_message",
]
