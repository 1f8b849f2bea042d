"""The slow loop on real parts: database, library, checks, journal, gate, and a toy backend whose reward really rises."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from metaclaw.domain.chat import ChatRequest, Finish, SampledTokens, Text, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.skill import Skill
from metaclaw.domain.training import Adam, Drawing, Loss, LossKind, Rollout
from metaclaw.domain.turn import Exchange, Placement, Scope, Splice, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome, Source, Verdict
from metaclaw.learn.budget import TokenRoom
from metaclaw.learn.replay import sent_request
from metaclaw.learn.slow.absorption import AbsorptionTest, SkillPrompts
from metaclaw.learn.slow.derived_prompts import Examples, Variations
from metaclaw.learn.slow.loop import LoopRules, SlowLoop, TrainingParts
from metaclaw.learn.slow.proof import GeneralAbilities, Proof, ProofRules
from metaclaw.learn.slow.recipe import JudgingBudget, Recipe
from metaclaw.learn.slow.rewards import Rewards
from metaclaw.learn.slow.training_turns import Clocks, QueryTurns
from metaclaw.learn.slow.versions import Versions
from metaclaw.learn.steps import RecordedSteps, StepBuilder
from metaclaw.outcome import Judge
from metaclaw.schedule import ManualWindows
from metaclaw.skills import Budgets, SkillLibrary, render_block
from metaclaw.store import LedgerReader, SqlBatches, SqlGenerations, SqlPolicies, SqlVerdicts, connect
from metaclaw.store.turn_writer import TurnWriter
from metaclaw.train.extra_prompts import RehearsalSize
from metaclaw.train.gate import GateRules
from metaclaw.train.golden import GoldenRules, golden_items
from metaclaw.upstream import PolicySlot
from tests.support.softmax import END, encode
from tests.support.toy_backend import ToyBackend

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
_OWNER = Scope()
STARS = Skill(
    SkillName("stars"),
    "When answering anything",
    "Every answer has a star (*) beside something.",
    extra={"check": "pattern: (?s)(?<=.)[*]|[*](?=.)"},
)
"""A house rule with a check: what the toy policy is to learn. A star alone fails it, else the gate would not believe the check."""


class CutError(Exception):
    """Somebody pulled the plug."""


class Plug:
    """A backend that is unplugged at one of its calls, before or after it did what it was asked to. `before` is called first. With
    `ends_all` all that is drawn counts as whole: the toy policy hardly ever draws an end."""

    def __init__(self, folder: Path) -> None:
        self._backend = ToyBackend(folder)
        self.calls = 0
        self.cut_at: int | None = None
        self.cut_after = False
        self.ends_all = True
        self.before: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> object:
        found = getattr(self._backend, name)
        if name not in ("open", "sample", "sample_base", "accumulate", "apply", "keep", "shrink", "discard"):
            return found

        async def call(*arguments: object, **named: object) -> object:
            self.calls += 1
            self.before()
            if self.calls == self.cut_at and not self.cut_after:
                raise CutError
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
        said = "\n".join(part.text for message in request.messages for part in message.parts if isinstance(part, Text))
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


@dataclass
class Stage:
    """One installation; `build` builds the loop anew on what is on disk, as a restart does."""

    folder: Path
    recipe: Recipe = field(
        default_factory=lambda: Recipe(
            prompts_per_step=6,
            group_size=16,
            steps=10,
            warm_up=2,
            max_tokens=6,
            adam=Adam(learning_rate=0.3),
            loss=Loss(LossKind.PPO),
            rehearsal=0.1,
            rehearsal_size=RehearsalSize(questions=4, answers=1, at_once=2),
            tokeniser=AsciiTokeniser(),
            golden=golden_items()[:4],
            prompts_a_piece=3,
            tokens_a_piece=400,
        )
    )
    batch_turns: int = 8
    batch_most: int | None = None
    canary_share: float = 0.0
    max_tokens: int | None = None
    judge: Judge | None = None
    """Scores answers where there is one: then the skill has no check."""
    gate: GateRules = field(
        default_factory=lambda: GateRules(least=10, most=120, wave=20, kl_most=100.0, golden=GoldenRules(margin=100.0))
    )

    def __post_init__(self) -> None:
        self.database = connect(f"sqlite:///{self.folder / 'ledger.db'}")
        self.database.prepare()
        self.turn_writer = TurnWriter(self.database, 1 << 20)
        self.generations = SqlGenerations(self.database)
        self.library = SkillLibrary(self.folder / "skills", self.generations)
        self.library.sync()
        if self.library.view.get(STARS.name) is None:
            self.library.publish([STARS], (), "a house rule")
        self.slot = PolicySlot("embedded")
        self.made = 0
        self.unscorable: set[TurnId] = set()
        self.room = TokenRoom(1 << 40, 1 << 40, NOON, "learning.daily_tokens")
        self.build()

    async def _room(self) -> TokenRoom:
        return self.room

    def build(self) -> None:
        database = self.database
        self.reader, self.verdicts = LedgerReader(database), SqlVerdicts(database)
        self.batches, self.policies = SqlBatches(database), SqlPolicies(database)
        builder = StepBuilder(lambda agent, text: text)
        self.windows = ManualWindows()
        self.windows.open("a test")
        self.backend = Plug(self.folder / "policies")
        self.turns = QueryTurns(
            batches=self.batches,
            reader=self.reader,
            recorded=RecordedSteps(self.reader, builder),
            provider="embedded",
            max_lag=3,
            held_out_share=0.4,
            clocks=lambda: Clocks(self.library.view.generation, self.slot.serving.version),
            can_score=lambda step: step.turn not in self.unscorable,
        )
        self.rewards = Rewards(judge_for=lambda model: self.judge, skill=self._skill, redact=lambda text: text)
        self.versions = Versions(
            policies=self.policies,
            slot=self.slot,
            host=Host(),
            canary_share=self.canary_share,
            is_same=self._is_same,
        )
        prompts = SkillPrompts(self.reader, builder, AsciiTokeniser(), self.generations.at, Budgets(3, 4_000))
        self.slow = SlowLoop(
            turns=self.turns,
            batches=self.batches,
            policies=self.policies,
            versions=self.versions,
            parts=TrainingParts(
                backend=self.backend,  # type: ignore[arg-type]
                recipe=self.recipe,
                rewards=self.rewards,
                judging=JudgingBudget(self._room, self.rewards.needs_judge),
                proof=self._proof(),
                absorption=AbsorptionTest(
                    backend=self.backend,  # type: ignore[arg-type]
                    rewards=self.rewards,
                    prompts=prompts,
                    windows=self.windows,
                    max_tokens=6,
                    temperature=1.0,
                ),
                folder=self.folder / "policies",
                base="toy",
                examples=Examples(
                    skill=lambda name: self.library.view.get(name),
                    request=self._request,
                    rewards=self.rewards,
                    tokeniser=AsciiTokeniser(),
                ),
                variations=Variations(request=self._request, rewards=self.rewards, tokeniser=AsciiTokeniser()),
            ),
            windows=self.windows,
            rules=LoopRules(self.batch_turns, self.canary_share, self.batch_most or self.batch_turns),
            judge=lambda: None,
            skills=lambda: self.library.view.skills,
            pause_s=0.0,
        )

    def _skill(self, name: SkillName) -> Skill | None:
        found = self.library.view.get(name)
        return found if found is None or self.judge is None else replace(found, extra={})

    def _request(self, turn: TurnId) -> ChatRequest | None:
        recorded = self.reader.turn(turn)
        return None if recorded is None else sent_request(recorded.turn)

    def _is_same(self, name: SkillName, generation: int) -> bool:
        then, now = self.generations.at(generation), self.library.view.get(name)
        return now is not None and then is not None and any(one.content_hash == now.content_hash for one in then.skills)

    def _proof(self) -> Proof:
        abilities = GeneralAbilities(
            backend=self.backend,  # type: ignore[arg-type]
            tokeniser=AsciiTokeniser(),
            items=golden_items()[:4],
            windows=self.windows,
            folder=self.folder / "policies" / "golden",
            max_tokens=6,
        )
        return Proof(
            backend=self.backend,  # type: ignore[arg-type]
            measures=self.rewards,
            abilities=abilities,
            windows=self.windows,
            rules=ProofRules(self.gate, 6, 1.0),
        )

    def talk(self, count: int, *, outcome: Outcome = Outcome.PASS, speaker: Scope = _OWNER) -> list[TurnId]:
        """So many turns that the policy made with the skill in its prompt."""
        turns = [self._turn(speaker) for _ in range(count)]
        self.turn_writer.write(turns)
        for turn in turns:
            self.verdicts.record_verdict(Verdict(turn.id, outcome, Source.CHECK, 0.0))
        return [turn.id for turn in turns]

    def _turn(self, speaker: Scope = _OWNER) -> Turn:
        self.made += 1
        chance = random.Random(self.made)
        task = "".join(chance.choice("abcdefgh") for _ in range(8))
        block = render_block([STARS], 4_000)
        messages = [{"role": "system", "content": "Hi."}, {"role": "user", "content": task}]
        options = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        body = json.dumps({"model": "toy", "messages": messages, **options})
        at = body.index("Hi.") + 3
        said = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", "index": 0}]}
        return Turn(
            id=TurnId(f"t_{self.made}"),
            session=SessionId(f"s_{self.made}"),
            kind=TurnKind.MAIN,
            kind_reason="",
            scope=speaker,
            stamp=Stamp(self.library.view.generation, self.slot.serving.version, self.library.view.hash, (STARS.name,)),
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
            exchange=Exchange(body.encode(), (Splice(at, json.dumps(block.text)[1:-1].encode()),), None, json.dumps(said).encode()),
            finish=Finish.STOP,
            usage=None,
            tokens=SampledTokens(encode(task + ":"), encode("x"), (-1.0,)),
            times=Times(NOON, None, 0.1),
            placements=(Placement(b"", block.skills, block.text),),
        )

    async def share_with_stars(self, weights: Weights | None, draws: int = 400) -> float:
        """How often the policy follows the rule on prompts it never saw."""
        prompts = [encode(f"held-out{number}:") for number in range(20)]
        drawing = Drawing(draws // 20, 6, 1.0, 77)
        toy = ToyBackend(self.folder / "policies")
        groups = await (toy.sample_base(prompts, drawing) if weights is None else toy.sample(prompts, drawing, weights))
        texts = [rollout.text for group in groups for rollout in group]
        return sum("*" in text for text in texts) / len(texts)
