"""What `dnadiff.load` returns: a trained model for notebooks, with sampling, likelihoods and
embeddings, and without configuration."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from csv import QUOTE_NONE
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy import ndarray
from numpy.typing import ArrayLike
from torch import Tensor

from dnadiff.data.genome.genome import Genome
from dnadiff.data.genome.inputs import ArrayInput, Columns, GenomeInput, SequenceInput
from dnadiff.data.tokenizer import encoded
from dnadiff.design.conditioning import Guided
from dnadiff.design.generate import ConditionalSampler, Designs, check_gc, fit_tilt
from dnadiff.design.method.base import Designer, DesignMethod
from dnadiff.design.method.best_of_n import BestOfN
from dnadiff.design.pilot import Pilot
from dnadiff.design.request import (
    Free,
    Request,
    Templates,
    infill_sequence,
    pattern_of,
    read_motifs,
    starting_from,
)
from dnadiff.design.reward import Reward, as_reward
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.draws import hash64
from dnadiff.diffusion.likelihood.curve import StoredCurve
from dnadiff.diffusion.process import AbsorbingProcess, require
from dnadiff.diffusion.sampler.base import Sampler
from dnadiff.diffusion.sampler.block import Blockwise
from dnadiff.diffusion.sampler.grouped import Grouped
from dnadiff.fields import (
    Config,
    Natural,
    NonNegative,
    Positive,
    PositiveFraction,
    PositiveInt,
    as_list,
    checked,
)
from dnadiff.formats.nucleotides import name_of, several, text_of
from dnadiff.formats.regions import read_regions
from dnadiff.genomics.information import Information, window_nats
from dnadiff.genomics.scores import COLUMNS, ScoreJob
from dnadiff.options.base import Options
from dnadiff.options.command import compose
from dnadiff.progress import advance, bar, log
from dnadiff.store.hub import push_folder
from dnadiff.store.objects import build
from dnadiff.store.remote import bundled_names
from dnadiff.supervised.embeddings import NO_VECTOR, Embedder, Embeddings, num_unknown, pool_of
from dnadiff.weights import checkpoint
from dnadiff.weights.loaded import Loaded

if TYPE_CHECKING:
    import pandas

    from dnadiff.formats.nucleotides import DNASequence
    from dnadiff.genomics.variants.effects import AnyGenome, AnyVariants
    from dnadiff.genomics.variants.methods import VariantMethod
    from dnadiff.supervised.ensemble import ClassifierEnsemble

Labels = str | int | Sequence[str | int] | Mapping[str, str | float] | None


def names_of(label: str | int | Sequence[str | int] | Mapping[str, str | float]) -> list[str]:
    """One or several labels as `Conditions.row` takes them; a mapping has values and classes by
    their keys."""
    if isinstance(label, Mapping):
        return [f"{key}={value}" for key, value in label.items()]
    return list(map(str, as_list(label)))


class Model:
    """A trained model, from `load`: sampling and infilling, designs, likelihoods, features, and
    effects of variants.

    Attributes:
        loaded: from `dnadiff.weights.checkpoint.load`.
        denoiser: the network behind its interface, in evaluation mode.
        tokenizer: sequences to token ids and back.
        labels: what samples can be conditioned on: names of labels, and `activity=NUMBER` for a
            value.
        config: the resolved configuration of the training run.
        path: the checkpoint file.
        step: optimizer steps taken.
    """

    def __init__(self, loaded: Loaded, device: torch.device | str = "cpu") -> None:
        self.loaded = loaded
        self.denoiser = loaded.denoiser
        self.process = loaded.process
        self.tokenizer = loaded.tokenizer
        self.config = loaded.config
        self.path = loaded.path
        self.step = loaded.step
        self.labels = loaded.conditions.choices
        self.stored_curve = StoredCurve(self.path, self.denoiser)
        self.to(device)

    @property
    def length(self) -> int:
        """Tokens in a training window; ValueError if the source of the model does not record it and
        the network takes any number."""
        return self.loaded.training_length()

    @checked
    def sample(
        self,
        n: PositiveInt = 1,
        length: PositiveInt | None = None,
        sampler: Sampler | None = None,
        seed: Natural | None = None,
        batch_size: PositiveInt = 32,
        label: Labels = None,
        guidance: NonNegative = 1.0,
        template: str | None = None,
        motif: str | Sequence[str] | None = None,
        prompt: str = "",
        gc: float | None = None,
        num_draws: Natural | None = None,
        start: str | None = None,
        start_t: PositiveFraction | None = None,
        columns: ndarray | None = None,
        temperature: Positive | None = None,
        progress: bool = False,
    ) -> Designs:
        """Generate sequences, free or under constraints.

        Args:
            n: number of sequences.
            length: tokens per sequence; None is the training window.
            sampler: None is the one that fits the kind of model: random groups (`Grouped`), of one
                block after another (`Blockwise`) for a block diffusion model; from left to right
                (`Autoregressive`); or the steps of another process (`Reverse`).
            seed: sample i depends on (seed, i) and, to the last bit, on the shape of its batch.
                None is a new one for each call, which is the `seed` of the result.
            label: condition on one or several of `labels`, such as `{"activity": 2.5}`.
            guidance: weight of the label; 1 is the model's distribution given the label.
            template: fixed and free positions: IUPAC letters for DNA (`ACGTNNNRY`), `[MASK]` for
                text; defines the length.
            motif: one or several `MOTIF@start` or `MOTIF@start:strand`, on top of the template.
            prompt: the beginning of each sequence.
            gc: mean fraction of G and C; see `dnadiff.design.generate.fit_tilt`.
            num_draws: network calls for the bound on each sample's log-probability; None is 8 with
                `template`, `motif`, `prompt` or `gc` and without `start`, if the network accepts
                whole sequences, else 0.
            start: a sequence to change instead; with `template` only its free positions.
            start_t: time of the noise that is added to `start` and reverted; in (0, 1]. None is for
                samplers that refine sequences without masks.
            columns: `(length, CHANNELS)` of an alignment of related genomes, which guide the bases
                (`dnadiff.data.alignment.Alignment.columns`), for models that read one.
            temperature: of the sampler; below 1, samples are less diverse and more probable.
            progress: show a progress bar: a widget in a notebook, text elsewhere.

        Returns:
            Strings with the attributes `log_prob` and `log_weight`
            (`dnadiff.design.generate.Design`); `.to_frame()` makes them a data frame.

        Raises:
            ValueError: for a length that the network does not accept, an unknown label, a sampler
                for another kind of model, or constraints that cannot be satisfied.
        """
        seed = drawn(seed)
        if columns is not None and not (length or template or start):
            length = len(columns)
        request = self._request(n, length, seed, template, motif, prompt, start)
        constrained = template is not None or bool(motif or prompt) or gc is not None
        if num_draws is None and (start is not None or not constrained):
            num_draws = 0
        request.columns = columns
        if temperature is not None:
            sampler = copy.deepcopy(sampler or self.default_sampler(request.lengths[1]))
            for each in (sampler, getattr(sampler, "sampler", sampler)):
                each.temperature = temperature
        start_t = None if start is None else start_t
        generator = self.conditional_sampler(sampler, request, label, guidance, start_t)
        return self._designs(generator, request, seed, batch_size, gc, num_draws, progress)

    @checked
    def infill(
        self,
        sequence: DNASequence,
        start: int,
        end: int,
        n: PositiveInt = 1,
        length: PositiveInt | None = None,
        sampler: Sampler | None = None,
        seed: Natural | None = None,
        batch_size: PositiveInt = 32,
        label: Labels = None,
        guidance: NonNegative = 1.0,
        gc: float | None = None,
        num_draws: Natural | None = None,
        columns: ndarray | None = None,
        progress: bool = False,
    ) -> Designs:
        """Generate the interval [start, end) of a sequence again, conditioned on its flanks: the
        whole sequence with each of `n` designs.

        Args:
            sequence: letters, in either case, or a record of Biopython or pyfaidx; N is read and
                kept.
            start, end: 0-based and half-open.
            length: window that the network reads, with the interval in the middle; None is the
                training window.
            sampler, seed, batch_size, label, guidance: see `sample`.
            gc: mean fraction of G and C in the designs.
            num_draws: network calls for the bound on log p(design | flanks); 0 omits it, None is as
                in `sample`.
            columns: of the whole sequence; see `sample`.
            progress: see `sample`.

        Raises:
            ValueError: for an interval outside the sequence or wider than `length`, and as
                `sample`.
        """
        seed = drawn(seed)
        request = self._infill(sequence, start, end, n, length, columns)
        generator = self.conditional_sampler(sampler, request, label, guidance)
        return self._designs(generator, request, seed, batch_size, gc, num_draws, progress)

    @checked
    def design(
        self,
        reward: Reward | Callable[[Sequence[str]], ArrayLike],
        n: PositiveInt = 1,
        method: DesignMethod | None = None,
        beta: float | str = "auto",
        target: float | None = None,
        length: PositiveInt | None = None,
        template: str | None = None,
        motif: str | Sequence[str] | None = None,
        infill: tuple[DNASequence, int, int] | None = None,
        start: str | None = None,
        sampler: Sampler | None = None,
        seed: Natural | None = None,
        batch_size: PositiveInt = 32,
        label: Labels = None,
        guidance: NonNegative = 1.0,
        num_draws: Natural = 8,
        pilot: Natural | None = None,
        judge: Reward | Callable[[Sequence[str]], ArrayLike] | None = None,
        progress: bool = False,
    ) -> Designs:
        """Design sequences with a high reward; see docs/guided_design.md.

        Args:
            reward: a `Reward`, or a function of a list of strings that returns one number for each.
            method: None is `BestOfN()`; see `dnadiff.design.method`. The `n` designs of `SMC` are
                one population for each batch.
            beta: inverse temperature of methods that have one: their target distribution is p(x)
                exp(beta reward(x)). `auto` is chosen so that the mean reward is the quantile 0.9
                of unguided samples; `q0.95` is another quantile, `2sd` is 2 / their standard
                deviation. With these three, designs with weights are drawn from 2 `n` proposals.
            target: a value that the reward approaches; None is as large as possible.
            length, template, motif: see `sample`.
            infill: (sequence, start, end): design the interval in its flanks, see `infill`; the
                reward reads the window around it.
            start: a sequence to change, for `Metropolis`; with `template` only its free positions.
            sampler, seed, batch_size, label, guidance: see `sample`.
            num_draws: network calls for the bound on the log-probability of each design; 0 leaves
                it out.
            pilot: unguided samples; None is 256, 512 for methods without weights, or 64 if beta is
                a number.
            judge: a further reward, which is not optimized: an attribute of designs and of
                unguided samples.
            progress: see `sample`; the pilot has a bar of its own.

        Returns:
            Strings with the numbers of their records as attributes
            (`dnadiff.design.generate.Design`); `.to_frame()` makes a data frame, `.unguided` are
            the samples of the pilot, and `.beta` is the inverse temperature.

        Raises:
            ValueError: if the reward fails, or if method, sampler, model and constraints do not fit
                together.
        """
        seed = drawn(seed)
        method = method or BestOfN()
        if infill is None:
            request = self._request(n, length, seed, template, motif, "", start)
        else:
            if template is not None or motif or start is not None:
                raise ValueError("infill excludes template, motif and start; leave one out")
            if not isinstance(infill, (tuple, list)) or len(infill) != 3:
                raise ValueError(f"infill {infill!r} must be (sequence, start, end)")
            request = self._infill(*infill, n, length)
        generator = self.conditional_sampler(sampler, request, label, guidance)
        generator.num_draws = num_draws
        generator.judge = None if judge is None else as_reward(judge)
        designer = Designer(generator, method, as_reward(reward, target), beta)
        has_weights = bool(designer.has_weights(request))
        resample = designer.beta.is_automatic and has_weights
        request.each *= 1 + resample
        designer.check_request(request, batch_size)
        size = designer.beta.pilot_size(pilot, has_weights)
        with bar(size, "unguided", "sequences", progress):
            unguided = Pilot.of(designer, request, size, seed, batch_size)
        designer = designer.with_choice(unguided.chosen(designer.beta, designer.goal.reward.name))
        with bar(len(request), "design", "sequences", progress):
            found = designer.designs(request, seed, batch_size)
        found.beta = designer.goal.beta if method.uses_beta else None
        if resample:
            found = designer.resampled(found, n, seed)
        found.unguided = unguided.designs
        found.seed = seed
        return found

    def _request(
        self,
        n: int,
        length: int | None,
        seed: int,
        template: str | None,
        motif: str | Sequence[str] | None,
        prompt: str,
        start: str | None,
    ) -> Request:
        """The request for samples of one template, free ones, or changed versions of `start`."""
        tokenizer = self.tokenizer
        motifs = read_motifs(motif)
        if start is not None and (length is not None or prompt or (motif and template is None)):
            raise ValueError(
                "start is a complete sequence; leave length, motif and prompt out, and fix "
                "positions with template"
            )
        if template is not None and (prompt or length is not None):
            raise ValueError(
                "a template defines the beginning and the length of a sequence; leave prompt and "
                "length out"
            )
        patterns = None if template is None else [pattern_of(tokenizer, template, motifs)]
        if start is not None:
            return starting_from(tokenizer, [("start", text_of(start))], n, patterns)
        if patterns is None:
            return Free(tokenizer, n, length or self.length, seed, prompt, motifs)
        return Templates([("template", patterns[0])], n, tokenizer.vocab.mask_id)

    def _infill(
        self,
        sequence: DNASequence,
        start: int,
        end: int,
        n: int,
        length: int | None,
        columns: ndarray | None = None,
    ) -> Request:
        self.check_infill()
        window = length or self.length
        text = text_of(sequence)
        return infill_sequence(self.tokenizer, text, start, end, n, window, columns)

    def check_infill(self) -> None:
        """Raise ValueError for a text model, and for an autoregressive or block diffusion model,
        which does not see the right flank."""
        if not self.loaded.is_dna:
            raise ValueError(
                f"infill is for models of DNA, and {self.path} was trained on text; give a "
                "template with [MASK] instead"
            )
        if self.denoiser.left_to_right:
            raise ValueError(
                "infill: this model goes from left to right and does not see the right flank; use "
                "one of objective=mdlm"
            )
        require("infill", self.denoiser, AbsorbingProcess)

    def _designs(
        self,
        generator: ConditionalSampler,
        request: Request,
        seed: int,
        batch_size: int,
        gc: float | None,
        num_draws: int | None,
        progress: bool = False,
    ) -> Designs:
        longest = request.lengths[1]
        maximum = self.denoiser.max_length
        # For one call; windows (`SemiAR`) can be sampled.
        too_long = maximum is not None and longest > maximum
        if num_draws is None:
            num_draws = 0 if too_long else 8
        generator.num_draws = num_draws
        generator.check_start(request)
        generator.check_bounds(longest, num_draws)
        if gc is not None:
            check_gc(gc, request, self.tokenizer)
            generator = generator.with_tilt(
                fit_tilt(generator, request, gc, seed, batch_size).log_odds
            )
        with bar(len(request), "sample", "sequences", progress):
            found = generator.designs(request, seed, batch_size)
        found.seed = seed
        return found

    def conditional_sampler(
        self,
        sampler: Sampler | None,
        request: Request,
        label: Labels = None,
        guidance: float = 1.0,
        start_t: float | None = None,
    ) -> ConditionalSampler:
        """The generator that fills a request with this model, None by its own sampler; raises
        ValueError as `conditioned`, and for a sampler that does not fit the kind of model or the
        lengths."""
        sampler = sampler or self.default_sampler(request.lengths[1])
        sampler.check_model(self.denoiser)
        sampler = sampler.fitted(self.denoiser)  # its window
        longer = "" if self.denoiser.left_to_right else "sampler=semi_ar for longer sequences, "
        for length in sorted(set(request.lengths)):
            self._check_length(sampler.window_for(length), longer)
            sampler.check_length(length)
        denoiser, labels = self.conditioned(label, guidance)
        return ConditionalSampler(
            denoiser, self.process, self.tokenizer, sampler, labels, start_t=start_t
        )

    def default_sampler(self, length: int) -> Sampler:
        """The sampler that fits the kind of model, with groups from its h(n)."""
        if self.denoiser.sampler not in ("grouped", "block"):
            return build(self._settings(self.denoiser.sampler), trust=None)
        size = self.denoiser.block_size
        grouped = Grouped(**self.stored_curve.groups(length if size is None else min(size, length)))
        return grouped if size is None else Blockwise(grouped)

    def sampler_options(self, options: Options) -> Config:
        """What a command says of the sampler, or the options of the sampler that fits the kind of
        model if its command line does not name one."""
        if self.denoiser.sampler == "grouped" or any(options.given("sampler")):
            return options.only("sampler")["sampler"]
        return self._settings(self.denoiser.sampler, options.config_folder)

    @staticmethod
    def _settings(sampler: str, folder: Path | None = None) -> Config:
        return compose("sample", [f"sampler={sampler}"], folder=folder)["sampler"]

    def conditioned(
        self, label: Labels, guidance: float = 1.0
    ) -> tuple[BaseDenoiser, Tensor | None]:
        """The denoiser, with guidance if requested, and the labels `(1, C)` to condition on; None
        is no label.

        `guidance` is the weight of the label; 1 is the model's distribution given the label, and 0
        that without one. An unknown label, or guidance without a label, is a ValueError.
        """
        if label is None and guidance == 1:
            return self.denoiser, None
        if not self.labels:
            raise ValueError("this model was trained without labels; leave label and guidance out")
        choices = f"this model knows {', '.join(self.labels)}"
        if label is None:
            raise ValueError(f"guidance={guidance} needs a label; {choices}")
        names = names_of(label)
        if not names:
            raise ValueError(
                f"label {label!r} is empty; leave it out for sequences without a label; {choices}"
            )
        if guidance != 1 and (self.config.get("data") or {}).get("label_dropout") == 0:
            raise ValueError(
                f"guidance={guidance} needs a model that was also trained without labels, and this "
                "one has data.label_dropout=0; set guidance=1"
            )
        row = torch.tensor([self.loaded.conditions.row(names)], device=self.device)
        plain = guidance in (0, 1)
        return self.denoiser if plain else Guided(self.denoiser, guidance), row * (guidance > 0)

    @checked
    def nll(
        self,
        sequences: Sequence[DNASequence],
        num_draws: Natural = 8,
        seed: Natural = 1,
        batch_size: PositiveInt = 32,
        columns: Columns = None,
        progress: bool = False,
    ) -> ndarray:
        """An estimate of an upper bound on -log p of each sequence, in nats per token: `(S,)`;
        exact for an autoregressive model.

        The NELBO in count form, averaged over `num_draws` (even) stratified masks, of each block
        for a block diffusion model. The chain rule, of autoregressive models and of blocks of one
        token, needs none. N and other letters that the model does not generate are read but not
        counted; a sequence without a countable letter gets NaN. `columns` are those of an alignment
        of related genomes, `(L_i, CHANNELS)` of each sequence, for models that read one
        (`dnadiff.data.alignment.Alignment.columns`); the result is then conditional on them.
        """
        source = self._encoded(sequences, columns)
        ids = [torch.from_numpy(each) for each in source.sequences]
        # The noise of a sequence does not depend on the others.
        keys = [hash64(each.tobytes().hex()) >> 1 for each in source.sequences]
        with bar(len(ids), "nll", "sequences", progress, num_draws):
            nats = window_nats(
                self.denoiser, self.process, ids, keys, num_draws, seed, batch_size, source.given
            ).mean(1)
            advance(len(ids))
        emitted = self.process.vocab.is_emitted()
        tokens = np.array([int(emitted[each].sum()) for each in ids])
        return np.where(tokens > 0, nats / np.maximum(tokens, 1), np.nan)

    @checked
    def score(
        self,
        sequences: Any,
        genome: str | Path | Genome | None = None,
        window: PositiveInt | None = None,
        num_draws: Natural = 8,
        seed: Natural = 1,
        batch_size: PositiveInt = 32,
        columns: Columns = None,
        progress: bool = False,
    ) -> pandas.DataFrame:
        """The likelihood of sequences of any length, or of regions of a genome: the table of
        `python -m dnadiff.score`, with its numbers.

        Args:
            sequences: see `nll`; with `genome` its regions: a BED, GTF or GFF file,
                `chrom:first-last`, or a list of these.
            window: bases that are read together; None is the training window.
            progress: see `sample`.
        """
        import pandas

        source: SequenceInput
        if genome is None:
            source = self._encoded(sequences, columns, limited=False)
        else:
            opened = genome if isinstance(genome, Genome) else Genome(genome)
            source = GenomeInput(opened, read_regions(sequences, opened.lengths, None))
        window = self.loaded.window(window)
        job = ScoreJob(self.loaded, source, Path(), window, batch_size, num_draws, seed)
        job.report = advance
        with bar(job.total, "score", job.items, progress):
            table = b"".join([job.header(), *(job.fold(found)[0] for found in job.results())])
        return pandas.read_csv(
            BytesIO(table),
            sep="\t",
            quoting=QUOTE_NONE,
            # Names like NA and 1 are text.
            dtype={"name": str, "region_name": str},
            keep_default_na=False,
            na_values={key: ["nan"] for key in COLUMNS if key != "name"},
        )

    @checked
    def embed(
        self,
        sequences: Sequence[DNASequence],
        pool: str = "mean",
        layer: int | None = None,
        stranded: bool = False,
        dtype: Literal["float32", "float16"] = "float32",
        batch_size: PositiveInt = 32,
        columns: Columns = None,
        progress: bool = False,
    ) -> Embeddings | list[ndarray]:
        """The network's features of each sequence, pooled over positions: `(S, D)`, or with
        `pool="none"` a list of `(L_i, D)`.

        Args:
            pool: `mean` or `max` over positions, or `none`.
            layer: number of layers, followed by the final norm; None is all.
            stranded: read the given strand alone; otherwise the features of both strands are
                averaged.
            dtype: `float32` or `float16`.
            columns: of each sequence; see `nll`.
            progress: see `sample`.

        Returns:
            An array, NaN for DNA without a known base; `.to_frame()` makes it a data frame and
            `.to_anndata()` an AnnData, with the ids of records, keys of a dict or an index as
            names.
        """
        embedder = Embedder(self.denoiser, pool_of(pool), layer, stranded, dtype)
        source = self._encoded(sequences, columns)
        calls = 1 if stranded else 2
        with bar(len(source.names), "embed", "sequences", progress, calls):
            vectors = embedder(source.sequences, batch_size, *source.sites())
            advance(len(vectors))
        if unknown := num_unknown(vectors):
            log.warning(f"{unknown:,} of {len(vectors):,} sequences are {NO_VECTOR}")
        if embedder.pool.per_position:
            return vectors
        rows = np.array(vectors, embedder.dtype).reshape(-1, embedder.width)
        return Embeddings.of(rows, source.names)

    @checked
    def information(
        self,
        sequences: Sequence[DNASequence],
        window: PositiveInt | None = None,
        spacing: PositiveInt = 32,
        stranded: bool = False,
        batch_size: PositiveInt = 32,
        columns: Columns = None,
        progress: bool = False,
    ) -> list[ndarray]:
        """The information content of each base given both sides, in bits: a list of `(L_i,)`, NaN
        for N; see `dnadiff.genomics.information`.

        Args:
            window: bases that the network reads at once; None is the training window.
            spacing: distance of bases that are masked together: network calls per window and
                strand.
            stranded: read the given strand alone; otherwise the mean of both strands.
            columns: of each sequence; see `nll`.
            progress: see `sample`.
        """
        window = self.loaded.window(window)
        # A network that reads both strands predicts the same for both.
        stranded = stranded or self.denoiser.backbone.reads_both_strands
        information = Information(
            self.denoiser, self.process, window, spacing, stranded, batch_size
        )
        found = self._encoded(sequences, limited=False).sequences
        ids = [each.astype(np.uint8) for each in found]
        with bar(sum(map(len, ids)), "information", "bases", progress):
            return information.of_sequences(ids, columns)

    def variants(
        self,
        variants: AnyVariants,
        genome: AnyGenome,
        method: VariantMethod | None = None,
        window: int | None = None,
        stranded: bool = False,
        on_mismatch: Literal["error", "skip", "flag"] = "error",
        sites_per_window: int = 1,
        L2: bool = False,
        seed: int = 1,
        batch_size: int = 32,
        alignment: str | None = None,
        percentile: bool = False,
        calibrate_indels: bool = False,
        phased: bool = False,
        sample_name: str | None = None,
        progress: bool = False,
    ) -> pandas.DataFrame:
        """Effects of variants (`dnadiff.genomics.variants.effects.Effect`), one row per alternative
        allele, in their order.

        The columns are those of the command line (docs/variants.md), `REF_mismatch` and `reason`:
        why an allele has no value, such as "a symbolic allele" or "N in the genome at REF", and
        empty for the others. Select those with a value by `frame[frame.reason == ""]`.

        Args:
            variants: a VCF, BCF or tab-separated file, a data frame, or rows (chrom, pos, ref, alt)
                with pos counted from 1.
            genome: a sequence file, `{name: letters}`, an open `Genome`, or an open
                `pyfaidx.Fasta`.
            method: None is masked for SNVs and block for others; log_prob for autoregressive and
                block diffusion models (`dnadiff.genomics.variants`).
            window: bases that the network reads; None is the training window.
            stranded, on_mismatch, sites_per_window, L2, percentile, calibrate_indels, phased,
                sample_name: as on the command line (docs/variants.md).
            alignment: file of the genome with its relatives (`dnadiff.align`), for a model that
                reads one, and for the method `Phylogeny`.
            progress: see `sample`.

        Raises:
            ValueError: naming the argument or the row that is not valid, such as one whose REF
                differs.
        """
        from dnadiff.genomics.variants import effects, methods

        reference: Any = effects.reference_of(genome)
        network: Any
        if method is None or getattr(method, "needs_model", True):
            network = methods.Network(
                self.denoiser,
                self.process,
                reference,
                window=self.loaded.window(window),
                batch_size=batch_size,
                stranded=stranded,
                sites_per_window=sites_per_window,
                seed=seed,
                alignment=self.loaded.columns_for(alignment, reference),
            )
        else:
            network = methods.AlignedGenome.open(reference, alignment, stranded)
        more = L2, percentile, calibrate_indels, self.path, phased, sample_name
        with bar(None, "variants", "rows", progress):
            return effects.effects_frame(network, method, variants, on_mismatch, *more)

    def saturate(
        self,
        region: str | Sequence[str],
        genome: AnyGenome,
        deletions: bool = False,
        **options: Any,
    ) -> pandas.DataFrame:
        """The effects of all SNVs of a region, and of all deletions of one base if requested: a
        table as of `variants`, which `dnadiff.plot.heat_map` draws.

        Args:
            region: `chr:1-200`, counted from 1, a BED, GTF or GFF file, or a list of these.
            **options: of `variants`.
        """
        from dnadiff.genomics.variants import effects, variant

        reference = effects.reference_of(genome)
        regions = read_regions(region, reference.lengths, None)
        source = variant.Saturation(regions, reference, deletions)
        found = self.variants(source, reference, **options)
        found.attrs["region"] = region
        return found

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device, such as `cuda`."""
        self.denoiser.to(device)
        self.device = torch.device(device)
        return self

    def push_to_hub(
        self,
        repository: str,
        private: bool = True,
        license: str | None = None,
        token: str | None = None,
        api: Any = None,
    ) -> str:
        """Export the model (`python -m dnadiff.export`) to a repository of the Hugging Face Hub,
        `ORG/NAME`, which is made if it does not exist; returns what `load` takes.

        Args:
            license: of the weights, an identifier of the Hub, such as apache-2.0.
            token: None is that of `hf auth login`.
            api: a `huggingface_hub.HfApi` to use instead.
        """
        from dnadiff.sharing.record import export_model

        with TemporaryDirectory() as folder:
            name = repository.rpartition("/")[2]
            output = Path(folder) / "model"
            export_model(str(self.path), output, name=name, license=license)
            return push_folder(output, repository, private, token, api)

    def _encoded(
        self, sequences: Sequence[DNASequence], columns: Columns = None, limited: bool = True
    ) -> ArrayInput:
        """Token ids `(L_i,)` int64 of sequences with their names. Those without one are
        numbered."""
        names = []
        ids = []
        for place, sequence in several(sequences):
            where = f"sequence {place}"
            found = encoded(self.tokenizer, sequence, where)
            if limited:
                self._check_length(len(found), what=f"{where}: length")
            names.append(name_of(sequence) or place)
            ids.append(found.astype(np.int64))
        source = ArrayInput(ids, columns)
        source.names = names
        return source

    def _check_length(self, length: int, otherwise: str = "", what: str = "length") -> None:
        """Refuse what is longer than the network takes; `otherwise`, which ends in a comma, is what
        the user can do about it."""
        maximum = self.denoiser.max_length
        if maximum is not None and length > maximum:
            raise ValueError(
                f"{what} {length} is more than this network takes; use at most {maximum}, "
                f"{otherwise}or train with a larger data.length"
            )

    def __repr__(self) -> str:
        return f"Model({type(self.denoiser.backbone).__name__}, {self.tokenizer.name}, {self.path})"


