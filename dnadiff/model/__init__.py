"""What `dnadiff.load` returns: a trained model for notebooks, with sampling, likelihoods and
embeddings, and without configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dnadiff.checks import integer
from dnadiff.design.request import check_request
from dnadiff.formats.nucleotides import is_sequence, name_of
from dnadiff.likelihood.information import Information
from dnadiff.likelihood.sequences import nll_per_token
from dnadiff.model.generator import Generator, letters_of
from dnadiff.supervised.features import Embedder, Embeddings, pool_of
from dnadiff.weights import checkpoint

if TYPE_CHECKING:
    import pandas
    from pyfaidx import Fasta

    from dnadiff.formats.nucleotides import DNASequence
    from dnadiff.supervised.ensemble import ClassifierEnsemble
    from dnadiff.variant_effect.base import VariantMethod
    from dnadiff.variant_effect.frame import AnyVariants
    from dnadiff.variant_effect.variant import Reference


class Model(Generator):
    """A trained model, from `load`: sampling and infilling (`Generator`), likelihoods, features,
    and effects of variants.

    Attributes:
        loaded: from `dnadiff.weights.checkpoint.load`.
        denoiser: the network behind its interface, in evaluation mode.
        tokenizer: sequences to token ids and back.
        labels: names of the labels that samples can be conditioned on.
        config: the resolved configuration of the training run.
        path: the checkpoint file.
        step: optimizer steps taken.
    """

    def nll(
        self,
        sequences: Sequence[DNASequence],
        num_draws: int = 8,
        seed: int = 1,
        batch_size: int = 32,
    ) -> np.ndarray:
        """An estimate of an upper bound on -log p of each sequence, in nats per token: `(S,)`;
        exact for an autoregressive model.

        The NELBO in count form, averaged over `num_draws` (even) stratified masks, of each block
        for a block diffusion model. The chain rule, of autoregressive models and of blocks of one
        token, needs none. N and other letters that the model does not generate are read but not
        counted; a sequence without a countable letter gets NaN.
        """
        seed, batch_size = integer("seed", seed, 0), integer("batch_size", batch_size)
        return nll_per_token(
            self.denoiser, self.process, self._encoded(sequences), num_draws, seed, batch_size
        )

    def embed(
        self,
        sequences: Sequence[DNASequence],
        pool: str = "mean",
        layer: int | None = None,
        stranded: bool = False,
        dtype: str = "float32",
        batch_size: int = 32,
    ) -> Embeddings | list[np.ndarray]:
        """The network's features of each sequence, pooled over positions: `(S, D)`, or with
        `pool="none"` a list of `(L_i, D)`.

        Args:
            pool: `mean` or `max` over positions, or `none`.
            layer: number of layers, followed by the final norm; None is all.
            stranded: read the given strand alone; otherwise the features of both strands are
                averaged.
            dtype: `float32` or `float16`.

        Returns:
            An array; `.to_frame()` makes it a data frame and `.to_anndata()` an AnnData, with the
            ids of records as names.
        """
        embedder = Embedder(self.denoiser, pool_of(pool), layer, stranded, dtype)
        sequences = (
            sequences if is_sequence(sequences) else list(sequences)
        )  # a generator is read once
        vectors = embedder([ids.numpy() for ids in self._encoded(sequences)], batch_size)
        if embedder.pool.per_position:
            return vectors
        names = [name_of(sequence) or str(i) for i, sequence in enumerate(sequences)]
        return Embeddings.of(np.array(vectors, embedder.dtype).reshape(-1, embedder.width), names)

    def information(
        self,
        sequences: Sequence[DNASequence],
        window: int | None = None,
        spacing: int = 32,
        stranded: bool = False,
        batch_size: int = 32,
    ) -> list[np.ndarray]:
        """The information content of each base given both sides, in bits: a list of `(L_i,)`, NaN
        for N; see `dnadiff.likelihood.information`.

        Args:
            window: bases that the network reads at once; None is the training window.
            spacing: distance of bases that are masked together: network calls per window and
                strand.
            stranded: read the given strand alone; otherwise the mean of both strands.
        """
        if self.tokenizer.vocab.complement is None:
            raise ValueError(
                f"information is for models of DNA, and {self.path} was trained on text"
            )
        window = self.length if window is None else integer("window", window)
        stranded = (
            stranded or self.denoiser.backbone.reads_both_strands
        )  # which predicts the same for both
        batch_size = integer("batch_size", batch_size)
        information = Information(
            self.denoiser, self.process, window, integer("spacing", spacing), stranded, batch_size
        )
        return information.of_sequences(
            [ids.numpy().astype(np.uint8) for ids in self._encoded(sequences, limited=False)]
        )

    def variants(
        self,
        variants: AnyVariants,
        genome: str | Path | Mapping[str, str] | Fasta | Reference,
        method: VariantMethod | None = None,
        window: int | None = None,
        stranded: bool = False,
        on_mismatch: str = "error",
        sites_per_window: int = 1,
        L2: bool = False,
        seed: int = 1,
        batch_size: int = 32,
    ) -> pandas.DataFrame:
        """Effects of variants (`dnadiff.variant_effect.effects.Effect`), one row per alternative
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
                block diffusion models (`dnadiff.variant_effect`).
            window: bases that the network reads; None is the training window.
            stranded, on_mismatch, sites_per_window, L2: as on the command line (docs/variants.md).

        Raises:
            ValueError: naming the argument or the row that is not valid, such as one whose REF
                differs.
        """
        from dnadiff.variant_effect import frame

        if self.tokenizer.vocab.complement is None:
            raise ValueError(
                f"variants are of DNA, and {self.path} was trained on text; give a model of DNA"
            )
        network = frame.Network.checked(
            self.denoiser,
            self.process,
            frame.reference_of(genome),
            window=self.length if window is None else window,
            batch_size=batch_size,
            stranded=stranded,
            sites_per_window=sites_per_window,
            seed=seed,
        )
        return frame.frame(
            network,
            frame.default_method() if method is None else method,
            frame.source_of(variants),
            on_mismatch,
            L2,
        )

    def _encoded(self, sequences: Sequence[DNASequence], limited: bool = True) -> list[Tensor]:
        if is_sequence(sequences):
            raise ValueError("sequences is a single sequence; put it into a list: [sequence]")
        encoded = [
            torch.from_numpy(self.tokenizer.encode(letters_of(sequence)).astype(np.int64))
            for sequence in sequences
        ]
        for ids in encoded:
            check_request(self.denoiser.max_length if limited else None, 1, len(ids))
        return encoded

    def __repr__(self) -> str:
        return f"Model({type(self.denoiser.backbone).__name__}, {self.tokenizer.name}, {self.path})"


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
        >>> model.nll(["ACGTTGAACGTTGA"])  # nats per base; uniform guessing has 1.386  # doctest: +SKIP
        array([1.29])
    """
    from dnadiff.supervised import runs, saved

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if runs.is_fine_tuned(run):
        return saved.load(run, trust, device)
    return Model(checkpoint.load(run, trust), device)
