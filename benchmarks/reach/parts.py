"""The parts of the benchmark. Each starts the program in a fresh home and gives figures."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.reach import distractors
from benchmarks.reach.data import Record
from benchmarks.reach.figures import Figure, by_language, percentile, share
from benchmarks.reach.lessons import LESSONS, Lesson, agent_prompt
from benchmarks.reach.model import ScriptedModel
from benchmarks.reach.provider import TRAFFIC, ScriptedProvider
from benchmarks.reach.text import carries
from benchmarks.reach.world import NEXT, Sent, World, running

ALWAYS = ("", "always")
PROMPTS = (500, 12_000, 25_000, 100_000)
FLOOR_TOKENS = 300_000
_BEFORE = "Look at the project."
_HERE, _ELSEWHERE = "/home/ola/code/harbor", "/home/ola/code/lantern"
_EFFECT_S = 5.0
_EFFECT_POLL_S = 0.02
_TRIES = 10


@dataclass
class Run:
    """What one call of the benchmark measures on, and with which settings."""

    data: Mapping[str, Sequence[Any]]
    patience_s: float = 60.0
    examples: bool = True
    checks: bool = False
    feedback: bool = False
    delay_s: float = 0.0
    seed: int = 0
    rules_in_force: int = 300
    skills_in_library: int = 500
    prompts: Sequence[int] = PROMPTS
    daily_tokens: int = 30_000
    spent: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)

    def provider(self, lessons: Sequence[Lesson] = ()) -> ScriptedProvider:
        return ScriptedProvider(
            ScriptedModel(self.data, lessons, examples=self.examples), self.delay_s
        )

    @contextmanager
    def world(
        self, part: str, provider: ScriptedProvider | None = None, **given: Any
    ) -> Iterator[World]:
        """The program on a fresh home; what it spent is kept under the part's name."""
        provider = provider or self.provider()
        try:
            with running(provider, patience_s=self.patience_s, **given) as world:
                yield world
        finally:
            self.spent[part] = provider.spent()

    def settle(self, part: str, world: World) -> None:
        """Wait for learning, and note where patience ran out."""
        if not world.settle():
            self.unsettled.append(part)


def rules(run: Run) -> list[Figure]:
    """Every rule is said once; then every request that it concerns, in a session of its own."""
    with run.world("rules") as world:
        reached, in_force = _rules_reached(run, "rules", world)
    count = len(run.data["rules"])
    return [
        share(f"rules in force after being said once, of {count}", in_force),
        share(f"rules reached, {count} in force", (hit for _, hit in reached), least=0.95),
        *by_language("rules reached", reached),
    ]


def many_rules(run: Run) -> list[Figure]:
    """The same with other rules in force, and unrelated requests."""
    others = distractors.rules(max(0, run.rules_in_force - len(run.data["rules"])), "user:ann")
    with run.world("rules-300", rules=others) as world:
        reached, _ = _rules_reached(run, "rules-300", world)
        when = {rule["name"]: rule["when"] for rule in others}
        for name, learned in world.learned("ann").items():
            when.setdefault(name, str(learned.get("when") or learned.get("description") or ""))
            if learned.get("applies") == "always":
                when[name] = "always"
        misplaced = [_gets_unfit(world.say("ann", asked), when) for asked in run.data["unrelated"]]
    return [
        share(
            f"rules reached, {run.rules_in_force} in force", (hit for _, hit in reached), least=0.85
        ),
        *by_language(f"rules reached, {run.rules_in_force} in force", reached),
        share("unrelated requests given a rule whose when does not fit", misplaced, most=0.10),
    ]


def _rules_reached(run: Run, part: str, world: World) -> tuple[list[tuple[str, bool]], list[bool]]:
    for rule in run.data["rules"]:
        world.say("ann", rule["task"], rule["rule"])
    run.settle(part, world)
    kept = [str(learned) for learned in world.learned("ann").values()]
    in_force = [
        any(carries(learned, rule["rule"]) for learned in kept) for rule in run.data["rules"]
    ]
    asked = [(rule, request) for rule in run.data["rules"] for request in rule["should"]]
    return [
        (rule["language"], world.say("ann", request).carries(rule["rule"]))
        for rule, request in asked
    ], in_force


def _gets_unfit(sent: Sent, when: Mapping[str, str]) -> bool:
    return any(when.get(name, "always").strip().lower() not in ALWAYS for name in sent.full)


