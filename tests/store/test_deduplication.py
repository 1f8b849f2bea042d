"""What placements and splices are called in the database."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.turn import Placement, Splice
from metaclaw.store.deduplication import ContentIds

_SPLICES = st.lists(
    st.builds(Splice, st.integers(0, 3), st.sampled_from((b"one", b"two"))), max_size=4
).map(tuple)
_PLACEMENTS = st.lists(
    st.builds(
        Placement,
        st.sampled_from((b"a", b"b")),
        st.just((SkillName("wash-hands"),)),
        st.sampled_from(("one", "two")),
    ),
    max_size=4,
).map(tuple)


def _ticking(start_ms: int = 1_800_000_000_000) -> Callable[[], int]:
    """A clock that goes on by a millisecond whenever it is looked at."""
    now_ms = start_ms

    def look() -> int:
        nonlocal now_ms
        now_ms += 1
        return now_ms * 1_000_000

    return look


@given(st.lists(_SPLICES, max_size=12), st.lists(_PLACEMENTS, max_size=12))
def test_one_address_means_one_tuple_and_leads_to_all_of_it(
    splices: list[tuple[Splice, ...]], placements: list[tuple[Placement, ...]]
) -> None:
    addresses = ContentIds()
    at_splices = {items: addresses.of_splices(items) for items in splices}
    at_placements = {items: addresses.of_placements(items) for items in placements}
    snippets = dict(addresses.snippets)
    spliced = {row[0]: row for row in addresses.splices}
    placed = {row[0]: row for row in addresses.placements}
    assert len(spliced) == len(addresses.splices)
    assert len(placed) == len(addresses.placements)
    for items, last in at_splices.items():
        read: list[Splice] = []
        while last is not None:
            _, last, offset, snippet = spliced[last]
            read.insert(0, Splice(offset, snippets[snippet]))
        assert tuple(read) == items
    for wanted, at in at_placements.items():
        found: list[Placement] = []
        while at is not None:
            _, at, anchor, _, snippet = placed[at]
            found.insert(
                0, Placement(anchor, (SkillName("wash-hands"),), snippets[snippet].decode())
            )
        assert tuple(found) == wanted


def test_a_tuple_keeps_its_address_and_shares_the_rows_it_begins_with() -> None:
    addresses = ContentIds(_ticking())
    one, two = Splice(1, b"one"), Splice(2, b"two")
    short = addresses.of_splices((one,))
    long = addresses.of_splices((one, two))
    addresses.clear_rows()
    assert addresses.of_splices((one,)) == short
    assert addresses.of_splices((one, two)) == long
    assert addresses.of_splices((one, Splice(9, b"two"))) != long
    assert [row[1] for row in addresses.splices] == [short]
    assert addresses.snippets == []


def test_rows_that_are_made_later_come_later_in_the_trees() -> None:
    addresses = ContentIds(_ticking())
    names: list[bytes | None] = []
    for number in range(300):
        names += [
            addresses.of_splices((Splice(number, b"skill"),)),
            addresses.of_placements((Placement(b"%d" % number, (SkillName("sing"),), "Sing."),)),
        ]
    found = [name for name in names if name is not None]
    assert len(found) == len(names)
    assert found == sorted(found)
    assert {len(name) for name in found} == {16}


def test_a_clock_before_1970_spoils_nothing() -> None:
    addresses = ContentIds(lambda: -5_000_000_000)
    assert addresses.of_splices((Splice(1, b"one"),)) != addresses.of_splices((Splice(2, b"one"),))
