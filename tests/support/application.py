"""The program's own composition in this process: opened as the program opens it, but nothing
listens and no loop runs.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from metaclaw.app.application import Application
from metaclaw.app.providers import ConfiguredProviders
from metaclaw.config import build
from metaclaw.ports import ModelProvider

UNREACHABLE = {
    "name": "main",
    "kind": "openai",
    "base_url": "http://127.0.0.1:1/v1",
    "models": ["m-1"],
}


def configured(folder: Path, model: ModelProvider | None = None, **sections: Any) -> Application:
    """The program on this folder, not opened. `model` is its only provider where it is given;
    skills are found by words alone unless `skills` says otherwise."""
    tree = {"providers": [UNREACHABLE], **sections}
    config = build({**tree, "skills": {"retrieval": "words", **tree.get("skills", {})}}, folder)
    providers = ConfiguredProviders(config, folder)
    if model is not None:
        providers.all = [model]
    return Application(config, folder, providers=providers)


@asynccontextmanager
async def opened(application: Application) -> AsyncIterator[Application]:
    """Open the program, and close it at the end of the block."""
    async with AsyncExitStack() as parts:
        await application.open(parts)
        yield application
