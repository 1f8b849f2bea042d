"""The embedded model, a language model in a child process with exact tokens and log-probabilities;
and the search by meaning.

Imports nothing heavy: torch is loaded in child processes. Names in `_LOADED_ON_USE` are imported at
their first use, since their modules import a tokenizer or read files."""

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
    Prompt,
    StopFinder,
    build_prompt,
    make_message,
)
from metaclaw.engine.tokeniser import FolderTokeniser
from metaclaw.engine.trainer import EmbeddedTrainer, TrainingPause
from metaclaw.engine.training.run_files import is_complete_adapter
from metaclaw.loading import loaded_on_use

if TYPE_CHECKING:
    from metaclaw.engine.embedding import (
        INSTALL,
        INSTALL_FOR_PROVIDER,
        MeaningSearch,
        missing_packages,
    )
    from metaclaw.engine.vocabulary import Detokenizer, Vocabulary

_LOADED_ON_USE = {
    "INSTALL": "embedding",
    "INSTALL_FOR_PROVIDER": "embedding",
    "MeaningSearch": "embedding",
    "missing_packages": "embedding",
    "Detokenizer": "vocabulary",
    "Vocabulary": "vocabulary",
}
__getattr__ = loaded_on_use(__name__, _LOADED_ON_USE)
