"""`metaclaw key`: print the key that callers of this home's proxy present."""

from pathlib import Path

import click

from metaclaw.cli.output import json_option, print_json


@click.command()
@json_option
@click.pass_obj
def key(home: Path, as_json: bool) -> None:
    """Print the proxy's own key, for example for `export OPENAI_API_KEY=$(metaclaw key)`. Creates none."""
    from metaclaw.config import load
    from metaclaw.errors import ConfigError

    config = load(home)
    secret = config.proxy.api_key
    if secret is None:
        raise ConfigError(
            f"{home} has no key yet: metaclaw start generates one, or set your own with: metaclaw config set proxy.api_key KEY"
        )
    if as_json:
        print_json({"api_key": secret.resolve(), "source": str(config.where("proxy.api_key"))})
    else:
        click.echo(secret.resolve())
