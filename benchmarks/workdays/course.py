"""A seed's course from the generator: the days of Part II, and held-out days with the same rules and other facts."""

from benchmarks.workdays.run import Course
from metaclaw.bench.workdays import PART_TWO, generate, held_out, score


def make_course(seed: int) -> Course:
    """Days, held-out days, and how answers are marked."""
    return Course(generate(seed, PART_TWO).days, held_out(seed, PART_TWO).days, score)
