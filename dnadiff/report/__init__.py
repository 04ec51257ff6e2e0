"""One-page reports and their pictures.

`page` writes `report.html` from its `sections`; `panels` are drawn on `figures`; `composition` compares samples with real windows;
`judgement` does so in every way (`structure`, `copies`, `learned`) for the command `judge`;
`headlines` turns intervals into verdicts. Files of sequences are read by the command lines (`dnadiff.data`), not here.
"""

from dnadiff.metrics.composition import Composition, compare
from dnadiff.report.headlines import Headline, headlines, sentences
from dnadiff.report.page import save_overview, write_report
from dnadiff.report.results import read_metrics

__all__ = ["Composition", "Headline", "compare", "headlines", "read_metrics", "save_overview", "sentences", "write_report"]
