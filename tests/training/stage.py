"""The slow loop as the program composes it, on a toy backend whose reward really rises. Time stands
still.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from metaclaw.config import EvolverConfig, JudgeConfig, build
from metaclaw.domain.chat import ChatRequest, Finish, Json, SampledTokens, Text, ToolCall, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.skill import Skill
from metaclaw.domain.status import LoopState
from metaclaw.domain.training import Drawing, Rollout
from metaclaw.domain.turn import (
    ATTEMPT,
    EnforcedRule,
    Enforcement,
    Exchange,
    HoldEnd,
    ModelAt,
    Placement,
    Scope,
    Splice,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict
from metaclaw.learn.assembly import Learning
from metaclaw.learn.budget import Budget
from metaclaw.learn.models import Models
from metaclaw.ports import Model
from metaclaw.proxy import own_words
from metaclaw.schedule import ManualWindows
from metaclaw.skills import SkillLibrary, render_block
from metaclaw.store import SqlGenerations, SqlSpending, connect
from metaclaw.store.turn_writer import TurnWriter
from metaclaw.training.assembly import SlowLearning, configured_settings
from metaclaw.training.golden import golden_items
from metaclaw.training.hosts.run_sampler import RolloutServer
from metaclaw.training.recipe import Recipe
from metaclaw.training.rehearsal import RehearsalSize
from metaclaw.upstream import PolicySlot
from tests.learn.learning import NOON, Clock
from tests.support.softmax import END, encode
from tests.support.toy_backend import ToyBackend

_OWNER = Scope()
STARS = Skill(
    SkillName("stars"),
    "When answering anything",
    "Every answer has a star (*) beside something.",
    check="pattern: (?s)(?<=.)[*]|[*](?=.)",
)
"""A house rule with a check: what the toy policy is to learn. A star alone fails it, else the gate
would not believe the check.
"""
UNCHECKED = replace(STARS, check=None)
POLICY: Mapping[str, object] = {
    "prompts_per_step": 6,
    "group_size": 16,
    "steps": 10,
    "max_new_tokens": 6,
    "learning_rate": 0.3,
    "rehearsal": 0.1,
    "held_out_share": 0.4,
    "batch_turns": 8,
    "batch_most": 8,
    "kl_limit": 100.0,
    "golden_margin": 1.0,
    "hindsight": False,
}
RECIPE: Mapping[str, Any] = {
    "warm_up": 2,
    "settle": 16,
    "settle_every": 4,
    "validation": 128,
    "validate_every": 0,
    "rehearsal_size": RehearsalSize(questions=4, answers=1, at_once=2),
    "golden": golden_items()[:4],
    "prompts_a_piece": 3,
    "tokens_a_piece": 400,
}
"""What the configuration does not say: a small run on the toy backend."""
GATE: Mapping[str, Any] = {"least": 10, "most": 120, "wave": 20}


class CutError(Exception):
    """Somebody pulled the plug."""


class Plug:
    """A backend that is unplugged at one of its calls, before or after it did what it was asked to.
    `before` is called first. With `ends_all` all that is drawn counts as whole: the toy policy
    hardly ever draws an end. The toy policy does not read its prompt either: so that it is not
    refused for one answer to all questions, the likeliest answers of weights at the gate are drawn
    like any others."""

    def __init__(self, folder: Path) -> None:
        self._backend = ToyBackend(folder)
        self.calls = 0
        self.cut_at: int | None = None
        self.cut_after = False
        self.ends_all = True
        self.before: Callable[[], None] = lambda: None
        self.is_at_gate: Callable[[], bool] = lambda: False

    def __getattr__(self, name: str) -> object:
        found = getattr(self._backend, name)
        if name not in (
            "open",
            "sample",
            "sample_base",
            "accumulate",
            "apply",
            "keep",
            "shrink",
            "discard",
        ):
            return found

        async def call(*arguments: object, **named: object) -> object:
            self.calls += 1
            self.before()
            if self.calls == self.cut_at and not self.cut_after:
                raise CutError
            if self.is_at_gate() and any(isinstance(one, Weights) for one in arguments):
                arguments = tuple(
                    replace(one, temperature=1.0) if isinstance(one, Drawing) else one
                    for one in arguments
                )
            said = await found(*arguments, **named)
            if self.calls == self.cut_at:
                raise CutError
            return _ended(said) if self.ends_all and name.startswith("sample") else said

        return call


def _ended(groups: list[list[Rollout]]) -> list[list[Rollout]]:
    return [[replace(rollout, is_whole=True) for rollout in group] for group in groups]


class AsciiTokeniser:
    """The toy policy's tokens are ASCII codes."""

    def prompt(self, request: ChatRequest) -> tuple[int, ...]:
        said = "\n".join(
            part.text
            for message in request.messages
            for part in message.parts
            if isinstance(part, Text)
        )
        return encode(said + ":")

    def encode(self, text: str) -> tuple[int, ...]:
        return encode(text) or (END,)

    @property
    def end(self) -> int:
        return END

    def word(self, token: int) -> str:
        return chr(token)


