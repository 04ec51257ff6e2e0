"""Scripts are imported as a program would import its neighbors."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "experiments"))
