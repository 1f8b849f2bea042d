"""`metaclaw demo`: run the real program in a temporary home through its public interfaces, and
print what happens.
"""

import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import tomlkit

from metaclaw.plugin import (
    Config,
    ConfigError,
    MetaClawError,
    ProviderConfig,
    load_config,
    show_progress,
)
from metaclaw_demo.stage import DemoHome, DemoReply, Stage, running, show_reply
from metaclaw_demo.training import act_two

_NOTED_WITHIN_S = 30.0
_TOKENS = 40


@click.command()
@click.option("--unattended", is_flag=True, help="Ask nothing: use the default texts.")
@click.option(
    "--acts",
    default="1",
    show_default=True,
    help="Which acts: 1, a correction takes effect; 2, weights are trained (about ten minutes).",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    default=15.0,
    show_default=True,
    help="Most minutes for act two.",
)
@click.option(
    "--embedded",
    "is_embedded",
    is_flag=True,
    help="Act one with the embedded model, also if there is a provider.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary homes, and print where they are.")
@click.option(
    "--base-model",
    type=click.Path(exists=True, file_okay=False),
    help="Use the model in this folder instead of the embedded one.",
)
@click.option(
    "--check",
    help="Act two: the pattern that an answer must have, for another model than the embedded one.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Act two: override a setting; may be repeated.",
)
@click.pass_obj
def demo(
    home: Path,
    unattended: bool,
    acts: str,
    minutes: float,
    is_embedded: bool,
    keep: bool,
    base_model: str | None,
    check: str | None,
    sets: tuple[str, ...],
) -> int:
    """Watch it learn: you correct it once and it obeys. With `--acts 1,2` it then trains its weights
    while you are away.

    Runs the real program in a temporary home, with your providers. Exits with 1 if something that
    should happen did not."""
    wanted = _acts(acts)
    folder = Path(tempfile.mkdtemp(prefix="metaclaw-demo-"))
    stage = Stage(home, folder, unattended, minutes, base_model, check, sets)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.default_int_handler
        )  # as Ctrl-C: stop the proxy and remove the folder
    try:
        if 1 in wanted:
            _act_one(stage, is_embedded=is_embedded)
        if 2 in wanted:
            act_two(stage)
    except (click.Abort, KeyboardInterrupt):
        raise MetaClawError("the demo was stopped, and its proxy with it") from None
    finally:
        show_progress("")
        if keep:
            click.echo(f"The homes of this demo are in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    status = _summary(stage.seen)
    if 2 not in wanted:
        click.echo("How it trains its weights, in about ten minutes: metaclaw demo --acts 2")
    return status


def _acts(given: str) -> set[int]:
    numbers = {word.strip() for word in given.split(",") if word.strip()}
    if not numbers or not numbers <= {"1", "2"}:
        raise ConfigError(
            f"--acts {given} names no acts of the demo; write --acts 1, --acts 2 or --acts 1,2"
        )
    return {int(number) for number in numbers}


def _summary(seen: Sequence[tuple[str, bool | None]]) -> int:
    missed = [what for what, is_seen in seen if is_seen is False]
    click.echo(f"\n{sum(is_seen is True for _, is_seen in seen)} of {len(seen)} claims were seen.")
    for what in missed:
        click.echo(f"  not seen: {what}")
    for what, is_seen in seen:
        if is_seen is None:
            click.echo(f"  could not be shown here: {what}")
    return 1 if missed else 0


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A question and a correction. An answer that follows the correction contains one of `marks`,
    in lower case.
    """

    question: str
    correction: str
    marks: tuple[str, ...]


_WITH_PROVIDER = _Lesson(
    "What is the capital of France?",
    'From now on, always begin every answer with the words "Aye, captain".',
    ("aye, captain",),
)
# Measured at temperature 0: the embedded model does not say Kestrel before the correction, and says
# it after.
_WITH_EMBEDDED = _Lesson(
    "What is our test server called?",
    "Always use the word Kestrel for our test server.",
    ("kestrel",),
)


def _act_one(stage: Stage, *, is_embedded: bool) -> None:
    stage.say("\n== Act one: say it once")
    providers = "" if is_embedded else usable_providers(stage)
    config = providers or (
        f'[policy]\nmode = "skills_only"\nbase_model = "{stage.base_model}"\n'
        if stage.base_model
        else ""
    )
    lesson = _WITH_PROVIDER if providers else _WITH_EMBEDDED
    stage.say(
        "Starting the program in a temporary home"
        f" ({'your provider' if providers else model_name(stage)} answers) …"
    )
    with running(stage, "one", config) as proxy:
        stage.say(f"It serves at {proxy.url}. Its page: {proxy.page}")
        question = stage.typed("Ask something", lesson.question)
        # Not every provider's model accepts a temperature; the embedded model was measured at 0.
        temperature = None if providers else 0.0
        before = proxy.ask(question, temperature=temperature, max_tokens=_TOKENS)
        show_reply(before)
        correction = stage.typed(
            "Now correct it or state a rule, in your own words", lesson.correction
        )
        is_default = (question, correction) == (lesson.question, lesson.correction)
        known = set(proxy.rules())
        show_reply(
            proxy.ask(
                correction,
                after=[(question, before.text)],
                temperature=temperature,
                max_tokens=_TOKENS,
            )
        )
        noted = _await_rules(proxy, known)
        stage.claim(
            "what you said was noted: "
            + ("; ".join(f"“{text}”" for text in noted.values()) or "nothing"),
            bool(noted),
        )
        if not noted:
            stage.say(why_not_noted(has_provider=bool(providers)))
        stage.say("The same question again, in a new conversation:")
        after = proxy.ask(question, temperature=temperature, max_tokens=_TOKENS)
        show_reply(after)
        stage.claim(
            "the rule was in the prompt of your next request",
            bool(noted) and set(noted) <= set(after.placed),
        )
        _claim_obedience(
            stage, lesson, before, after, is_default=is_default, has_provider=bool(providers)
        )
        _undo(stage, proxy, question, noted, temperature)


def _claim_obedience(
    stage: Stage,
    lesson: _Lesson,
    before: DemoReply,
    after: DemoReply,
    *,
    is_default: bool,
    has_provider: bool,
) -> None:
    if not is_default:
        stage.say(
            "See above whether the model obeyed. The rule was in its prompt; whether it follows it"
            " is up to the model."
        )
        return
    obeyed = [any(mark in reply.text.lower() for mark in lesson.marks) for reply in (before, after)]
    is_seen = obeyed == [False, True]
    if has_provider or is_seen:
        stage.claim("the next answer obeys, and the one before did not", is_seen)
        return
    stage.claim(
        "the next answer obeys: this small model was given the rule and did not follow it", None
    )


def _undo(
    stage: Stage, proxy: DemoHome, question: str, noted: dict[str, str], temperature: float | None
) -> None:
    if not noted:
        return
    stage.say("Take it back (metaclaw undo):")
    proxy.post("/api/undo")
    left = set(proxy.rules())
    reply = proxy.ask(question, temperature=temperature, max_tokens=_TOKENS)
    show_reply(reply)
    stage.claim(
        "after undo the rule is gone, also from the prompt",
        not left & set(noted) and not set(noted) & set(reply.placed),
    )


def _await_rules(proxy: DemoHome, known: set[str]) -> dict[str, str]:
    """Wait for rules and facts that are not in `known`; empty if none came in time."""
    deadline = time.monotonic() + _NOTED_WITHIN_S
    while time.monotonic() < deadline:
        new = {name: text for name, text in proxy.rules().items() if name not in known}
        if new:
            show_progress("")
            return new
        show_progress("reading what you said …")
        time.sleep(0.2)
    show_progress("")
    return {}


def why_not_noted(*, has_provider: bool) -> str:
    """Explain why the correction gave no rule."""
    if has_provider:
        return (
            f"The model that reads your messages gave no rule within {_NOTED_WITHIN_S:g} s: it"
            " found none, or did not answer."
        )
    return (
        f"It was not noted within {_NOTED_WITHIN_S:g} s. Only sure phrases are understood without a"
        " provider: begin with “From now on” or “Always”."
    )


def usable_providers(stage: Stage) -> str:
    """The configured providers that need no credentials of the caller, as TOML. Prints which cannot
    be used, and why.
    """
    home, config = stage.home, load_config(stage.home)
    hosted = [
        one
        for one in config.providers
        if one.kind != "embedded" and not (one.api_key and one.api_key.is_passthrough)
    ]
    missing = {one.name: reason for one in hosted if (reason := _missing_key(config, one))}
    usable = {one.name for one in hosted} - missing.keys()
    for name, reason in missing.items():
        stage.say(f"Your provider {name} is not asked: {reason}.")
    if missing and not usable:
        stage.say("The embedded model answers instead, as with --embedded.")
    path = home / "config.toml"
    if not usable or not path.exists():
        return ""
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    entries = [entry for entry in document.get("providers", ()) if entry.get("name") in usable]
    kept = {key: document[key] for key in ("listen", "judge") if key in document}
    return tomlkit.dumps({"providers": entries, **kept}) if entries else ""


def _missing_key(config: Config, provider: ProviderConfig) -> str | None:
    """Why the provider's key cannot be used here; None if it can, or if the provider needs none."""
    if provider.api_key is None:
        return None
    try:
        key = provider.api_key.resolve()
    except ConfigError as error:
        return str(error)
    own = config.proxy.api_key
    is_own = own is not None and own.is_literal and own.resolve() == key
    return (
        f"{provider.api_key.masked} holds MetaClaw's own key in this shell; export the provider's"
        if is_own
        else None
    )


def model_name(stage: Stage) -> str:
    """Name the model that answers without a provider."""
    if stage.base_model:
        return f"the model in {stage.base_model}, not the embedded one,"
    return "the embedded model, 135 million parameters,"