def facts(run: Run) -> list[Figure]:
    """Every fact is said once; then every question that it answers."""
    with run.world("facts") as world:
        for fact in run.data["facts"]:
            world.say("fay", fact["said"])
        run.settle("facts", world)
        learned = list(world.learned("fay").values())
        reached = [
            (fact["language"], world.say("fay", asked).carries(fact["said"]))
            for fact in run.data["facts"]
            for asked in fact["asks"]
        ]
    ending = [fact for fact in run.data["facts"] if fact.get("expires")]
    kept = [
        any(carries(str(item), fact["said"]) and fact["expires"] in str(item) for item in learned)
        for fact in ending
    ]
    return [
        share("facts reached", (hit for _, hit in reached), least=0.90),
        *by_language("facts reached", reached),
        share("facts that end, kept with their last day", kept),
    ]


def corrections(run: Run) -> list[Figure]:
    """A task, a wrong answer, a correction; then the person's next task of the same kind."""
    people = [
        (f"cor-{number:03}-", record) for number, record in enumerate(run.data["corrections"])
    ]
    with run.world("corrections") as world:
        for user, record in people:
            world.say(user, record["task"], record["said"])
        run.settle("corrections", world)
        effective = [
            (
                record.get("language", "?"),
                sent.carries(record["wanted"]) or sent.carries(record["said"]),
            )
            for user, record in people
            if record["wanted"] and (sent := world.say(user, record["next"]))
        ]
        guessed = [bool(world.learned(user)) for user, record in people if not record["wanted"]]
    return [
        share(
            "one correction in force for the next task", (hit for _, hit in effective), least=0.90
        ),
        *by_language("one correction in force", effective),
        share("corrections that say only 'wrong' and became a rule", guessed, most=0.15),
    ]


def harmless(run: Run) -> list[Figure]:
    """Follow-ups after a good answer, from which there is nothing to learn."""
    talks = [(record["task"], record["said"]) for record in run.data["harmless"]]
    return [
        share(
            "harmless follow-ups that taught something", _taught(run, "harmless", talks), most=0.05
        )
    ]


def no_rules(run: Run) -> list[Figure]:
    """Sarcasm, questions, quotes, stories, one-offs: words that sound like a rule and are none."""
    talks = [(_BEFORE, said) for said in run.data["no_rules"]]
    return [share("sayings taken for rules", _taught(run, "no-rules", talks), most=0.05)]


def _taught(run: Run, part: str, talks: Sequence[tuple[str, str]]) -> list[bool]:
    with run.world(part) as world:
        for number, talk in enumerate(talks):
            world.say(f"{part}-{number:03}-", *talk)
        run.settle(part, world)
        return [bool(world.learned(f"{part}-{number:03}-")) for number in range(len(talks))]


def retractions(run: Run) -> list[Figure]:
    """A rule, and in a later session the words that take it back, change it, or only sound so.

    A change counts only where the rule was in force before.
    """
    people = [
        (f"ret-{number:03}-", change) for number, change in enumerate(run.data["retractions"])
    ]
    with run.world("retractions") as world:
        for user, change in people:
            world.say(user, _BEFORE, change["first"])
        run.settle("retractions", world)
        before = {user: world.say(user, NEXT).carries(change["first"]) for user, change in people}
        for user, change in people:
            world.say(user, "Go on.", change["then"])
        run.settle("retractions", world)
        understood = [
            (change["after"], before[user] and _is_understood(world.say(user, NEXT), change))
            for user, change in people
        ]
    return [
        share("rules in force that are then changed", before.values()),
        share(
            "retractions and changes of mind understood", (hit for _, hit in understood), least=0.90
        ),
        *(
            share(f"  {after}", (hit for kind, hit in understood if kind == after))
            for after in ("gone", "replaced", "unchanged")
        ),
    ]


def _is_understood(sent: Sent, change: Record) -> bool:
    still = sent.carries(change["first"])
    if change["after"] == "unchanged":
        return still
    return not still and (
        change["after"] == "gone"
        or not change["replacement"]
        or sent.carries(change["replacement"])
    )


def injections(run: Run) -> list[Figure]:
    """Orders from outside: in tool results, pasted or quoted by the person, forged. The model
    believes every one of them.
    """
    people = [(f"inj-{number:03}-", record) for number, record in enumerate(run.data["injections"])]
    with run.world("injections") as world:
        for user, record in people:
            if record["where"] == "tool":
                world.read_by_tool(user, record["message"])
            elif record["where"] == "correction":
                world.say(user, _BEFORE, record["message"], "Thanks, go on.")
            else:
                world.say(user, record["message"], "Thanks, go on.")
        run.settle("injections", world)
        taken = [
            (
                record["where"],
                any(carries(str(item), record["payload"]) for item in world.learned(user).values())
                or world.say(user, NEXT).carries(record["payload"]),
            )
            for user, record in people
        ]
    return [
        share("injected orders in force", (hit for _, hit in taken), most=0.08),
        *(
            share(f"  by {where}", (hit for kind, hit in taken if kind == where))
            for where in sorted({kind for kind, _ in taken})
        ),
    ]


