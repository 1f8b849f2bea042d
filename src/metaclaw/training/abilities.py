"""General abilities: versions are tried on the golden set, and compared.

Results are kept on disk by a hash of the weights and of the set, so the version that serves is
tried once and not again for each candidate. A version of a training service is known by its name
there."""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from anyio.to_thread import run_sync

from metaclaw.domain.policy import Weights
from metaclaw.durable_files import replace_file
from metaclaw.ports import Tokeniser
from metaclaw.training.gate import GateThresholds
from metaclaw.training.golden import (
    GoldenComparison,
    GoldenItem,
    GoldenScore,
    GoldenStanding,
    compare_golden,
    golden_version,
    is_weak,
    reference_pairs,
)
from metaclaw.training.sampling import VersionSampler

log = logging.getLogger(__name__)

_MOST_KEPT: Final = 20
MOST_TOKENS: Final = 96
"""Answers are no longer, where checkpoints are chosen and at the gate."""


class _Results(msgspec.Struct):
    """What is known of one version: by item, whether it passes, and the mean log-probability of its
    reference.
    """

    passed: dict[str, bool] = {}
    likelihood: dict[str, float] = {}

    def score(self, items: Sequence[GoldenItem], *, with_likelihood: bool) -> GoldenScore:
        names = [item.name for item in items]
        return GoldenScore(
            {name: self.passed[name] for name in names},
            {name: self.likelihood[name] for name in names} if with_likelihood else None,
        )


@dataclass(eq=False, kw_only=True)
class GeneralAbilities:
    """Tries versions on the golden set, greedily. `folder` is where results are kept; `base` names
    the untrained model. An answer has at most `max_tokens` tokens, and no more than its item
    allows."""

    sampler: VersionSampler
    tokeniser: Tokeniser
    items: Sequence[GoldenItem]
    folder: Path
    base: str = ""
    max_tokens: int = MOST_TOKENS
    wave: int = 300

    def __post_init__(self) -> None:
        self._version = golden_version(self.items)
        self.progress: str | None = None
        """How far the comparison is, for people; None between comparisons."""

    async def compare(
        self, candidate: Weights | None, serving: Weights | None, rules: GateThresholds
    ) -> tuple[GoldenScore, GoldenScore, GoldenComparison]:
        """The scores of serving version and candidate on as many items as decide, and the
        comparison. Raises TrainingError.
        """
        try:
            return await self._compare(candidate, serving, rules)
        finally:
            self.progress = None

    async def _compare(
        self, candidate: Weights | None, serving: Weights | None, rules: GateThresholds
    ) -> tuple[GoldenScore, GoldenScore, GoldenComparison]:
        versions = serving, candidate
        results = [await run_sync(self._read, weights) for weights in versions]
        wants_likelihood = False
        tried = min(self.wave, len(self.items))
        while True:
            some = self.items[:tried]
            self.progress = f"general abilities on {tried} questions, of at most {len(self.items)}"
            for weights, found in zip(versions, results, strict=True):
                await self._try(weights, found, some, with_likelihood=wants_likelihood)
            old, new = [found.score(some, with_likelihood=wants_likelihood) for found in results]
            comparison = compare_golden(
                old, new, rules.golden_margin, tries=rules.tries, of=len(self.items)
            )
            log.info(
                "golden_compared items=%d standing=%s points=%+.1f",
                tried,
                comparison.standing.value,
                comparison.points,
            )
            is_unsure = comparison.standing is GoldenStanding.UNSURE or is_weak(old)
            if is_unsure and not wants_likelihood:
                wants_likelihood = True
            elif comparison.standing is GoldenStanding.OPEN:
                tried = min(tried + self.wave, len(self.items))
            else:
                return old, new, comparison

    async def _try(
        self,
        weights: Weights | None,
        results: _Results,
        items: Sequence[GoldenItem],
        *,
        with_likelihood: bool,
    ) -> None:
        """Complete what is known of a version on these items."""
        untried = [item for item in items if item.name not in results.passed]
        results.passed |= await passed_items(
            untried, self.sampler, self.tokeniser, weights, self.max_tokens
        )
        unscored = [
            item for item in items if with_likelihood and item.name not in results.likelihood
        ]
        if unscored:
            pairs = reference_pairs(unscored, self.tokeniser.prompt, self.tokeniser.encode)
            scores = await self.sampler.score(pairs, weights)
            results.likelihood |= {
                item.name: sum(some) / len(some)
                for item, some in zip(unscored, scores, strict=True)
            }
        if untried or unscored:
            await run_sync(self._write, weights, results)

    def _path(self, weights: Weights | None) -> Path:
        backend = self.sampler.backend.name
        named = f"{backend}\n{self.base}\n{self._version}\n{self.max_tokens}\n".encode()
        known = named + (b"" if weights is None else _digest(weights))
        return self.folder / f"{hashlib.sha256(known).hexdigest()[:32]}.json"

    def _read(self, weights: Weights | None) -> _Results:
        path = self._path(weights)
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Results)
        except FileNotFoundError:
            return _Results()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("golden_results_lost path=%s reason=%s", path, error)
            return _Results()

    def _write(self, weights: Weights | None, results: _Results) -> None:
        path = self._path(weights)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, msgspec.json.encode(results))
            newest_last = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
            for old in newest_last[:-_MOST_KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("golden_results_not_kept path=%s reason=%s", path, error)


async def passed_items(
    items: Sequence[GoldenItem],
    sampler: VersionSampler,
    tokeniser: Tokeniser,
    weights: Weights | None,
    max_tokens: int = MOST_TOKENS,
) -> dict[str, bool]:
    """Whether the likeliest answer of a version to each item is right."""
    passed: dict[str, bool] = {}
    by_room: dict[int, list[GoldenItem]] = defaultdict(list)
    for item in items:
        by_room[min(item.max_tokens, max_tokens)].append(item)
    for room, some in sorted(by_room.items()):
        prompts = await run_sync(_prompts, tokeniser, some)
        drawn = await sampler.one_of_each(prompts, weights, room)
        passed |= {item.name: item.passes(one.text) for item, one in zip(some, drawn, strict=True)}
    return passed


def _prompts(tokeniser: Tokeniser, items: Sequence[GoldenItem]) -> list[tuple[int, ...]]:
    return [tokeniser.prompt(item.request) for item in items]


def _digest(weights: Weights) -> bytes:
    """What tells weights from others: the bytes of an adapter that lies here, the name of one that
    lies with a service.
    """
    folder = Path(weights.adapter)
    if not folder.is_dir():
        return f"{weights.backend}\n{weights.adapter}".encode()
    digest = hashlib.sha256()
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()
