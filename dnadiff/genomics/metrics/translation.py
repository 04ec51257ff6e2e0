"""How similar texts are to references: BLEU and chrF by sacreBLEU, ROUGE by Google's rouge-score,
each with a bootstrap interval over the texts.

All are percentages. BLEU (Papineni et al. 2002) and chrF (Popovic 2015) are of the corpus, with
sacreBLEU's defaults, which its signature records. ROUGE (Lin 2004) is the mean F1 of the texts, of
lower-case words of Latin letters and digits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnadiff.fields import JsonDict
from dnadiff.formats.documents import read_sides
from dnadiff.store.address import shown
from dnadiff.store.objects import optional_package

_REPLICATES = 1000
_ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


def similarity(texts: Sequence[str], path: str) -> list[JsonDict]:
    """The metrics of texts against one reference each: a name, the value, a 95 % interval, and how
    it was computed.

    Args:
        path: the file of the references, targets of pairs or lines.

    Raises:
        ValueError: if there are different numbers of both, or a package is missing.
    """
    references = [sides[-1] for _, sides in read_sides(path, ["target"])]
    if len(texts) != len(references):
        raise ValueError(
            f"reference {shown(path)} has {len(references)} references and samples= "
            f"{len(texts)} texts; give one for each, in the same order"
        )
    metrics, rouge = (
        optional_package(module, "reference", "translation")
        for module in ("sacrebleu.metrics", "rouge_score.rouge_scorer")
    )
    found: list[tuple[str, float, Any, str]] = []  # with values of the bootstrap replicates
    number = len(texts)
    resampled = np.random.default_rng(0).multinomial(number, [1 / number] * number, _REPLICATES)
    for name, metric in (("BLEU", metrics.BLEU()), ("chrF", metrics.CHRF())):
        value = metric.corpus_score(texts, [references]).score
        # sacreBLEU's own intervals end in a TypeError where chrF is 0 in some replicates only.
        counts = resampled @ np.array(metric._extract_corpus_statistics(texts, [references]))
        scores = [metric._compute_score_from_stats(row).score for row in counts.tolist()]
        found.append((name, value, scores, str(metric.get_signature())))
    scorer = rouge.RougeScorer(list(_ROUGE))
    scored = [scorer.score(reference, text) for text, reference in zip(texts, references)]
    for key, name in _ROUGE.items():
        f1 = np.array([100 * score[key].fmeasure for score in scored])
        found.append((name, f1.mean(), resampled @ f1 / number, "mean F1, without stemming"))
    rows = []
    for name, value, scores, how in found:
        low, high = np.quantile(scores, (0.025, 0.975)).tolist()
        rows.append({"metric": name, "value": float(value), "low": low, "high": high, "how": how})
    return rows
