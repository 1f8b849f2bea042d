"""The slow loop put together from the configuration, with the commands a person may give it."""

import logging
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import anyio
from anyio.to_thread import run_sync

from metaclaw import __version__
from metaclaw.config import Config, PolicyConfig
from metaclaw.domain.chat import Json
from metaclaw.domain.compliance import Compliance, measured_hash
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import PolicyVersion, Weights
from metaclaw.domain.skill import Skill, SkillKind, SkillState
from metaclaw.domain.status import LoopState
from metaclaw.domain.training import Adam, RoleKind
from metaclaw.domain.turn import Step
from metaclaw.domain.verdict import Outcome
from metaclaw.learn import Learning, Supervisor, TokenRoom
from metaclaw.ports import PolicyHost, Purpose, Tokeniser, TrainingBackend, Windows
from metaclaw.skills import CORRECTION_READ, Budgets, SkillLibrary
from metaclaw.store import (
    TRAINING_WANTED,
    Database,
    PolicyFiles,
    SqlBatches,
    SqlCompliance,
    SqlCursors,
    SqlPolicies,
    SqlTeams,
)
from metaclaw.telemetry import observer_of
from metaclaw.training.abilities import GeneralAbilities
from metaclaw.training.absorption import AbsorptionTest
from metaclaw.training.checkpoints import split_golden
from metaclaw.training.curriculum import is_held_out
from metaclaw.training.examples import Examples
from metaclaw.training.gate import GateThresholds
from metaclaw.training.golden import GoldenItem, golden_items
from metaclaw.training.habits import HabitTest
from metaclaw.training.hosts.run_sampler import RolloutServer
from metaclaw.training.loop import SlowLoop
from metaclaw.training.progress import Phase
from metaclaw.training.prompts import PromptMaker
from metaclaw.training.proof import Proof
from metaclaw.training.recipe import JudgingBudget, Recipe
from metaclaw.training.recorded_tasks import RecordedTasks
from metaclaw.training.references import Correction, References, correction_of
from metaclaw.training.rewards import Rewards
from metaclaw.training.rollback import VersionWatch
from metaclaw.training.run import RunTally
from metaclaw.training.sampling import VersionSampler
from metaclaw.training.serving_versions import BY_A_PERSON, Versions
from metaclaw.training.setbacks import Setbacks, Starvation
from metaclaw.training.status import LoopStatus
from metaclaw.training.trainer import BatchTrainer
from metaclaw.training.training_turns import (
    NOTHING_SCORES,
    Clocks,
    QueryTurns,
    TurnCount,
)
from metaclaw.training.trial import CandidateTrial
from metaclaw.training.variations import Variations
from metaclaw.upstream import PolicySlot

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 5.0
_TIDY_EVERY: Final = 120
_STOP_WITHIN_S: Final = 15.0
_MOST_CORRECTIONS: Final = 1_000
_NO_RUN: Final = RunTally().facts() | dict.fromkeys(("step", "steps", "drawn"))


