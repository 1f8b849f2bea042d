"""How alike two texts are, by the fewest characters that must be inserted, deleted or replaced to make one of the other."""


def similarity(one: str, two: str) -> float:
    """From 0, nothing in common, to 1, equal: one minus the edit distance over the length of the longer text."""
    longer = max(len(one), len(two))
    return 1.0 - edit_distance(one, two) / longer if longer else 1.0


def edit_distance(one: str, two: str) -> int:
    """The Levenshtein distance, by Myers' bit-parallel algorithm in Hyyrö's form.

    A column of the table of distances is two integers: bit i of `rises` is set where the distance grows by one from row i to row
    i + 1, bit i of `falls` where it shrinks. Each character of `two` moves the whole column on by a few operations on them.
    """
    if not one or not two:
        return len(one) + len(two)
    rows_of: dict[str, int] = {}
    for row, sign in enumerate(one):
        rows_of[sign] = rows_of.get(sign, 0) | (1 << row)
    mask = (1 << len(one)) - 1
    last_row = 1 << (len(one) - 1)
    rises, falls, distance = mask, 0, len(one)
    for sign in two:
        same = rows_of.get(sign, 0)
        level = same | falls | (((same & rises) + rises) ^ rises)
        right_rises = falls | ~(level | rises) & mask
        right_falls = rises & level
        if right_rises & last_row:
            distance += 1
        elif right_falls & last_row:
            distance -= 1
        right_rises = (right_rises << 1 | 1) & mask
        right_falls = right_falls << 1 & mask
        rises = right_falls | ~(level | right_rises) & mask
        falls = right_rises & level
    return distance
