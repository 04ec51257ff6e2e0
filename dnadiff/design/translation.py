"""Targets of sources, from a model that was trained on pairs (`dnadiff.data.text.pairs`): the
source is visible, the target is generated, and its length is the best of a beam.

A masked model is given the number of tokens. It fills the most probable lengths of the training
data, and the one with the best likelihood bound per token is kept. An autoregressive model needs no
beam: it fills the longest, and its target ends at its first end token.
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from dnadiff.data.text.pairs import COLUMNS, target_lengths
from dnadiff.data.tokenizer import marks
from dnadiff.design.generate import ConditionalSampler, SampleBatch
from dnadiff.design.request import FREE, Pattern, Request, Target
from dnadiff.formats.documents import read_sides
from dnadiff.store.address import shown
from dnadiff.weights.loaded import Loaded


class Sources(Request):
    """Targets of sources, `each` for every source, of which `candidates` are templates of the
    lengths to try."""

    def __init__(self, candidates: Sequence[Sequence[Target]], each: int) -> None:
        self._candidates = candidates
        self.num_groups = len(candidates)
        self.each = each
        sizes = [target.shown[1] for several in candidates for target in several]
        self.lengths = min(sizes), max(sizes)
        self.beam = max(map(len, candidates))

    def candidates(self, number: int) -> list[Target]:
        """The templates of sample `number`, of the most probable length first."""
        group, place = divmod(number, self.each)
        return [t._replace(name=f"{t.name}_{place + 1}") for t in self._candidates[group]]

    def __getitem__(self, number: int) -> Target:
        return self.candidates(number)[0]


def read_sources(path: str, model: Loaded, each: int, beam: int) -> Sources:
    """The request for targets of the sources in a file: one in each line, or those of a file of
    pairs.

    Args:
        each: targets of each source.
        beam: lengths to try.

    Raises:
        ValueError: if the model was not trained on pairs, or a source leaves no room in its window.
    """
    data = model.config.get("data") or {}
    tokenizer = model.tokenizer
    found = list[list[Target]]()
    if not data.get("lengths"):
        raise ValueError(
            f"input has sources for a model of data=pairs, and {model.path} was trained on "
            f"{data.get('name') or 'other data'}; give prompt= or template= instead"
        )
    separator = marks(tokenizer)[0]
    window = model.training_length()
    for number, (_, (source, *_)) in enumerate(read_sides(path, COLUMNS[:1]), 1):
        where = f"{shown(path)}: source {number}"
        try:
            ids = tokenizer.encode(source).astype(np.int64)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        first = len(ids) + 1
        lengths = target_lengths(data["lengths"], data["bucket"], first, window - first)
        if not lengths:
            raise ValueError(
                f"{where} has {len(ids)} tokens, and the window of this model {window} for source "
                "and target together; shorten it, or train with a larger data.length"
            )
        several = []
        for length in [max(lengths)] if model.denoiser.autoregressive else lengths[:beam]:
            masks = [tokenizer.vocab.mask_id] * length
            template = np.concatenate([ids, [separator], masks])
            pattern = Pattern(template, np.full(len(template), FREE, np.uint8))
            span = (first, len(template))
            several.append(Target(f"source_{number}", pattern, span, span, {"source": source}))
        found.append(several)
    if not found:
        raise ValueError(f"{shown(path)} has no source; give one in each line")
    return Sources(found, each)


class Translator(ConditionalSampler):
    """A generator that keeps the best of the lengths of each sample; all of them are in one batch.

    Args:
        generator: the model with its sampler.
        request: what it fills.
        num_draws: network calls for the bound of each length, if there are several.
    """

    def __init__(self, generator: ConditionalSampler, request: Sources, num_draws: int) -> None:
        vars(self).update(vars(generator))
        self.request = request
        self.of_beam = num_draws if request.beam > 1 else 0
        self.check_bounds(request.lengths[1], self.of_beam)

    def fill(
        self, numbered: Sequence[tuple[int, Target]], seed: int, weighted: bool = True
    ) -> SampleBatch:
        tried = [(i, target) for i, _ in numbered for target in self.request.candidates(i)]
        batch = super().fill(tried, seed, False)
        numbers = [i for i, _ in tried]
        score = np.zeros(len(tried))
        calls = self.of_beam
        if calls:
            counted = self._counted(batch.targets)[1].sum(1)
            score = self.bounds(batch, numbers, calls, seed) / counted.numpy()
        best = {numbers[place]: place for place in np.argsort(score).tolist()}
        chosen = [best[i] for i, _ in numbered]
        return batch._replace(
            targets=[batch.targets[place] for place in chosen],
            tokens=[batch.tokens[place] for place in chosen],
            nfe=batch.nfe + calls,
            rows=batch.rows + calls * len(tried),
        )

    def text(self, target: Target, tokens: ndarray) -> str:
        """The target up to its first end token."""
        written = tokens[slice(*target.shown)]
        is_end = written == marks(self.tokenizer)[1]
        return self.tokenizer.decode(written[np.cumsum(is_end) == 0])