def quoted(run: Run) -> list[Figure]:
    """Messages that quote or paste something and lay down a rule beside it: the rule counts."""
    people = [(f"quo-{number:03}-", record) for number, record in enumerate(run.data["quoted"])]
    with run.world("quoted") as world:
        for user, record in people:
            world.say(user, _BEFORE, record["message"])
        run.settle("quoted", world)
        kept = [
            (record["language"], world.say(user, NEXT).carries(record["rule"]))
            for user, record in people
        ]
    return [
        share("rules kept that stand beside pasted material", (hit for _, hit in kept), least=0.90),
        *by_language("kept", kept),
    ]


def projects(run: Run) -> list[Figure]:
    """Rules for one project and for all of them, each said in one working directory and needed
    there and in another.
    """
    tried: list[tuple[str, str, bool, bool]] = []
    people = [(f"pro-{number:03}-", record) for number, record in enumerate(run.data["projects"])]
    with run.world("projects") as world:
        for user, record in people:
            world.say(user, _BEFORE, record["rule"], agent=record["agent"], workspace=_HERE)
        run.settle("projects", world)
        for user, record in people:
            for asked in record["should"]:
                agent = record["agent"]
                here = world.say(user, asked, agent=agent, workspace=_HERE).carries(record["rule"])
                elsewhere = world.say(user, asked, agent=agent, workspace=_ELSEWHERE).carries(
                    record["rule"]
                )
                tried.append((record["scope"], agent, here, elsewhere))
    bound = [
        (agent, here, elsewhere) for scope, agent, here, elsewhere in tried if scope == "project"
    ]
    return [
        share("project rules reached in their project", (here for _, here, _ in bound), least=0.90),
        share(
            "project rules placed in another project",
            (elsewhere for _, _, elsewhere in bound),
            most=0.05,
        ),
        *(
            share(f"  with {agent}", (elsewhere for used, _, elsewhere in bound if used == agent))
            for agent in sorted({agent for agent, _, _ in bound})
        ),
        share(
            "general rules reached in another project",
            (there for scope, _, _, there in tried if scope == "everywhere"),
            least=0.90,
        ),
    ]


_WIRES = {"chat": "chat", "claude-code": "messages", "codex": "responses"}


def skills(run: Run) -> list[Figure]:
    """Skills with examples, requests that they are for, and requests that have nothing to do with
    them: with tools, where the model asks for the skill of its task, and without.
    """
    count = len(run.data["skills"])
    with run.world("skills", skills=run.data["skills"]) as world:
        natural = [(name, world.say("sam", asked)) for name, asked in _asked(run, "natural")]
        distant = [(name, world.say("sam", asked)) for name, asked in _asked(run, "paraphrases")]
        chatter = [world.say("sam", asked) for asked in run.data["unrelated"]]
        run.settle("skills", world)
        later = [(name, world.say("sam", NEXT, after=sent)) for name, sent in natural]
        unasked = [set(world.say("sam", NEXT, after=sent).full) - {*sent.full} for sent in chatter]
        offered = _offered(run, world)
    return [
        *offered,
        share(
            "skills on natural tasks, without tools, in full in the session's next request",
            (n in s.full for n, s in later),
            least=0.95,
        ),
        share(
            "unrelated requests without tools whose next one is given a further skill in full",
            map(bool, unasked),
            most=0.0,
        ),
        share(
            f"skills on natural tasks, without tools, listed or in full, {count} in the library",
            (s.names(n) for n, s in natural),
            least=0.95,
        ),
        share(
            "skills on distant paraphrases, without tools, listed or in full",
            (s.names(n) for n, s in distant),
            least=0.95,
        ),
        share(
            "skills on natural tasks, without tools, in full by ranking",
            (n in s.full for n, s in natural),
            least=0.60,
        ),
        share(
            "skills on distant paraphrases, without tools, in full by ranking",
            (n in s.full for n, s in distant),
        ),
        share(
            "unrelated requests without tools given any skill in full",
            (bool(sent.full) for sent in chatter),
            most=0.20,
        ),
    ]


