"""The embedded model, a language model in a child process with exact tokens and log-probabilities;
and the search by meaning.

Imports nothing heavy: torch is loaded in child processes. Each name is imported when it is first
used: a proxy in front of providers needs few of them."""

from typing import TYPE_CHECKING

from metaclaw.loading import loaded_on_use

if TYPE_CHECKING:
    from metaclaw.engine.client import MODEL_ID, EmbeddedModel
    from metaclaw.engine.embedding import (
        INSTALL,
        INSTALL_FOR_PROVIDER,
        MeaningSearch,
        missing_packages,
    )
    from metaclaw.engine.frames import Generate
    from metaclaw.engine.installation import (
        can_install,
        ensure_packages,
        install_packages,
        lacks_packages,
    )
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
    from metaclaw.engine.vocabulary import Detokenizer, Vocabulary

_LOADED_ON_USE = {
    "MODEL_ID": "client",
    "EmbeddedModel": "client",
    "INSTALL": "embedding",
    "INSTALL_FOR_PROVIDER": "embedding",
    "MeaningSearch": "embedding",
    "missing_packages": "embedding",
    "Generate": "frames",
    "ensure_packages": "installation",
    "install_packages": "installation",
    "can_install": "installation",
    "lacks_packages": "installation",
    "ModelPlace": "model_files",
    "StoredModel": "model_files",
    "import_model": "model_files",
    "locate_model": "model_files",
    "remove_model": "model_files",
    "stored_models": "model_files",
    "CallParser": "prompt",
    "FolderTokeniser": "tokeniser",
    "Prompt": "prompt",
    "StopFinder": "prompt",
    "build_prompt": "prompt",
    "make_message": "prompt",
    "EmbeddedTrainer": "trainer",
    "TrainingPause": "trainer",
    "is_complete_adapter": "training.run_files",
    "Detokenizer": "vocabulary",
    "Vocabulary": "vocabulary",
}
__getattr__ = loaded_on_use(__name__, _LOADED_ON_USE)
