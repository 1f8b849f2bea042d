"""What a version can do in general: the golden set, tried in waves until the comparison is decided. Results are kept on disk.

A version's results are kept by a hash of its weights and of the set, so the version that serves is tried once and not again for
each candidate. A version of a training service is known by its name there.
"""

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from anyio.to_thread import run_sync

from metaclaw.domain.batch import Drawing
from metaclaw.domain.policy import Weights
from metaclaw.ports import Tokeniser, TrainingBackend, Windows
from metaclaw.train import (
    GoldenComparison,
    GoldenItem,
    GoldenRules,
    GoldenScore,
    GoldenStanding,
    compare_golden,
    golden_version,
    read_answer,
    reference_pairs,
)

log = logging.getLogger(__name__)

_MOST_KEPT: Final = 20


@dataclass(slots=True)
class _Results:
    """What is known of one version: by item, whether it passes, and the mean log-probability of its reference."""

    passed: dict[str, bool] = field(default_factory=dict)
    likelihood: dict[str, float] = field(default_factory=dict)


class GeneralAbilities:
    """Tries versions on the golden set, greedily. `folder` is where results are kept, None to keep none; `base` names the untrained
    model. An answer has at most `max_tokens` tokens, and no more than its item allows."""

    def __init__(
        self,
        *,
        backend: TrainingBackend,
        tokeniser: Tokeniser,
        items: Sequence[GoldenItem],
        windows: Windows,
        folder: Path | None = None,
        base: str = "",
        max_tokens: int = 96,
        wave: int = 300,
    ) -> None:
        self._backend = backend
        self._tokeniser = tokeniser
        self._items = list(items)
        self._version = golden_version(items)
        self._windows = windows
        self._folder = folder
        self._base = base
        self._max_tokens = max_tokens
        self._wave = wave

    async def compare(
        self, candidate: Weights | None, serving: Weights | None, rules: GoldenRules
    ) -> tuple[GoldenScore, GoldenScore, GoldenComparison]:
        """The scores of serving version and candidate on as many items as decide, and the comparison. Raises TrainingError."""
        versions = serving, candidate
        results = [await run_sync(self._read, weights) for weights in versions]
        wants_likelihood = False
        tried = min(self._wave, len(self._items))
        while True:
            some = self._items[:tried]
            for weights, found in zip(versions, results, strict=True):
                await self._try(weights, found, some, with_likelihood=wants_likelihood)
            scores = [_score(found, some, with_likelihood=wants_likelihood) for found in results]
            comparison = compare_golden(scores[0], scores[1], rules, len(self._items))
            log.info("golden_compared items=%d standing=%s points=%+.1f", tried, comparison.standing.value, comparison.points)
            is_weak = scores[0].share < rules.weak
            if not wants_likelihood and (is_weak or comparison.standing is GoldenStanding.UNSURE):
                wants_likelihood = True
            elif comparison.standing is GoldenStanding.OPEN:
                tried = min(tried + self._wave, len(self._items))
            else:
                return scores[0], scores[1], comparison

    async def _try(self, weights: Weights | None, found: _Results, items: Sequence[GoldenItem], *, with_likelihood: bool) -> None:
        """Complete what is known of a version on these items."""
        missing = [item for item in items if item.name not in found.passed]
        by_room: dict[int, list[GoldenItem]] = defaultdict(list)
        for item in missing:
            by_room[min(item.max_tokens, self._max_tokens)].append(item)
        for room, some in sorted(by_room.items()):
            await self._windows.until_open()
            prompts, drawing = [self._tokeniser.prompt(item.request) for item in some], Drawing(1, room, 0.0)
            if weights is None:
                drawn = await self._backend.sample_base(prompts, drawing)
            else:
                drawn = await self._backend.sample(prompts, drawing, weights)
            found.passed |= {item.name: item.passes(read_answer(group[0].text)) for item, group in zip(some, drawn, strict=True)}
        unscored = [item for item in items if item.name not in found.likelihood] if with_likelihood else []
        if unscored:
            await self._windows.until_open()
            pairs = reference_pairs(unscored, self._tokeniser.prompt, self._tokeniser.encode)
            scores = await (self._backend.score_base(pairs) if weights is None else self._backend.score(pairs, weights))
            found.likelihood |= {item.name: sum(some) / len(some) for item, some in zip(unscored, scores, strict=True)}
        if missing or unscored:
            await run_sync(self._write, weights, found)

    def _path(self, weights: Weights | None) -> Path | None:
        if self._folder is None:
            return None
        named = f"{self._backend.name}\n{self._base}\n{self._version}\n{self._max_tokens}\n".encode()
        return self._folder / f"{hashlib.sha256(named + (b'' if weights is None else _digest(weights))).hexdigest()[:32]}.json"

    def _read(self, weights: Weights | None) -> _Results:
        path = self._path(weights)
        if path is None or not path.exists():
            return _Results()
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return _Results(
                {str(name): bool(value) for name, value in kept["passed"].items()},
                {str(name): float(value) for name, value in kept["likelihood"].items()},
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("golden_results_lost path=%s reason=%s", path, error)
            return _Results()

    def _write(self, weights: Weights | None, found: _Results) -> None:
        path = self._path(weights)
        if path is None:
            return
        unfinished = path.with_suffix(".tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps({"passed": found.passed, "likelihood": found.likelihood}), encoding="utf-8")
            unfinished.replace(path)
            for old in sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-_MOST_KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("golden_results_not_kept path=%s reason=%s", path, error)


def _score(found: _Results, items: Sequence[GoldenItem], *, with_likelihood: bool) -> GoldenScore:
    passed = {item.name: found.passed[item.name] for item in items}
    return GoldenScore(passed, {item.name: found.likelihood[item.name] for item in items} if with_likelihood else None)


def _digest(weights: Weights) -> bytes:
    """What tells weights from others: the bytes of an adapter that lies here, the name of one that lies with a service."""
    folder = Path(weights.adapter)
    if not folder.is_dir():
        return f"{weights.backend}\n{weights.adapter}".encode()
    digest = hashlib.sha256()
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()