class Host:
    """Serves whatever it is told to."""

    def __init__(self) -> None:
        self._loaded: set[int] = set()

    @property
    def loaded(self) -> frozenset[int]:
        return frozenset(self._loaded)

    async def load(self, version: int, weights: Weights) -> None:
        self._loaded.add(version)

    async def unload(self, version: int) -> None:
        self._loaded.discard(version)


class JudgeModel(Models):
    """The models of an installation that has a judge, or no model at all."""

    def __init__(self, judge: Model | None) -> None:
        super().__init__(())
        self._judge = judge

    def chosen(self, section: JudgeConfig | EvolverConfig) -> Callable[[ModelAt], Model | None]:
        return lambda served: self._judge

    def shown(self, section: JudgeConfig | EvolverConfig) -> str | None:
        return None if self._judge is None else self._judge.name


@dataclass
class Stage:
    """One installation; `build` builds what trains anew on what is on disk, as a restart does.
    `policy` is said in its configuration, `run` and `gate` change what no configuration says.
    `skill` is in force, and in every prompt."""

    folder: Path
    policy: Mapping[str, object] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] = field(default_factory=dict)
    skill: Skill = STARS
    judge: Model | None = None
    daily_tokens: int = 1 << 40
    max_tokens: int | None = None
    """The longest answer that the client allows."""
    server: RolloutServer | None = None

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.database = connect(f"sqlite:///{self.folder / 'ledger.db'}")
        self.database.prepare()
        self.turn_writer = TurnWriter(self.database, 1 << 20)
        self.library = SkillLibrary(self.folder / "skills", SqlGenerations(self.database))
        self.library.sync()
        if self.library.view.get(self.skill.name) is None:
            self.library.publish([self.skill], (), "a house rule")
        self.slot = PolicySlot("embedded")
        self.made = 0
        self.build()

    def build(self) -> None:
        """The program's own assembly, with a toy backend, a scripted judge, and small runs."""
        sections = {
            "learning": {"daily_tokens": self.daily_tokens},
            "schedule": {"timezone": "UTC"},
            "judge": {"votes": 1},
        }
        config = build(
            {**sections, "privacy": {"redact": False}, "policy": {**POLICY, **self.policy}},
            self.folder,
        )
        assert config.policy is not None
        self.budget = Budget(config, SqlSpending(self.database), self.clock)
        self.learning = Learning(
            config,
            database=self.database,
            announce=self.announce,
            library=self.library,
            providers=(),
            words=own_words,
            budget=self.budget,
            models=JudgeModel(self.judge),
        )
        self.windows = ManualWindows()
        self.windows.open("a test")
        self.backend = Plug(self.folder / "policies")
        settings = configured_settings(
            config.policy,
            self.backend,  # type: ignore[arg-type]
            AsciiTokeniser(),
        )
        self.training = SlowLearning(
            config,
            config.policy,
            learning=self.learning,
            database=self.database,
            library=self.library,
            slot=self.slot,
            host=Host(),
            backend=self.backend,  # type: ignore[arg-type]
            tokeniser=AsciiTokeniser(),
            windows=self.windows,
            open_window=self.windows.open,
            folder=self.folder / "policies",
            server=self.server,
            settings=replace(
                settings,
                recipe=replace(settings.recipe, **{**RECIPE, **self.run}),
                gate=replace(settings.gate, **{**GATE, **self.gate}),
                golden=golden_items()[:4],
                draw_seed=partial(next, count(7)),
                retry_s=0.0,
            ),
        )
        self.slow, self.turns, self.versions = (
            self.training.slow,
            self.training.turns,
            self.training.versions,
        )
        self.backend.is_at_gate = lambda: self.slow.status.state is LoopState.PROVING
        self.policies, self.batches, self.rewards = (
            self.training.policies,
            self.training.batches,
            self.training.rewards,
        )
        self.reader, self.verdicts = self.learning.reader, self.learning.verdicts

    @property
    def recipe(self) -> Recipe:
        return self.training.settings.recipe

    async def announce(self, kind: str, data: dict[str, Json]) -> bool:
        return True

    def talk(
        self,
        count: int,
        *,
        outcome: Outcome = Outcome.PASS,
        speaker: Scope = _OWNER,
        skill: Skill | None = None,
    ) -> list[TurnId]:
        """So many turns that the policy made with a skill in its prompt."""
        turns = [self.turn(speaker, skill or self.skill) for _ in range(count)]
        self.turn_writer.write(turns)
        for turn in turns:
            self.verdicts.record_verdict(Verdict(turn.id, outcome, Source.CHECK, 0.0))
        return [turn.id for turn in turns]

    def talk_corrected(self, count: int, correction: str, answer: str) -> list[TurnId]:
        """So many turns that the policy answered so, and the person corrected."""
        found = []
        for _ in range(count):
            first = self.turn(_OWNER, self.skill, answer)
            asked = json.loads(first.exchange.request)["messages"]
            said = [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": correction},
            ]
            following = self.turn(_OWNER, self.skill, "Sorry.", [*asked, *said])
            self.turn_writer.write([first, replace(following, session=first.session)])
            self.verdicts.record_verdict(
                Verdict(first.id, Outcome.FAIL, Source.DETECTOR, 0.9, fault=Fault.AGENT)
            )
            found.append(first.id)
        return found

    def talk_task(self, call: ToolCall, result: str, answer: str, outcome: Outcome) -> list[TurnId]:
        """A task of two turns: a call, and the answer to its result."""
        function = {"name": call.name, "arguments": call.arguments}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        first = self.turn(_OWNER, self.skill, "", calls=calls)
        asked = json.loads(first.exchange.request)["messages"]
        said: list[Mapping[str, Any]] = [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        ]
        second = self.turn(_OWNER, self.skill, answer, [*asked, *said])
        second = replace(second, session=first.session)
        self.turn_writer.write([first, second])
        for turn in (first, second):
            self.verdicts.record_verdict(Verdict(turn.id, outcome, Source.CHECK, 0.0))
        return [first.id, second.id]

    def talk_held(self, count: int, refused: str, accepted: str) -> list[TurnId]:
        """So many turns in which a rule refused one answer and let another pass."""
        turns = [
            self._held(self.turn(_OWNER, self.skill, accepted), (refused, accepted))
            for _ in range(count)
        ]
        self.turn_writer.write(turns)
        for turn in turns:
            self.verdicts.record_verdict(Verdict(turn.id, Outcome.PASS, Source.CHECK, 0.0))
        return [turn.id for turn in turns]

    def _held(self, turn: Turn, answers: tuple[str, str]) -> Turn:
        attempts = tuple(
            replace(
                self.turn(_OWNER, self.skill, answer),
                id=TurnId(f"{turn.id}-{number}"),
                session=turn.session,
                kind=TurnKind.SIDE,
                kind_reason=ATTEMPT,
                placements=(),
            )
            for number, answer in enumerate(answers)
        )
        rule = EnforcedRule(self.skill.name, 1, HoldEnd.COMPLIED, "broken")
        return replace(turn, enforcement=Enforcement((rule,), attempts))

    def drawing(self, draws: int) -> Drawing:
        """How answers are drawn to look at a version."""
        return Drawing(draws, 6, 1.0, 77)

    def turn(
        self,
        speaker: Scope,
        skill: Skill,
        answer: str = "x",
        messages: Sequence[Mapping[str, Any]] | None = None,
        calls: Sequence[Mapping[str, Any]] = (),
    ) -> Turn:
        self.made += 1
        chance = random.Random(self.made)
        task = "".join(chance.choice("abcdefgh") for _ in range(8))
        block = render_block([skill], 4_000)
        messages = messages or [
            {"role": "system", "content": "Hi."},
            {"role": "user", "content": task},
        ]
        options = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        offered = {"tools": tools} if calls else {}
        body = json.dumps({"model": "toy", "messages": messages, **offered, **options})
        at = body.index("Hi.") + 3
        made = {"tool_calls": calls} if calls else {}
        said = {
            "choices": [
                {
                    "message": {"role": "assistant", "content": answer, **made},
                    "finish_reason": "stop",
                    "index": 0,
                }
            ]
        }
        return Turn(
            id=TurnId(f"t_{self.made}"),
            session=SessionId(f"s_{self.made}"),
            kind=TurnKind.MAIN,
            kind_reason="",
            scope=speaker,
            stamp=Stamp(
                self.library.view.generation,
                self.slot.serving.version,
                self.library.view.hash,
                (skill.name,),
            ),
            agent="agent",
            wire=Wire.CHAT,
            path="/v1/chat/completions",
            stream=False,
            model="toy",
            provider="embedded",
            provider_wire=Wire.CHAT,
            status=200,
            end=TurnEnd.COMPLETED,
            error=None,
            exchange=Exchange(
                body.encode(),
                (Splice(at, json.dumps(block.text)[1:-1].encode()),),
                None,
                json.dumps(said).encode(),
            ),
            finish=Finish.STOP,
            usage=None,
            tokens=SampledTokens(
                encode(task + ":"), (*encode(answer), END), (-1.0,) * (len(answer) + 1)
            ),
            times=Times(NOON, None, 0.1),
            placements=(Placement(b"", block.skills, block.text),),
        )

    async def share_with_stars(self, weights: Weights | None, draws: int = 400) -> float:
        """How often the policy follows the rule on prompts it never saw."""
        prompts = [encode(f"held-out{number}:") for number in range(20)]
        drawing = self.drawing(draws // 20)
        toy = ToyBackend(self.folder / "policies")
        groups = await (
            toy.sample_base(prompts, drawing)
            if weights is None
            else toy.sample(prompts, drawing, weights)
        )
        texts = [rollout.text for group in groups for rollout in group]
        return sum("*" in text for text in texts) / len(texts)
