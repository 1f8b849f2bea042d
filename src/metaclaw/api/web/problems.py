"""What is wrong now, for the page: what happened, why, and what to do."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def problems(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Current problems, from the facts of `/api/status`."""
    return [
        *_of_providers(status),
        *_of_listener(status["learning"].get("listener", {})),
        *_of_answers(status["learning"].get("unusable", ())),
        *_of_store(status),
        *_of_skills(status["skills"]),
        *_of_programs(status),
    ]


def _problem(what: str, why: str, do: str = "") -> dict[str, Any]:
    return {"what": what, "why": why, "do": do}


def _of_providers(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for one in status["providers"]:
        failure = one["last_failure"]
        if failure is not None and failure["in_a_row"]:
            do = "Check that it runs and that base_url in config.toml is right." if "reached" in failure["reason"] else ""
            yield {**_problem(f"Provider {one['name']} does not answer", failure["reason"], do), "at": failure["at"]}


def _of_listener(listener: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The model that reads what people say does not answer, or not in a way that can be used."""
    for one in listener.get("failing", ()):
        why = f"{one['model']}: {one['reason']} ({_messages(listener['unread'])} unread)"
        yield {**_problem("What you say is not being read", why, "It is asked again within a minute."), "at": one["since"]}
    for one in listener.get("not_understood", ()):
        if one["in_a_row"]:
            why = f"{one['model']} gave no usable answer to the last {_messages(one['in_a_row'])}: {one['reason']}"
            do = "Name another model as listen.model in config.toml."
            yield {**_problem("What you say is read and not understood", why, do), "at": one["at"]}


_ROLES = {"judge": "The model that judges gives unusable answers", "evolver": "The model that writes skills gives unusable answers"}


def _of_answers(unusable: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The model that judges or writes skills answers, and not in a way that can be used."""
    for one in unusable:
        why = f"{one['model']}: {one['answers']} of the last {one['answers']}: {one['reason']}"
        do = f"Name another model: metaclaw config set {one['role']}.model MODEL"
        yield {**_problem(_ROLES[one["role"]], why, do), "at": one["at"]}


def _messages(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"


def _of_store(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    store = status["store"]
    if status["degraded"]:
        yield _problem("Turns are not being recorded", store["reason"] or "", "Run metaclaw doctor.")
    elif store["notice"]:
        yield _problem("The store needs attention", store["notice"])


def _of_skills(skills: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if skills["trouble"]:
        yield _problem("The skills folder cannot be read", skills["trouble"])
    for one in skills["skipped"]:
        yield _problem("A skill file is left out", f"{one['path']}: {one['reason']}")
    for one in skills["broken_checks"] or ():
        yield _problem(f"The check of {one['name']} is not run", one["reason"])


def _of_programs(status: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Background tasks, the embedded model, and training."""
    for name, state in status["loops"].items():
        if state not in ("running", "done"):
            yield _problem(f"The background task {name} is in trouble", state, "The log has details.")
    engine = status["engine"]
    if engine is not None and not engine["state"].startswith(("ready", "starting", "loading")):
        yield _problem("The embedded model does not answer", f"it is {engine['state']}")
    for trouble in status["training"].get("troubles", ()):
        yield _problem("Training is in trouble", trouble)
