"""The status in words: current problems with what to do, and a summary in lines. The page and the
commands show both.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metaclaw.domain.status import (
    LoopState,
    money,
    outcome_word,
    reason_words,
    replaced_words,
)

Facts = Mapping[str, Any]
Line = tuple[str, str]
_NOTED_SHOWN = 3
_WORDS_SHOWN = 3
_MOST_TEXT = 80
_LISTEN_TOKENS = 1_500
"""The most tokens that reading one message of a person takes."""
_SHORT_TOKENS = 20_000
"""A day's budget below this is enough for few new skills or none."""
_GATES = {
    "off": "learned skills serve at once",
    "lint": "learned skills serve once their text is sound",
}
"""What each value of `skills.gate` means."""
_ROLES = {
    "judge": "The model that judges gives unusable answers",
    "evolver": "The model that writes skills gives unusable answers",
}
_ASKED_FOR = {
    "listen": ("what you say is not read", "listen"),
    "confirm": ("new rules get no second opinion", "listen"),
    "check": ("rules get no checks", "listen"),
    "judge": ("answers are not judged", "judge"),
    "evolve": ("nothing is learned from failures", "evolver"),
}
"""What does not happen without a model, by purpose, and the table that names the model."""
_PENDING = {
    "turns": ("turn", "turns"),
    "sessions": ("ended session", "ended sessions"),
    "listening": ("message", "messages"),
    "lessons": ("lesson", "lessons"),
    "evolutions": ("skill in writing", "skills in writing"),
    "candidates": ("candidate", "candidates"),
}
_BRIEF = frozenset(
    (
        *("recorded", "rules", "skills", "lessons", "learning", "to learn", "noted"),
        *("counted", "budget", "listening", "policy", "training", "provider", "embedded"),
    )
)
"""Labels of the most important lines."""


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def short(text: object, most: int) -> str:
    """A text on one line of at most `most` characters."""
    line = " ".join(str(text)[: 8 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def problems(status: Facts) -> list[dict[str, Any]]:
    """Current problems: what they are about, what is wrong, why, and what to do."""
    learning, training = status["learning"], status["training"]
    return [
        *_of_providers(status["providers"]),
        *_of_listener(learning["listener"]),
        *(
            _problem(
                "model",
                _ROLES[one["role"]],
                f"{one['model']}: {one['answers']} of the last {one['answers']}: {one['reason']}"
                + _unwritten(learning, one["role"]),
                f"Name another model: metaclaw config set {one['role']}.model MODEL",
                one["at"],
            )
            for one in learning["unusable"]
        ),
        *(problem for one in learning["refused"] for problem in _of_refused(one)),
        *_of_store(status),
        *_of_skills(status["skills"]),
        *(
            _problem(
                "learning",
                f"Learning passed over {one['loop']} {one['item']}",
                f"the learner died of it, or failed, {one['tries']} times",
            )
            for one in learning["set_aside"]
        ),
        *_of_programs(status),
        *(_problem("training", "Training", trouble) for trouble in training.get("troubles", ())),
        *(
            _problem("training", f"The signal {one['name']} says nothing", one["why"])
            for one in (status["window"] or {}).get("signals", ())
            if one["trouble"]
        ),
    ]


def _unwritten(learning: Facts, role: str) -> str:
    """The failures that wait until the evolver gives a usable answer."""
    waiting = learning.get("unwritten") if role == "evolver" else 0
    return f" ({counted(waiting, 'failure')} to ask about again)" if waiting else ""


def _problem(
    about: str, what: str, why: str, do: str = "", at: str | None = None
) -> dict[str, Any]:
    return {"about": about, "what": what, "why": why, "do": do, "at": at}


def _of_providers(providers: Sequence[Facts]) -> Iterator[dict[str, Any]]:
    for one in providers:
        failure = one["last_failure"]
        if failure is not None and failure["in_a_row"]:
            is_away = "reached" in failure["reason"]
            do = "Check that it runs and that base_url in config.toml is right." if is_away else ""
            what = f"Provider {one['name']} does not answer"
            times = failure["in_a_row"]
            why = f"{failure['reason']}, {times} times in a row" if times > 1 else failure["reason"]
            yield _problem("provider", what, why, do, failure["at"])


def _of_listener(listener: Facts) -> Iterator[dict[str, Any]]:
    """The model that reads messages does not answer, or its answers cannot be used."""
    for one in listener["failing"]:
        why = f"{one['model']}: {one['reason']} ({counted(listener['unread'], 'message')} unread)"
        do = "It is asked again within a minute."
        yield _problem("listening", "What you say is not being read", why, do, one["since"])
    for one in listener["not_understood"]:
        if one["in_a_row"]:
            last = counted(one["in_a_row"], "message")
            why = f"{one['model']} gave no usable answer to the last {last}: {one['reason']}"
            do = "They wait for another model: metaclaw config set listen.model MODEL"
            what = "What you say is read and not understood"
            yield _problem("listening", what, why, do, one["at"])


def _of_refused(refused: Facts) -> Iterator[dict[str, Any]]:
    """A provider refuses a model that learning asks; a problem for each table that may name one."""
    shown = set[str]()
    for purpose, instead in refused["instead"].items():
        missing, table = _ASKED_FOR[purpose]
        if table in shown:
            continue
        shown.add(table)
        effect = f"{instead} is asked instead" if instead else missing
        yield _problem(
            "model",
            f"Learning cannot ask the model {refused['model']}",
            f"{refused['reason']}; {effect}",
            f"Name one that you may use: metaclaw config set {table}.provider PROVIDER,"
            f" metaclaw config set {table}.model MODEL",
            refused["at"],
        )


def _of_store(status: Facts) -> Iterator[dict[str, Any]]:
    store = status["store"]
    if store["notice"]:
        yield _problem("store", "The store needs attention", store["notice"])
    elif status["degraded"]:
        why = store["reason"] or "the store cannot be written"
        yield _problem("store", "Turns are not being recorded", why, "Run metaclaw doctor.")


def _of_skills(skills: Facts) -> Iterator[dict[str, Any]]:
    if skills["trouble"]:
        yield _problem("skills", "The skill library is not up to date", skills["trouble"])
    for one in skills["skipped"]:
        yield _problem("skills", "A skill file is skipped", f"{one['path']}: {one['reason']}")
    for one in skills["broken_checks"] or ():
        yield _problem("skills", f"The check of {one['name']} is not run", one["reason"])


def _of_programs(status: Facts) -> Iterator[dict[str, Any]]:
    """Background tasks, and the embedded model."""
    for name, state in status["loops"].items():
        if state not in ("running", "done"):
            what = f"The background task {name} is in trouble"
            yield _problem("program", what, state, "The log has details.")
    engine = status["engine"]
    if engine is not None and not engine["state"].startswith(("ready", "starting", "installing")):
        yield _problem("program", "The embedded model does not answer", f"it is {engine['state']}")


def summary(status: Facts) -> list[dict[str, Any]]:
    """The status as lines with labels; a line without one belongs to the line before it. The
    important ones are brief."""
    found = []
    is_brief = False
    for label, text in _lines(status):
        is_brief = label in _BRIEF if label else is_brief
        found.append({"label": label, "text": text, "is_brief": is_brief})
    return found


def _lines(status: Facts) -> Iterator[Line]:
    counts, skills, store = status["counts"], status["skills"], status["store"]
    yield "recorded", _recorded(counts)
    rules, facts = counted(counts["rules"], "rule"), counted(counts["facts"], "fact")
    yield "rules", f"{rules}, {facts} of yours; metaclaw rules lists them"
    if held := status["enforcement"]["held_rules"]:
        is_on = status["enforcement"]["on"]
        off = "" if is_on else ", but enforcement is off: metaclaw enforce on"
        yield "", f"{counted(len(held), 'rule')} held{off}"
    yield "skills", _skills(status)
    if (week := status["lessons"]) is not None:
        yield "lessons", lesson_words(week)
    search = skills["retrieval"]
    is_hybrid = search["mode"] == "hybrid"
    by = f"words and meaning, with {search['embeddings']}" if is_hybrid else "words alone"
    yield "search", f"found by {by} ({search['state']})"
    yield from _learning(status["learning"], counts)
    yield from _policy(status)
    yield "store", _store(store)
    for one in status["providers"]:
        wires, models = ", ".join(one["wires"]), ", ".join(one["models"])
        kind = f"{one['kind']}: {wires}" if wires else one["kind"]
        serves = f"; serves {models}" if models else ""
        yield "provider", f"{one['name']} ({kind}), {one['state']}{serves}"
    if status["engine"] is not None:
        yield "embedded", f"model {status['engine']['state']}"
    if status["server"] is not None:
        yield "server", f"{status['server']['name']} {status['server']['state']}"
    states = status["loops"].values()
    in_order = sum(state in ("running", "done") for state in states)
    yield "loops", f"{in_order} of {len(states)} in order"


def lesson_words(week: Mapping[str, int]) -> str:
    """What the lessons of a home did in the last week."""
    prevented = counted(week["prevented"], "repeat")
    withdrawn = counted(week["withdrawn"], "lesson")
    return (
        f"{week['in_force']} in force; this week: {prevented} prevented, {withdrawn} withdrawn"
        " (metaclaw lessons)"
    )


def _recorded(counts: Facts) -> str:
    if counts["turns"] is None:
        return "cannot be counted now"
    active = f", {counts['active_sessions']} of them open" if counts["active_sessions"] else ""
    return f"{counted(counts['turns'], 'turn')} in {counted(counts['sessions'], 'session')}{active}"


def _skills(status: Facts) -> str:
    """The number of skills in force, by state unless all are live."""
    states = status["counts"]["skills"]
    words = counted(sum(states.values()), "skill")
    if set(states) - {"live"}:
        words += f" ({', '.join(f'{count} {state}' for state, count in sorted(states.items()))})"
    return f"{words}, generation {status['generation']}"


def _learning(learning: Facts, counts: Facts) -> Iterator[Line]:
    if not learning["on"]:
        yield "learning", "off (skills.learn)"
        return
    yield "learning", f"on; {_GATES[learning['gate']]}"
    yield "to learn", _pending(learning["pending"], learning.get("unwritten", 0))
    yield from _labelled("noted", map(_noted, (learning["noted"] or ())[:_NOTED_SHOWN]))
    kinds = (
        f"{one['failures']} of the {one['needed']} failures from which a skill is written:"
        f" {one['words'] or one['kind']}"
        for one in learning["counted"]
    )
    yield from _labelled("counted", kinds)
    yield "verdicts", _verdicts(counts)
    yield "candidates", _tally(counts["candidates"] or {}) or "none"
    rejected = learning["rejected"] or {"reasons": {}, "last": []}
    if reasons := _tally(rejected["reasons"]):
        yield "rejected", reasons
    for one in rejected["last"]:
        yield "", f"{one['name']} ({one['text']}): {one['reason']}"
    yield from _labelled("budget", learning["budget"]["words"] if "budget" in learning else ())
    judged = learning.get("judged_today", {"of": 0})
    of = counted(judged["of"], "turn")
    asked = f", asked about {judged['turns']} of {of} today" if judged["of"] else ""
    yield "judge", f"{learning['judge']}{asked}" if learning["judge"] else "none"
    yield (
        "listening",
        learning["listen"]
        or "no model reads your messages (the embedded model cannot): only sure phrases add rules,"
        " and no phrase takes one back. Use metaclaw rules and metaclaw undo, or set"
        " listen.provider and listen.model",
    )
    for one in learning["listener"]["not_understood"]:
        yield "", f"{one['model']} gave no usable answer to {counted(one['messages'], 'message')}"
    yield "evolver", learning["evolver"] or "none; only your own words become skills"
    for purpose, spent in learning.get("asked", {}).items():
        failed = f", {spent['failures']} failed" if spent["failures"] else ""
        tokens = f"{spent['input_tokens']} → {spent['output_tokens']} tokens"
        yield "asked", f"{purpose}: {counted(spent['calls'], 'call')}{failed}, {tokens}"


def _labelled(label: str, texts: Iterator[str] | Sequence[str]) -> Iterator[Line]:
    """Lines of which only the first has the label."""
    for number, text in enumerate(texts):
        yield "" if number else label, text


def _noted(change: Facts) -> str:
    """A lesson with its reason and texts."""
    if replaced := replaced_words(change):
        return f"{(change['at'] or '')[:16].replace('T', ' ')}  {replaced}"
    words = " / ".join(short(one["text"], _MOST_TEXT) for one in change["put"][:_WORDS_SHOWN])
    when = (change["at"] or "")[:16].replace("T", " ")
    return f"{when}  {reason_words(change['reason'])}{f': {words}' if words else ''}"


def _pending(pending: Mapping[str, int] | None, unwritten: int) -> str:
    """The work that waits for learning."""
    if pending is None:
        return "cannot be counted now"
    left = [counted(pending[kind], *words) for kind, words in _PENDING.items() if pending.get(kind)]
    if unwritten:
        left.append(f"{counted(unwritten, 'failure')} to ask about again")
    return ", ".join(left) or "nothing; everything so far has been examined"


def _verdicts(counts: Facts) -> str:
    if counts["verdicts"] is None:
        return "cannot be counted now"
    in_words = {outcome_word(name): count for name, count in counts["verdicts"].items()}
    taught = f"; {counted(counts['support'], 'turn')} taught skills" if counts["support"] else ""
    return f"{_tally(in_words) or 'none yet'}{taught}"


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _policy(status: Facts) -> Iterator[Line]:
    """The serving policy version, the state of training, and why turns are set aside."""
    training, version = status["training"], status["policy_version"]
    if training["state"] == "off" and not version:
        yield "policy", "off; no weights are trained"
        return
    serving = f"version {version}" if version else "version 0, the untrained model"
    yield "policy", f"{serving}{_newest(status['newest_version'])}"
    if training["state"] != "off":
        paused = f"; paused: {training['paused_reason']}" if training["paused_reason"] else ""
        yield "training", f"{training['state']}{_progress(training)}{paused}"
        yield "set aside", _tally(status["counts"]["rejections"] or {}) or "no turns"


def _progress(training: Facts) -> str:
    """How far a run is, or the test of its version."""
    if training["state"] != LoopState.TRAINING:
        return f" ({training['test']})" if training.get("test") else ""
    step, steps = training["step"], training.get("steps")
    made = "" if step is None else f", step {step}"
    made += f" of at most {steps}" if made and steps is not None else ""
    if (reward := training.get("mean_reward")) is not None:
        made += f", mean reward {reward:.2f}"
    if (validated := training.get("validated")) is not None:
        made += f" (likeliest answers to validation prompts: {validated:.2f})"
    return made


def _newest(version: Facts | None) -> str:
    """That the newest version is being tested, or was rejected and why; empty otherwise."""
    if version is None or version["state"] not in ("candidate", "rejected"):
        return ""
    if version["state"] == "candidate":
        return f"; version {version['version']} is being tested"
    reasons = version["report"]["reasons"] if version["report"] else ()
    return (
        f"; version {version['version']} was rejected, so nothing changes:"
        f" {short(next(iter(reasons), ''), _MOST_TEXT)} (metaclaw policy show {version['version']})"
    )


def _store(store: Facts) -> str:
    words = f"{store['kind']}, {store['health']}"
    if store["size_bytes"] is not None:
        limit = store["max_bytes"]
        of = f" of {limit / 1e9:g} GB" if limit is not None else " GB"
        words += f", {store['size_bytes'] / 1e9:.2f}{of}"
    if store["removed_sessions"]:
        words += f", {counted(store['removed_sessions'], 'old session')} removed to make room"
    if store["reason"]:
        words += f" ({store['reason']})"
    if store["waiting_turns"]:
        words += f"; {counted(store['waiting_turns'], 'turn')} waiting in memory"
    if store["lost_turns"]:
        words += f"; {counted(store['lost_turns'], 'turn')} lost"
    return words


def budget_words(budget: Facts) -> Iterator[str]:
    """The used share of the day's budget, and the requests that wait for more."""
    used, limit, most = budget["used"], budget["limit"], budget["limit_cost"]
    if not limit and most is None:
        yield (
            "0 tokens a day: learning is off, and only sure phrases become rules. To switch it on,"
            " raise learning.daily_tokens"
        )
        return
    share = f" ({used / limit:.0%})" if limit else ""
    spent = f", {money(budget['used_cost'], budget['unpriced_tokens'])}"
    if most is not None:
        spent += f" of ${most:,.2f}"
    elif not budget["used_cost"]:
        spent = ""
    renewed = budget["resets_at"][11:16]
    reading = f", and {budget['reading']:,} to read what you say" if budget["reading"] else ""
    yield f"{used:,} of {limit:,} tokens used today{share}{spent}{reading}; renewed at {renewed}"
    if 0 < limit < _SHORT_TOKENS:
        yield (
            f"short: reading one message takes up to {_LISTEN_TOKENS:,} tokens, a new skill"
            f" {_SHORT_TOKENS:,} and more"
        )
    if waiting := [f"{one['purpose']} ({one['count']})" for one in budget["waiting"]]:
        yield (
            f"learning waits because the budget is used up: {', '.join(waiting)}. To go on now,"
            " raise learning.daily_tokens (or learning.daily_cost) and restart"
        )
