"""A small real genome that ships with the package; README.md in this folder names its source."""

from pathlib import Path

FOLDER = Path(__file__).parent
LICENSES = {
    "ecoli_K12_MG1655.fa.gz": (
        "INSDC record U00096.3, which may be used and redistributed without restriction"
    )
}  # of sequences


def path(name: str) -> Path:
    """Path of the bundled file `name`.

    Raises:
        FileNotFoundError: if there is no bundled file of that name; the message lists the bundled
            files.
    """
    found = FOLDER / name
    known = sorted(p.name for p in FOLDER.iterdir() if p.suffix in (".gz", ".bed"))
    if name not in known:
        raise FileNotFoundError(
            f"bundled:{name} does not ship with dnadiff; what does: {', '.join(known)}"
        )
    return found
