"""Quality of sampled text: generative perplexity under a causal model, entropy of the tokens,
repetition, and how similar texts are to references.

A low generative perplexity alone is not evidence of quality, because repetitive text has one too
(arXiv 2409.02908). The entropy is therefore computed from the same tokens as the perplexity: those
of a text from its first to its last one that is not special.

Similarities are BLEU and chrF by sacreBLEU and ROUGE by Google's rouge-score, in percent, each with
a bootstrap interval over the texts. BLEU (Papineni et al. 2002) and chrF (Popovic 2015) are of the
corpus, with sacreBLEU's defaults, which its signature records. ROUGE (Lin 2004) is the mean F1 of
the texts, of lower-case words of Latin letters and digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from dnadiff.data.base import run_data
from dnadiff.data.records import padded_batches, pieces
from dnadiff.data.text.pretrained import Pretrained
from dnadiff.data.tokenizer import Tokenizer
from dnadiff.diffusion.bootstrap import ConfidenceInterval, ratio
from dnadiff.diffusion.denoiser import CausalDenoiser
from dnadiff.fields import Config, JsonDict
from dnadiff.formats.documents import JsonLines, read_sides
from dnadiff.progress import log
from dnadiff.store.address import expand_user, shown
from dnadiff.store.files import bare_name, read_text
from dnadiff.store.objects import optional_package
from dnadiff.weights import checkpoint, published


@dataclass(frozen=True)
class JudgeModel:
    """A causal model of text.

    Attributes:
        length: maximum number of tokens that it reads at once.
        path: where it was loaded from.
        step: number of optimizer steps; None for GPT-2.
        data: configuration of its training data; None for GPT-2.
    """

    denoiser: CausalDenoiser
    tokenizer: Tokenizer
    length: int
    path: Path
    step: int | None = None
    data: Config | None = None

    @classmethod
    def load(cls, source: str, trust: Sequence[str], device: str) -> JudgeModel:
        """Load a run of objective=ar, or a folder with GPT-2 and its tokenizer; raises ValueError
        for anything else."""
        folder = expand_user(source)
        if (folder / published.CONFIG).is_file():
            tokenizer = Pretrained(str(folder)).load()
            gpt2 = published.load_gpt2(folder, tokenizer.vocab).to(device)
            length = gpt2.backbone.max_length
            assert length is not None  # its position embeddings are learned
            return cls(gpt2, tokenizer, length, folder)
        loaded = checkpoint.load(source, trust)
        if not isinstance(loaded.denoiser, CausalDenoiser) or loaded.is_dna:
            raise ValueError(
                f"judge {loaded.path} must be an autoregressive model of text: train one with "
                "objective=ar data=..."
            )
        length = loaded.training_length()
        data = loaded.config.get("data")
        denoiser = loaded.denoiser.to(device)
        return cls(denoiser, loaded.tokenizer, length, loaded.path, loaded.step, data)

    def encoded(self, text: str) -> ndarray:
        """Token ids `(L,)` of a text with written-out separators."""
        return encode_with_separators(split_documents(text, self.tokenizer), self.tokenizer)

    def read(self, drawn: ndarray, tokenizer: Tokenizer) -> list[ndarray]:
        """Token ids of each sample, `drawn (S, L)` ids of another tokenizer or, whatever their
        names, the same."""
        if tokenizer == self.tokenizer:
            return [row[slice(*content_span(row, tokenizer))] for row in drawn]
        documents = [decoded_documents(row, tokenizer) for row in drawn]
        return [encode_with_separators(each, self.tokenizer) for each in documents]

    @torch.no_grad()
    def nats(self, texts: Sequence[ndarray], batch_size: int = 16) -> list[ndarray]:
        """-log p of each token of each text `(L,)`, in nats.

        The token at position 0 counts too: it is predicted from the start token. Programs that
        predict from position 1 on give another perplexity, above all of short texts. Texts longer
        than `length` are cut into independent pieces of (almost) equal length, each with a start
        token.
        """
        denoiser = self.denoiser
        cuts = list(pieces(map(len, texts), self.length))
        found = [np.zeros(len(x)) for x in texts]
        parts = [torch.from_numpy(texts[p.record][p.start : p.end]) for p in cuts]
        for number, ids, valid in padded_batches(parts, batch_size, denoiser.vocab.pad_id):
            counted = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            nll = torch.zeros(ids.shape)
            x = ids.to(denoiser.device)
            positions = counted.to(denoiser.device)
            known = None if valid is None else positions
            nll[counted] = denoiser.nll(x, x, positions=positions, valid=known).float().cpu()
            for row, i in enumerate(number):
                p = cuts[i]
                found[p.record][p.start : p.end] = nll[row, : p.end - p.start].numpy()
        return found


def read_texts(path: str | Path, keeps_empty: bool = False) -> list[str]:
    """The texts of a file: the field `text` of each line of a .jsonl, or the paragraphs between
    blank lines of a .txt; plain or compressed. Empty ones are left out unless `keeps_empty`, which
    is for files that `sample` writes."""
    name = shown(path)
    if bare_name(path).endswith(".jsonl"):
        rows = JsonLines.rows(name, ("text",))
        texts: list[Any] = [row.get("text") for _, row in rows]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name}: expected a string as text in each line; correct the file")
    elif bare_name(path).endswith(".txt"):
        texts = read_text(path).removesuffix("\n\n").split("\n\n")
    else:
        raise ValueError(f"{name} must be a .jsonl or a .txt file, plain or compressed")
    texts = [text for text in texts if keeps_empty or text.strip()]
    if not texts:
        raise ValueError(f"{name} contains no text; give a file with texts")
    return texts


def real_texts(
    judge: JudgeModel, trust: Sequence[str], lengths: Sequence[int]
) -> tuple[list[ndarray], str]:
    """As many held-out texts of the judge's data as samples, of their median length, and the name
    of the part that they are from.

    That is the test part, or the validation part of data without one. There are none, with a log
    message, if they cannot be read.
    """
    if judge.data is None:
        log.info(
            f"no comparison with real text: {judge.path} names no data; for a row of it, judge a "
            "file of real text too (samples=real.txt)"
        )
        return [], ""
    length = int(np.median(lengths))
    try:
        data = run_data(judge.data, judge.tokenizer, trust)
        data.prepare()
        part = "test" if "test" in data.parts else "valid"
        tiles = data.test_windows(part, length)
        # The last of an interval may overlap the one before.
        whole = [i for i, tile in enumerate(tiles.tiles) if tile.skip == 0]
        places = np.linspace(0, len(whole) - 1, min(len(whole), len(lengths))).round().astype(int)
        items = [tiles[whole[i]] for i in places]
    # Data of another machine; a disk that fails ends the command.
    except (ValueError, FileNotFoundError) as error:
        log.info(
            "no comparison with real text: the judge's data cannot be read in windows of "
            f"{length}: {error}"
        )
        return [], ""
    texts = [item["ids"].numpy().astype(np.int64)[item["weight"].numpy() > 0] for item in items]
    texts = [ids[slice(*content_span(ids, judge.tokenizer))] for ids in texts]
    return [ids for ids in texts if len(ids)], f"{data.name}, part {part}"


def decoded_documents(ids: ndarray, tokenizer: Tokenizer) -> list[str]:
    """The documents in `ids (L,)`, decoded: special tokens separate them and are dropped."""
    special = np.isin(ids, tokenizer.special_ids)
    runs = np.split(ids, np.flatnonzero(special[1:] != special[:-1]) + 1) if len(ids) else []
    return [tokenizer.decode(run) for run in runs if run[0] not in tokenizer.special_ids]


def split_documents(text: str, tokenizer: Tokenizer) -> list[str]:
    """The documents in a text, separated by the written-out tokens with which the tokenizer begins
    or ends a text."""
    separators = {
        tokenizer.decode([i]) for i in (tokenizer.bos_id, tokenizer.eos_id) if i is not None
    }
    return re.split("|".join(map(re.escape, sorted(separators))), text) if separators else [text]


def content_span(ids: ndarray, tokenizer: Tokenizer) -> tuple[int, int]:
    """Start and end of `ids (L,)` without the special tokens at its beginning and end; equal if
    there are no others."""
    places = np.flatnonzero(~np.isin(ids, tokenizer.special_ids))
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


def at_positions(nats: Sequence[ndarray], texts: ndarray, tokenizer: Tokenizer) -> ndarray:
    """(S, L) of each token of `texts (S, L)`, NaN outside their `content_span`, from the values of
    each text that has a content."""
    found = np.full(texts.shape, np.nan)
    each = iter(nats)
    for row, ids in zip(found, texts):
        start, end = content_span(ids, tokenizer)
        if end > start:
            row[start:end] = next(each)
    return found


def encode_with_separators(texts: Sequence[str], tokenizer: Tokenizer) -> ndarray:
    """Token ids `(L,)` of the documents of one sample, separated by the tokenizer's end-of-text
    token if it has one.

    There is no separator before the first and after the last document, as in the `content_span` of
    a sample that is not encoded again. Encoding the joined text instead would read written-out
    special tokens as ordinary characters: `<|endoftext|>` as seven tokens.
    """
    found = [ids for text in texts if len(ids := tokenizer.encode(text))]
    end = [] if tokenizer.eos_id is None else [np.array([tokenizer.eos_id])]
    parts = [part for ids in found for part in (*end, ids)][len(end) :]
    return np.concatenate([np.zeros(0), *parts]).astype(np.int64)


def summary(
    nats: ndarray | None, tokens: ndarray, texts: Iterable[ndarray], repetition: ndarray
) -> JsonDict:
    """Plain values for JSON: means over texts (perplexity: over tokens) with 95 % intervals.

    Args:
        nats: (S,) -log p of each text under the causal model; None without a model.
        tokens: (S,) number of tokens.
        texts: whose token distributions have an entropy.
        repetition: (S,) fraction of the n-grams of each text that occurred before in the same text.
    """
    found: JsonDict = {"texts": len(tokens), "tokens": int(tokens.sum())}
    ones = np.ones(len(tokens))
    of_entropy = np.array(list(map(entropy, texts)))
    values = {"entropy": ratio(of_entropy, ones), "repetition": ratio(repetition, ones)}
    if nats is not None:
        nll = ratio(nats, tokens)
        values = {"perplexity": ConfidenceInterval(*map(float, np.exp(nll)))} | values
    for name, value in values.items():
        found |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        found |= {"nll": nll.value} if name == "perplexity" else {}
    return found


def entropy(tokens: ndarray) -> float:
    """Entropy in nats of the token distribution of one text; at most the logarithm of the number of
    tokens."""
    fraction = np.unique(tokens, return_counts=True)[1] / len(tokens)
    return float(-(fraction * np.log(fraction)).sum())


def repeated(tokens: ndarray, n: int) -> ndarray:
    """Whether the n-gram at each position occurred before in the text: (L - n + 1,) bool."""
    if len(tokens) < n:
        return np.zeros(0, dtype=bool)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, n)
    result = np.ones(len(windows), dtype=bool)
    result[np.unique(windows, axis=0, return_index=True)[1]] = False
    return result


def describe(texts: Sequence[ndarray], n: int, nats: Sequence[ndarray]) -> JsonDict:
    """`summary` of texts, each `(L,)` ids, with n-grams of `n` tokens and `nats` of each token."""
    repetition = [r.mean() if len(r := repeated(x, n)) else 0.0 for x in texts]
    total = np.array([x.sum() for x in nats])
    return summary(total, np.array(list(map(len, texts))), texts, np.array(repetition))


def by_position(
    texts: ndarray, starts: Sequence[int], n: int, nats: ndarray | None = None
) -> list[JsonDict]:
    """Statistics of each segment of texts of equal length; a segment extends from its start to the
    next one.

    Repetition is the fraction of n-grams ending in the segment that occurred before anywhere in the
    text.

    Args:
        texts: (S, L) ids.
        starts: first positions of the segments, ascending; the first is 0.
        nats: (S, L) of each token; NaN where it does not count.
    """
    again = np.stack([repeated(x, n) for x in texts])
    rows = []
    for start, end in zip(starts, [*starts[1:], texts.shape[1]]):
        part = texts[:, start:end]
        ending = again[:, max(0, start - n + 1) : max(0, end - n + 1)]
        values = np.zeros(part.shape) if nats is None else nats[:, start:end]
        counted = (~np.isnan(values)).sum(1)
        total = None if nats is None or not counted.any() else np.nansum(values, 1)
        repetition = ending.mean(1) if ending.shape[1] else np.zeros(len(texts))
        found = summary(total, counted, part, repetition)
        rows.append({"start": int(start), "end": int(end), **found})
    return rows


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