def drawn(seed: int | None) -> int:
    """The seed, or a new one."""
    return secrets.randbits(32) if seed is None else seed


def list_models() -> list[str]:
    """The names of the models that ship with dnadiff, for `load`."""
    return bundled_names()


def load(
    run: str | os.PathLike[str], device: torch.device | str | None = None, trust: Sequence[str] = ()
) -> Model | ClassifierEnsemble:
    """Load a trained model; of a run of `python -m dnadiff.finetune` its classifiers, which have
    `predict`.

    Args:
        run: a run folder, a .ckpt file, or `latest`; a model that ships with dnadiff, by name; a
            folder with an exported or published model; or `hf:ORG/NAME@REVISION` on the Hugging
            Face Hub.
        device: None uses a CUDA device if there is one, else the CPU.
        trust: packages besides dnadiff whose classes its configuration may name.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is damaged, or names code that is not trusted.

    Examples:
        >>> import dnadiff
        >>> model = dnadiff.load("runs/train/my_run")  # doctest: +SKIP
        >>> model.sample(2, length=8)  # doctest: +SKIP
        ['ACGTTGAC', 'TTGACGTA']
        >>> # nats per base; uniform guessing has 1.386
        >>> model.nll(["ACGTTGAACGTTGA"])  # doctest: +SKIP
        array([1.29])
    """
    from dnadiff.supervised import ensemble, runs

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if runs.is_fine_tuned(run):
        return ensemble.load(run, trust, device)
    return Model(checkpoint.load(run, trust), device)
