"""`python -m dnadiff`: the list of commands."""

from __future__ import annotations

import sys

from dnadiff import __version__
from dnadiff.commands import COMMANDS


def main() -> None:
    """Print what there is."""
    width = max(map(len, COMMANDS))
    print(f"dnadiff {__version__}: masked diffusion language models for DNA and text (not MUMmer's dnadiff)\n")
    for name, what in COMMANDS.items():
        print(f"  python -m dnadiff.{name.ljust(width)}  {what}")
    print("\nEach answers --help. Begin with python -m dnadiff.train, which trains on the bundled E. coli genome.")
    if len(sys.argv) > 1 and sys.argv[1] not in ("-h", "--help"):
        print(
            f"\nerror: python -m dnadiff takes no arguments, got {sys.argv[1]!r}; did you mean python -m dnadiff.{sys.argv[1]}?",
            file=sys.stderr,
        )
        raise SystemExit(1)


if __name__ == "__main__":
    main()
