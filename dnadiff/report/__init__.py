"""One-page reports and their pictures.

`page` fills the templates, `figures` makes figures and files of the `panels`, `headlines` turns
intervals into verdicts. `designs`, `heat_map` and `suite` are the pages of commands. Nothing is
computed here: the numbers come from `dnadiff.genomics.metrics` and from the JSON files of the
commands.
"""

from dnadiff.report.headlines import Headline, headlines, sentences
from dnadiff.report.page import save_overview, write_report
from dnadiff.report.results import RunResults, read_metrics

__all__ = [
    "Headline",
    "RunResults",
    "headlines",
    "read_metrics",
    "save_overview",
    "sentences",
    "write_report",
]
