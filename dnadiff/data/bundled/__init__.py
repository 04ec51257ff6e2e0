"""A small real genome that ships with the package; README.md beside this file names its source."""

from pathlib import Path

FOLDER = Path(__file__).parent


def path(name: str) -> Path:
    """The file `name` in this folder.

    Raises:
        FileNotFoundError: if nothing of that name ships with the package; the message lists what does.
    """
    found = FOLDER / name
    known = sorted(p.name for p in FOLDER.iterdir() if p.suffix in (".gz", ".bed"))
    if name not in known:
        raise FileNotFoundError(f"bundled:{name} does not ship with dnadiff; what does: {', '.join(known)}")
    return found