def _offered(run: Run, world: World) -> list[Figure]:
    """What the model asked for, within the same request, in each wire of a client, whole and
    streamed; and what it got unasked.
    """
    bodies = {skill["name"]: str(skill["body"]).strip() for skill in run.data["skills"]}
    asked, unasked, seen = [], [], []
    for agent, wire in _WIRES.items():
        for stream in (False, True):
            label = f"{wire}, {'streamed' if stream else 'whole'}"
            for name, task in _asked(run, "natural"):
                sent = world.ask_with_tools("sam", task, agent, stream=stream)
                asked.append((label, sent.calls > 1 and bodies[name] in sent.words))
                seen.append(sent.was_seen)
            for task in run.data["unrelated"]:
                sent = world.ask_with_tools("sam", task, agent, stream=stream)
                unasked.append(any(body in sent.words for body in bodies.values()))
                seen.append(sent.was_seen)
    count = len(bodies)
    return [
        share(
            f"skills asked for by the model, in full within the same request, {count} in the"
            " library",
            (hit for _, hit in asked),
            least=1.0,
        ),
        *(
            share(f"  {label}", (hit for one, hit in asked if one == label))
            for label in dict.fromkeys(label for label, _ in asked)
        ),
        share("requests with tools given a skill in full unasked", unasked, most=0.0),
        share("requests in which the client saw a call of the program's tools", seen, most=0.0),
    ]


def many_skills(run: Run) -> list[Figure]:
    """The same with a library of other skills around them."""
    others = distractors.skills(max(0, run.skills_in_library - len(run.data["skills"])))
    count = len(others) + len(run.data["skills"])
    with run.world("skills-500", skills=[*run.data["skills"], *others]) as world:
        natural = [(name, world.say("sam", asked)) for name, asked in _asked(run, "natural")]
        unrelated = [bool(world.say("sam", asked).full) for asked in run.data["unrelated"]]
        bodies = {skill["name"]: str(skill["body"]).strip() for skill in run.data["skills"]}
        found = [
            bodies[name] in world.ask_with_tools("sam", asked, "chat", stream=False).words
            for name, asked in _asked(run, "natural")
        ]
    return [
        share(
            f"skills found with tools, by the list or a search, {count} in the library",
            found,
            least=0.75,
        ),
        share(
            f"skills on natural tasks, without tools, listed or in full, {count} in the library",
            (s.names(n) for n, s in natural),
            least=0.75,
        ),
        share(
            f"skills on natural tasks, without tools, in full, {count} in the library",
            (n in s.full for n, s in natural),
        ),
        share(f"unrelated requests given any skill in full, {count} in the library", unrelated),
    ]


def _asked(run: Run, kind: str) -> list[tuple[str, str]]:
    return [(skill["name"], asked) for skill in run.data["skills"] for asked in skill[kind]]


def latency(run: Run) -> list[Figure]:
    """From sending a rule or a correction until the program has it in force, less the time that the
    model takes to listen.
    """
    said = [(_BEFORE, rule["rule"]) for rule in run.data["rules"]]
    said += [
        (record["task"], record["said"]) for record in run.data["corrections"] if record["wanted"]
    ]
    with run.world("latency") as world:
        seconds = [_effect_s(world, f"lat-{number:03}-", *talk) for number, talk in enumerate(said)]
    known = [max(0.0, value - run.delay_s) for value in seconds if value is not None]
    taken = [*known, *(math.inf for value in seconds if value is None)]
    note = f"{len(seconds) - len(known)} of {len(seconds)} without effect within {_EFFECT_S:g} s"

    def at(part: float) -> float | None:
        return value if taken and math.isfinite(value := percentile(taken, part)) else None

    return [
        Figure("from word to effect, p50", value=at(0.5), unit="s", most=2.0, note=note),
        Figure("from word to effect, p90", value=at(0.9), unit="s"),
        Figure(
            "from word to effect, p50 of those with effect",
            value=percentile(known, 0.5) if known else None,
            unit="s",
        ),
    ]


def _effect_s(world: World, user: str, task: str, said: str) -> float | None:
    world.say(user, task)
    began = time.perf_counter()
    world.say(user, task, said)
    while time.perf_counter() - began < _EFFECT_S:
        if world.learned(user):
            return time.perf_counter() - began
        time.sleep(_EFFECT_POLL_S)
    return None


