"""Makes the modules of scripts/studies and scripts/reliability importable."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path += [str(SCRIPTS / "studies"), str(SCRIPTS / "reliability")]
