"""The embedded model, a language model in a child process with exact tokens and log-probabilities;
and the search by meaning.

Imports nothing heavy: torch is loaded in child processes. Names in `_LOADED_ON_USE` are imported at
their first use, since their modules import a tokenizer or read files."""

from importlib import import_module
from typing import TYPE_CHECKING

from metaclaw.engine.client import MODEL_ID, EmbeddedModel
from metaclaw.engine.frames import Generate
from metaclaw.engine.model_files import (
    ModelPlace,
    StoredModel,
    import_model,
    locate_model,
    remove_model,
    stored_models,
)
from metaclaw.engine.prompt import (
    CallParser,
    FolderTokeniser,
    Prompt,
    StopFinder,
    build_prompt,
    make_message,
)
from metaclaw.engine.trainer import EmbeddedTrainer, TrainingPause
from metaclaw.engine.training.run_files import is_complete_adapter

if TYPE_CHECKING:
    from metaclaw.engine.embedding import (
        INSTALL,
        INSTALL_FOR_PROVIDER,
        MeaningSearch,
        missing_packages,
    )
    from metaclaw.engine.vocabulary import Detokenizer, Vocabulary

_LOADED_ON_USE = {
    **dict.fromkeys(
        ("INSTALL", "INSTALL_FOR_PROVIDER", "MeaningSearch", "missing_packages"),
        "metaclaw.engine.embedding",
    ),
    **dict.fromkeys(("Detokenizer", "Vocabulary"), "metaclaw.engine.vocabulary"),
}


def __getattr__(name: str) -> object:
    if name in _LOADED_ON_USE:
        return getattr(import_module(_LOADED_ON_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