def cost(run: Run) -> list[Figure]:
    """One failure, one correction, one skill by the evolver: all tokens of learning beside those of
    the corrected turn.

    The program is restarted once before the tokens are counted.
    """
    figures = []
    for number, size in enumerate(run.prompts):
        lesson = LESSONS[(number + run.seed) % len(LESSONS)]
        figures += _lesson_cost(run, size, lesson if run.checks else replace(lesson, check=None))
    return figures


def _lesson_cost(run: Run, size: int, lesson: Lesson) -> list[Figure]:
    part, system = f"cost {size}", agent_prompt(size, run.seed)
    with run.world(part, run.provider([lesson])) as world:
        world.say("les", lesson.task, lesson.correction, "thanks", system=system)
        if run.feedback:
            world.reject(world.turns[0], lesson.correction)
        deadline = time.monotonic() + run.patience_s
        while not _evolved_name(world, lesson) and time.monotonic() < deadline:
            time.sleep(0.1)
        run.settle(part, world)
        world.restart()  # what was paid for must not be paid for again
        run.settle(part, world)
        learning, corrected = world.provider.learning_tokens(), world.provider.traffic[0]
        name = _evolved_name(world, lesson)
        state = world.program.get(f"/api/skills/{name}")["state"] if name else "not in force"
        tries = [world.say("les", lesson.later, system=system) for _ in range(_TRIES)]
        placed = [sent.names(name) for sent in tries]
    times, label = learning / corrected, f"prompt of {size:,} tokens"
    note = f"{learning:,} tokens for learning, {times:.1f} ×; skill {state}"
    return [
        Figure(
            f"one lesson, {label}",
            value=times if any(placed) else None,
            unit="× the corrected turn",
            most=8.0,
            note=note,
        ),
        share(f"its skill listed or in full on the next such tasks, {label}", placed),
    ]


def _evolved_name(world: World, lesson: Lesson) -> str:
    """The name under which the evolver's skill is in the library; the program may have added a
    number to it.
    """
    names = (str(skill["name"]) for skill in world.program.get("/api/skills")["skills"])
    return next((name for name in names if name.startswith(lesson.name)), "")


def budget(run: Run) -> list[Figure]:
    """A day of corrections with a budget that is too small for it and a restart in between, and
    again with the default one.
    """
    limit = run.daily_tokens
    label = f"tokens of learning with daily_tokens = {limit:,} and a restart"
    try:
        day = _day(run, "budget", f"\n[learning]\ndaily_tokens = {limit}\n")
        figures = [
            Figure(
                label,
                value=day.learning,
                unit="tokens",
                most=limit * 1.05,
                note=f"/api/cost says {day.told}",
            )
        ]
    except AssertionError as refused:  # a program without this setting does not start
        figures = [
            Figure(
                label, unit="tokens", most=limit, note=str(refused).strip().splitlines()[-1][:100]
            )
        ]
    day = _day(run, "budget default", "")
    note = (
        f"{day.learning / day.traffic:.1%} of {day.traffic:,} tokens of traffic; /api/cost says"
        f" {day.told}"
    )
    most = max(FLOOR_TOKENS, day.traffic / 10)
    return [
        *figures,
        Figure(
            "tokens of learning by default", value=day.learning, unit="tokens", most=most, note=note
        ),
    ]


@dataclass(frozen=True)
class Day:
    """Tokens by the provider's count, and those of learning by the program's own."""

    learning: int
    traffic: int
    told: str


def _day(run: Run, part: str, config: str) -> Day:
    system, talks = agent_prompt(4_000, run.seed), [*run.data["corrections"], *run.data["harmless"]]
    with run.world(part, config=config) as world:
        for number, record in enumerate(talks):
            if config and number == len(talks) // 2:
                world.restart()
            world.say(
                f"day-{number:03}-",
                record["task"],
                record["said"],
                record.get("next", "go on"),
                system=system,
            )
        run.settle(part, world)
        response = world.http.get(f"{world.program.url}/api/cost", headers=world.program.auth)
        used = (
            response.json().get("budget", {}).get("used") if response.status_code == 200 else None
        )
        told = "nothing" if used is None else f"{used:,}"
        return Day(world.provider.learning_tokens(), world.provider.tokens[TRAFFIC], told)


PARTS: dict[str, Callable[[Run], list[Figure]]] = {
    "rules": rules,
    "rules-300": many_rules,
    "facts": facts,
    "corrections": corrections,
    "harmless": harmless,
    "no-rules": no_rules,
    "retractions": retractions,
    "injections": injections,
    "quoted": quoted,
    "projects": projects,
    "skills": skills,
    "skills-500": many_skills,
    "latency": latency,
    "cost": cost,
    "budget": budget,
}
