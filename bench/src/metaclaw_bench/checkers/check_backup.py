"""check_backup.py FILE: the file was changed, and FILE.bak keeps what it was.

Written to agree with the published checker, its looseness included: all it asks is that both are
there and differ."""

import sys
from pathlib import Path


def main() -> None:
    """Ends with 1 and a line on standard error if something is wrong."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: check_backup.py FILE\n")
        sys.exit(2)
    path, backup = Path(sys.argv[1]), Path(f"{sys.argv[1]}.bak")
    for needed in (path, backup):
        if not needed.is_file():
            sys.exit(f"FAIL: {needed} is not there")
    if path.read_bytes() == backup.read_bytes():
        sys.exit(f"FAIL: {path} is the same as its backup")


main()
