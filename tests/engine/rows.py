"""What each row of a packed pass may see, read off its spans alone."""

from itertools import pairwise

from metaclaw.engine.training.packing import Packed


def seen_rows(packed: Packed) -> list[list[int]]:
    """For each row the numbers of the rows it sees, in order, itself last."""
    seen = []
    for level in packed.levels:
        first = level.rows.start
        own = [
            list(range(first + begin, first + row + 1))
            for begin, end in pairwise(level.nodes.bounds)
            for row in range(begin, end)
        ]
        for above, hanging in zip(
            reversed(packed.levels[: len(level.hanging)]), reversed(level.hanging), strict=True
        ):
            before = [
                list(range(above.rows.start + node.start, above.rows.start + node.stop))
                for node, rows in zip(above.nodes.slices(), hanging.slices(), strict=True)
                for _ in range(rows.start, rows.stop)
            ]
            own = [one + two for one, two in zip(before, own, strict=True)]
        seen += own
    return seen
