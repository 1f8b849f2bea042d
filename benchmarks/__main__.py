"""`python -m benchmarks [NAME …] [--quick]`: runs the benchmarks one after another, each in a
process of its own.
"""

import argparse
import importlib.util
import subprocess
import sys

NAMES = (
    "proxy",
    "ledger",
    "retrieval",
    "engine",
    "failure_sense",
    "secrets",
    "time_to_effect",
    "windows",
)


def _is_present(name: str) -> bool:
    return importlib.util.find_spec(f"benchmarks.{name}") is not None


def main() -> int:
    """Runs what was named, or everything there is; the first failure's status is the status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)} [all]"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the proxy in a minute instead of a quarter of an hour; the others are short",
    )
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in NAMES or not _is_present(name)]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    status = 0
    for name in given.names or filter(_is_present, NAMES):
        print(f"== {name}", flush=True)
        shorter = ["--quick"] if given.quick and name == "proxy" else []
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *shorter], check=False)
        status = status or done.returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
