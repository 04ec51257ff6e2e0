"""Writes the tables of docs/results/variants.md from the files in docs/tables, between
`<!-- table NAME -->` and `<!-- end -->`.

    python scripts/studies/variants/page.py

The studies write these files with `--collect`. A table whose file is missing is replaced by a note.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / "bench"), str(Path(__file__).parent)]
import coding
import long_window
import methods
import promoters

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "results" / "variants.md"
FOLDER = ROOT / "docs" / "tables"
TABLES: dict[str, tuple[str, Callable]] = {
    "calibration": ("variants_methods", methods.calibration_table),
    "methods": ("variants_methods", methods.quantities_table),
    "sites": ("variants_methods", methods.sites_table),
    "coding": ("variants_coding", coding.table),
    "sigma70": ("variants_sigma70", promoters.table),
    "hnf4a": ("variants_hnf4a", promoters.table),
    "long_window": ("long_window", long_window.markdown),
}
_PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, folder: Path = FOLDER) -> str:
    """A page with its tables as the files in `folder` have them."""

    def content(match: re.Match) -> str:
        name, make = TABLES[match[2]]
        path = folder / f"{name}.json"
        made = (
            make(json.loads(path.read_text(encoding="utf-8"))).strip()
            if path.is_file()
            else "Not measured."
        )
        return f"{match[1]}\n{made}\n\n{match[3]}"

    return _PLACE.sub(content, text)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = TABLES.keys() - {match[2] for match in _PLACE.finditer(text)}
    if missing:
        raise SystemExit(f"{PAGE} has no place for the tables {', '.join(sorted(missing))}")
    PAGE.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
