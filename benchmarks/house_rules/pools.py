"""What questions are made of. Each pool is cut once, for ever, into what is taught and what is only asked at the end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import Final, Generic, TypeVar

Entity = TypeVar("Entity")

_HELD_OUT_SHARE: Final = 0.25
_CUT: Final = "house rules"
"""Seed of the cut. It never changes with the seed of a run, so that no run is asked what another one was taught."""


class Split(StrEnum):
    """Taught, or held out."""

    TRAIN = "train"
    HELD_OUT = "held out"


@dataclass(frozen=True)
class Pool(Generic[Entity]):
    """Entities of one kind, cut in two parts that share nothing."""

    train: tuple[Entity, ...]
    held_out: tuple[Entity, ...]

    def of(self, split: Split) -> tuple[Entity, ...]:
        """The part that belongs to a split."""
        return self.train if split is Split.TRAIN else self.held_out


def _cut(name: str, entities: Sequence[Entity]) -> Pool[Entity]:
    shuffled = list(dict.fromkeys(entities))
    random.Random(f"{_CUT}, {name}").shuffle(shuffled)
    held_out = round(_HELD_OUT_SHARE * len(shuffled))
    return Pool(tuple(shuffled[held_out:]), tuple(shuffled[:held_out]))


TOPICS: Final = _cut(
    "topics",
    """annual weekly daily budget travel market water energy music health safety school winter summer spring harvest forest river
    bridge station library museum castle ocean planet engine solar wind paper iron gold stone glass wood plastic sugar bread apple
    orange rice fish horse snake research training payment contract customer product launch design testing security network server
    database storage memory camera printer monitor window door table chair office factory hospital bank post fire traffic weather
    climate history science physics biology language film radio website email phone letter package license tax loan credit cash coin
    stamp flag map clock calendar brush nail chain wheel motor pipe wire switch fuel gas oil coal ice snow rain storm cloud""".split(),
)
PEOPLE: Final = _cut(
    "people",
    """Maria Anna Peter Paul John Mary James Robert David Thomas Sarah Alice Henry Jack Max Victor Simon Martin Daniel Michael Andrew
    George Frank Arthur Edward Charles William Richard Joseph Samuel Adam Carl Ali Kim Lee Anne Jane Jean Alex Ben Bob Chris Dan Fred
    Greg Jeff Jim Ken Matt Nick Phil Ray Sam Scott Tim Tom""".split(),
)
COMPONENTS: Final = _cut(
    "components",
    """parser cache router printer scheduler loader queue proxy worker client server engine monitor filter gateway driver kernel compiler
    editor viewer player reader writer builder runner manager timer logger socket session search index login payment upload download
    sync import export render video audio camera sensor motor meter clock lock door light lift""".split(),
)
FAULTS: Final = _cut(
    "faults",
    """disk full, file missing, no memory, lost link, bad input, slow reply, wrong key, low power, high load, no signal, old version,
    broken pipe, time out, empty list, bad password, no space, lost packet, open port, weak signal, dead battery, full queue,
    wrong type, no route, late start, double entry, bad header, short read, failed test, hot surface, missing page, invalid date,
    closed door, no network, frozen screen, bad sector, wrong size, unknown host""".replace("\n    ", " ").split(", "),
)
CODES: Final = _cut("codes", range(100, 1000))
DATES: Final = _cut("dates", [date(1990, 1, 1) + timedelta(days=day) for day in range(50 * 365)])
EXTENSIONS: Final = ("pdf", "txt", "csv", "doc", "png", "xml", "html", "zip")
"""Too few to be cut; so are months, levels and single digits. Every question has an entity that is cut."""