def _random_seed() -> int:
    return secrets.randbits(31)


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How runs are done and what comes of them is proven. The gate asks `golden` to see whether
    general abilities were lost. `draw_seed` gives each run its seed. `retry_s` is how long the loop
    waits for what it lacks before it tries again."""

    recipe: Recipe
    gate: GateThresholds
    golden: Sequence[GoldenItem]
    draw_seed: Callable[[], int] = _random_seed
    retry_s: float = 30.0


def configured_settings(
    policy: PolicyConfig,
    backend: TrainingBackend,
    tokeniser: Tokeniser,
) -> TrainingSettings:
    """The settings for a backend by the configuration."""
    has_own_processor = backend.abilities.has_own_processor
    choosing, proving = split_golden(golden_items(), 300 if has_own_processor else 24)
    recipe = Recipe(
        prompts_per_step=policy.prompts_of_a_step(has_own_processor),
        group_size=policy.answers_to_a_prompt(has_own_processor),
        steps=policy.steps,
        max_tokens=policy.max_new_tokens,
        temperature=policy.temperature,
        rank=policy.lora_rank,
        adam=Adam(learning_rate=policy.learning_rate),
        has_fixed_rate="learning_rate" in policy.model_fields_set,
        hindsight=policy.hindsight,
        rehearsal=policy.rehearsal,
        tokeniser=tokeniser,
        golden=choosing,
        golden_margin=25.0 * policy.golden_margin,  # the gate wants the whole margin shown
    )
    gate = GateThresholds(kl_most=policy.kl_limit, golden_margin=100.0 * policy.golden_margin)
    return TrainingSettings(recipe if has_own_processor else recipe.on_a_cpu(), gate, proving)


class SlowLearning:
    """Everything that trains. `open_window` lets a person begin now, whatever the schedule says;
    `settings` are those of the configuration unless others are given."""

    def __init__(
        self,
        config: Config,
        policy: PolicyConfig,
        *,
        learning: Learning,
        database: Database,
        library: SkillLibrary,
        slot: PolicySlot,
        host: PolicyHost,
        backend: TrainingBackend,
        tokeniser: Tokeniser,
        windows: Windows,
        open_window: Callable[[str], None],
        folder: Path,
        settings: TrainingSettings | None = None,
        server: RolloutServer | None = None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._learning = learning
        self._library = library
        self._slot = slot
        self._backend = backend
        self._tokeniser = tokeniser
        self._windows = windows
        self._open_window = open_window
        self._folder = folder
        self._server = server
        self.settings = settings or configured_settings(policy, backend, tokeniser)
        self.policies, self.batches = SqlPolicies(database), SqlBatches(database)
        self._teams, self._compliance = SqlTeams(database), SqlCompliance(database)
        self._known = self._references()
        self._reference = self._known.of
        self.rewards = self._make_rewards()
        self._prompts = PromptMaker(
            reader=learning.reader,
            tokeniser=tokeniser,
            skill=self._skill,
            reference=self._reference,
            generation=learning.generations.at,
            budgets=Budgets.configured(config.skills),
        )
        self._tasks = RecordedTasks(
            recorded=learning.recorded,
            verdict=learning.verdicts.verdict_of,
            may_lead=self._may_lead,
        )
        self.turns = self._make_turns()
        self.versions = Versions(
            policies=self.policies,
            files=PolicyFiles(database, folder),
            slot=slot,
            host=host,
            is_same=self._is_same,
            may_give_up=lambda: self.is_training,
        )
        self.watch = VersionWatch(
            versions=self.versions,
            settle_after=policy.canary_turns,
            has_rule=self._is_in_force,
        )
        self.slow = self._make_loop()
        self._starvation = Starvation(windows)
        self._cursors = SqlCursors(database)
        self.is_training = True
        """False while another program on the store trains."""

    def _skill(self, name: SkillName) -> Skill | None:
        return self._library.view.get(name)

    def _is_in_force(self, name: SkillName) -> bool:
        known = self._skill(name)
        return known is not None and known.state is SkillState.LIVE

    def _make_rewards(self) -> Rewards:
        learning = self._learning
        return Rewards(
            judge_for=learning.judge_for,
            skill=self._skill,
            redact=learning.redact,
            verdict=learning.verdicts.verdict_of,
            reference=self._reference,
            matches=learning.situations.match,
        )

    def _leads_to(self, step: Step) -> list[Step]:
        """The steps that went on with the results of a step's calls. Blocks."""
        return self._tasks.steps(step.turn)[1:] if step.calls and step.after else []

    def _may_lead(self, turn: TurnId) -> bool:
        return not (self._is_support(turn) or is_held_out(turn, self._policy.held_out_share))

    def _is_support(self, turn: TurnId) -> bool:
        role = self._learning.reader.role_of(turn)
        return role is not None and role.kind is RoleKind.SUPPORT

    def _make_turns(self) -> QueryTurns:
        return QueryTurns(
            batches=self.batches,
            reader=self._learning.reader,
            recorded=self._learning.recorded,
            provider=self._slot.provider,
            max_lag=self._policy.max_lag,
            held_out_share=self._policy.held_out_share,
            clocks=lambda: Clocks(self._library.view.generation, self._slot.serving.version),
            hint=self._prompts.hinted
            if self.settings.recipe.hindsight
            else lambda turn, step: None,
            without_rules=self._prompts.without_rules
            if self.settings.recipe.hindsight
            else lambda turn: None,
            can_score=lambda step: any(map(self.rewards.can_score, [step, *self._leads_to(step)])),
            with_task=self._tasks.complete,
            references=self._known.count,
        )

    def _make_loop(self) -> SlowLoop:
        policy = self._policy
        recipe = self.settings.recipe
        base = self._policy.base_model or self._backend.name
        sampler = VersionSampler(
            self._backend, self._windows.until_open, recipe.max_tokens, recipe.temperature
        )
        abilities = GeneralAbilities(
            sampler=sampler,
            tokeniser=self._tokeniser,
            items=self.settings.golden,
            folder=self._folder / "golden",
            base=base,
        )
        judging, status = JudgingBudget(self._judging_room, self.rewards.needs_judge), LoopStatus()
        trainer = BatchTrainer(
            turns=self.turns,
            batches=self.batches,
            policies=self.policies,
            versions=self.versions,
            backend=self._backend,
            recipe=recipe,
            rewards=self.rewards,
            judging=judging,
            examples=Examples(prompts=self._prompts, rewards=self.rewards),
            variations=Variations(prompts=self._prompts, rewards=self.rewards),
            windows=self._windows,
            folder=self._folder,
            base=base,
            broken_share=self._broken_share,
            status=status,
            server=self._server,
        )
        return SlowLoop(
            turns=self.turns,
            batches=self.batches,
            policies=self.policies,
            versions=self.versions,
            windows=self._windows,
            least=TurnCount(policy.batch_turns, max(1, policy.batch_turns // 4)),
            most=max(policy.batch_most, policy.batch_turns),
            trainer=trainer,
            trial=CandidateTrial(
                turns=self.turns,
                policies=self.policies,
                versions=self.versions,
                backend=self._backend,
                judging=judging,
                proof=Proof(
                    sampler=sampler,
                    rewards=self.rewards,
                    abilities=abilities,
                    rules=self.settings.gate,
                ),
                habits=HabitTest(
                    sampler=sampler,
                    rewards=self.rewards,
                    prompts=self._prompts,
                    rules=lambda: self._library.view.skills,
                ),
                folder=self._folder,
                judge=lambda: self._learning.models.shown(self._config.judge),
                status=status,
            ),
            absorption=AbsorptionTest(
                turns=self.turns,
                policies=self.policies,
                versions=self.versions,
                windows=self._windows,
                judging=judging,
                sampler=sampler,
                rewards=self.rewards,
                prompts=self._prompts,
                skills=lambda: self._library.view.skills,
                status=status,
            ),
            setbacks=Setbacks(
                trainer=trainer,
                tell=lambda text: self._learning.announce("notice", {"text": text}),
                retry_s=self.settings.retry_s,
            ),
            status=status,
            draw_seed=self.settings.draw_seed,
            observer=observer_of(self._config.telemetry.otlp, __version__),
        )

    def begin(self, supervisor: Supervisor) -> None:
        """Start the loops."""
        self.is_training = True
        supervisor.run("policy", self._tend)
        if self._policy.mode != "skills_only":
            supervisor.run("slow", self._train)

    async def _train(self) -> None:
        await run_sync(self._teams.replace, {team.name: team.users for team in self._config.teams})
        await self.slow.run()

    async def _tend(self) -> None:
        """Serve what the database says; watch its turns; notice skills that were changed."""
        await self.versions.restore()
        generation = self._library.view.generation
        for look in count():
            if look % _TIDY_EVERY == 0:
                await self.versions.tidy(self._policy.keep_versions, self._remove)
                await run_sync(self.remove_given_up)
            await anyio.sleep(_LOOK_EVERY_S)
            await self.watch.look()
            if self._library.view.generation != generation or self.versions.has_lost_some:
                generation = self._library.view.generation
                await self.versions.restore()

    async def train(self) -> dict[str, Json]:
        """Begin now with the turns there are, or go on with a run that was interrupted; return
        facts about the turns.
        """
        continues = await run_sync(self.slow.has_unfinished_run)
        waiting = await run_sync(self.turns.waiting, self.slow.most)
        turns = waiting.turns
        rejections = await run_sync(partial(self.turns.rejections, is_fresh=True))
        reasons: dict[str, Json] = {reason.value: count for reason, count in rejections.items()}
        if unscorable := await run_sync(self.turns.unscorable):
            reasons[NOTHING_SCORES] = unscorable
        if not self.is_training:
            await run_sync(self._cursors.count_up, TRAINING_WANTED)
        elif turns or continues:
            self._open_window("a person asked for it")
            if turns:
                self.slow.demand()
        return {
            "started": bool(turns) or continues,
            "continues": continues,
            "turns": turns,
            "given_back": turns - waiting.new,
            "starving": self._starvation.warning(self.slow.status.state),
            "batch_turns": self._policy.batch_turns,
            "rejections": reasons,
        }

    async def promote(self, number: int) -> PolicyVersion:
        """Serve this version from now on. Raises RefusedError or TrainingError."""
        return await self.versions.promote(number, BY_A_PERSON)

    async def rollback(self, to: int | None) -> int:
        """Go back; the version that serves then. Raises RefusedError."""
        return (await self.versions.rollback(to, "a person rolled back")).version

    async def forget(self, batches: Sequence[int]) -> None:
        """Stop training on dropped batches, and serve what may still serve."""
        if not await self.slow.drop(batches, _STOP_WITHIN_S):
            log.warning(
                "training goes on for a while batches=%s; what it makes is thrown away",
                list(batches),
            )
        await self.versions.restore()

    def training(self) -> dict[str, Json]:
        """What the slow loop is doing, for people."""
        status = self.slow.status
        tally, state = status.tally, status.state
        if state is LoopState.TRAINING and tally is not None and tally.phase == Phase.CHOOSE.value:
            state = LoopState.CHOOSING
        facts: dict[str, Json] = {
            "state": state.value,
            "test": self.slow.trial.proof.abilities.progress
            if state is LoopState.PROVING
            else None,
            "version": self._slot.serving.version,
            "paused_reason": self._paused(),
            "troubles": list[Json](self._troubles()),
        }
        return facts | (_NO_RUN if tally is None else tally.facts())

    def _paused(self) -> str | None:
        """Why training stands still, though it has something to do."""
        status = self.slow.status
        if status.state in (LoopState.UNPAID, LoopState.MEMORY) and status.trouble is not None:
            return status.trouble.removeprefix("waits: ")
        return None if self._windows.window is not None else self._windows.shut_because

    def _troubles(self) -> list[str]:
        """What keeps training or a version from going on, or makes a run smaller, and what was
        rolled back.
        """
        status = self.slow.status
        told = (
            status.trouble,
            status.notice,
            None if status.tally is None else status.tally.notice,
            self._starvation.warning(status.state),
            self.watch.notice,
        )
        return [*(one for one in told if one is not None), *self.versions.troubles]

    def remove_given_up(self) -> None:
        """Remove the weights in our folder that nobody may serve any more; another program may have
        decided that. Blocks.
        """
        for weights in self.policies.thrown_away():
            self._remove(weights)
        self.versions.files.tidy()

    def _remove(self, weights: Weights) -> None:
        """Throw weights away that lie in our folder. What a service keeps, it keeps by its own
        rules. Blocks.
        """
        for place in {weights.adapter, weights.training}:
            if place is not None and Path(place).parent == self._folder:
                shutil.rmtree(place, ignore_errors=True)

    async def _judging_room(self) -> TokenRoom:
        """What the learning budget has for judging."""
        judge = self._learning.models.shown(self._config.judge) or ""
        return await self._learning.budget.room(Purpose.JUDGE, judge)

    def _references(self) -> References:
        learning, share = self._learning, self._policy.held_out_share

        def correction(turn: TurnId) -> tuple[Step, Correction] | None:
            step, verdict = learning.recorded.step(turn), learning.verdicts.verdict_of(turn)
            if step is None or verdict is None:
                return None
            is_read = any(signal.detector == CORRECTION_READ for signal in verdict.signals)
            found = correction_of(step, (verdict.comment or "") if is_read else None)
            return None if found is None else (step, found)

        return References(
            failures=lambda: learning.verdicts.recent(Outcome.FAIL, _MOST_CORRECTIONS),
            correction=correction,
            is_support=self._is_support,
            is_held_out=lambda turn: is_held_out(turn, share),
        )

    def _broken_share(self, name: SkillName) -> float:
        """The share of checked turns in which a rule was broken; 0 for skills and unknown rules.
        Blocks.
        """
        rule = self._skill(name)
        if rule is None or rule.kind is not SkillKind.RULE:
            return 0.0
        counted = self._compliance.totals({name: measured_hash(rule)})[name]
        total = sum(counted.values(), Compliance())
        return total.broken / total.checked if total.checked else 0.0

    def _is_same(self, name: SkillName, generation: int) -> bool:
        """Whether a skill says now what it said in a generation."""
        then, now = self._learning.generations.at(generation), self._library.view.get(name)
        return (
            now is not None
            and then is not None
            and any(one.content_hash == now.content_hash for one in then.skills)
        )
