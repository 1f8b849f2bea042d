"""`metaclaw page`: a new link that signs a browser in to the page."""

from pathlib import Path

import click

from metaclaw.cli.client import Api, connect, expect
from metaclaw.cli.output import json_option, plain, print_json


@click.command()
@json_option
@click.pass_obj
def page(home: Path, as_json: bool) -> None:
    """Print a link to the page. It signs a browser in, once."""
    _, api = connect(home)
    link = sign_in_link(api)
    if as_json:
        print_json({"url": link})
    else:
        click.echo(plain(link))


def sign_in_link(api: Api) -> str:
    """A new link of the running proxy."""
    return str(expect(*api.post("/api/sign-in"))["url"])
