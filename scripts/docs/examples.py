"""Make the pictures of the guides by the commands and the code of docs/reference/pictures.md.

    python scripts/docs/examples.py FOLDER [--code]      # --code: the commands have run there

The commands write into FOLDER, which exists, and the pictures are written to docs/pictures.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main(folder: Path, only_code: bool) -> None:
    """Run the blocks of the page in their order."""
    os.chdir(folder)
    names: dict[str, object] = {}
    for kind, text in BLOCK.findall((DOCS / "reference/pictures.md").read_text(encoding="utf-8")):
        if kind == "python":
            exec(text, names)
        elif not only_code:
            subprocess.run(text, shell=True, check=True)
    for picture in sorted(folder.glob("*.svg")):
        print(shutil.copy(picture, DOCS / "pictures"))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), "--code" in sys.argv)
