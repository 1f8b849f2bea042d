"""check_filename.py --dir DIR --ext EXT [--min-count N]: so many files there are called
YYYYMMDD_snake_case.EXT. check_filename.py FILE: this one is called so.

Written to agree with the published checker, its looseness included: any eight digits are a date,
and contents are not looked at."""

import argparse
import re
import sys
from pathlib import Path

NAME = re.compile(r"^\d{8}_[a-z][a-z0-9_]*\.[a-z0-9]+$")


def main() -> None:
    """Ends with 1 and a line on standard error if there are too few."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith("--"):
        sys.exit(
            0
            if NAME.match(Path(sys.argv[1]).name)
            else f"FAIL: {sys.argv[1]} is not called YYYYMMDD_snake_case.ext"
        )
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--ext", required=True)
    parser.add_argument("--min-count", type=int, default=1)
    wanted = parser.parse_args()
    if not wanted.dir.is_dir():
        sys.exit(f"FAIL: {wanted.dir} is not a folder")
    ending = f".{wanted.ext.lstrip('.').lower()}"
    good = [
        path.name
        for path in wanted.dir.iterdir()
        if path.name.endswith(ending) and NAME.match(path.name)
    ]
    if len(good) < wanted.min_count:
        sys.exit(
            f"FAIL: {len(good)} of {wanted.min_count} files in {wanted.dir} are called"
            f" YYYYMMDD_snake_case{ending}"
        )


main()
