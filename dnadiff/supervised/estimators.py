"""Estimators of scikit-learn that fine-tune a pretrained network: `dnadiff.Classifier` and
`dnadiff.Regressor`, for `cross_val_score`, pipelines and searches.

They train as `python -m dnadiff.finetune` does, without its comparison. What `save` writes is read
by `dnadiff.load` and by `python -m dnadiff.predict`.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy import ndarray
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dnadiff.data.tokenizer import DNATokenizer
from dnadiff.fields import (
    Config,
    InnerFraction,
    JsonDict,
    Natural,
    PositiveFraction,
    PositiveInt,
    check_arguments,
)
from dnadiff.formats.nucleotides import several
from dnadiff.store.disk import read_yaml
from dnadiff.store.objects import build, config_dir
from dnadiff.supervised import finetuning, saved
from dnadiff.supervised.baselines import KmerLogistic
from dnadiff.supervised.classes import ClassTarget
from dnadiff.supervised.classifier import HeadInputs, check_head
from dnadiff.supervised.combined import BASES, KMERS, NETWORK, CombinedModel
from dnadiff.supervised.ensemble import ClassifierEnsemble, SeedClassifier
from dnadiff.supervised.items import EVALUATION, TaskData, TaskModel
from dnadiff.supervised.labeled import Division, LabeledSequences, PathName
from dnadiff.supervised.networks import FineTunedModel, OneHotModel
from dnadiff.supervised.runs import FOLDER, WEIGHTS, remove_all
from dnadiff.supervised.targets import RegressionTarget, TaskTarget
from dnadiff.supervised.training import NEW_RATES, PRETRAINED_RATES
from dnadiff.weights import checkpoint
from dnadiff.weights.tensors import fingerprint

Automatic = Literal["auto"]
AUTO: Automatic = "auto"
KMER = 6  # the k of the combined k-mers


@dataclass(eq=False, repr=False)
class FineTuned(BaseEstimator):
    """A pretrained network with a head, both fine-tuned on sequences in memory.

    Args:
        checkpoint: a pretrained model, as in `dnadiff.load`.
        head: a name of `configs/head` (conv, mean, attention, flatten), or a configuration.
        combine: combine the network with a small network on the bases and a model of 6-mers.
        epochs: auto is about 2,000 steps in 2 to 20 epochs, and at most 5 without a better
            validation score.
        seeds: networks that are trained and averaged, with the seeds from `seed` on.
        lr: peak learning rate; of several, short trials choose one; auto is four of them.
        stranded: whether the label depends on the strand.
        valid_fraction: of the sequences, which choose the epoch. Copies of a sequence, on either
            strand, stay together.
        device: None uses a CUDA device if there is one, else the CPU.

    Attributes:
        ensemble_: the fitted networks (`dnadiff.supervised.ensemble.ClassifierEnsemble`).
    """

    checkpoint: PathName = "ecoli"
    _: KW_ONLY
    head: str | Config = "conv"
    combine: bool = True
    epochs: PositiveInt | Automatic = AUTO
    seeds: PositiveInt = 1
    lr: PositiveFraction | list[PositiveFraction] | Automatic = AUTO
    batch_size: PositiveInt = 16
    stranded: bool = False
    valid_fraction: InnerFraction = 0.1
    seed: Natural = 1
    device: str | None = None

    def _fit(self, X: Any, rows: Sequence[Sequence[object]], target: TaskTarget) -> Self:
        """Train on sequences with labels, one for each output of the target."""
        check_arguments(type(self), self.get_params(deep=False))
        loaded = checkpoint.load(self.checkpoint)
        tokenizer = finetuning.dna_tokenizer(loaded)
        pairs = list(several(X))
        check_consistent_length(pairs, rows)
        if not pairs:
            raise ValueError("X has no sequences; give some, with their labels in y")
        found = LabeledSequences("X", label_source="y")
        for (place, letters), row in zip(pairs, rows):
            found.add(tokenizer, letters, "train", f"X: sequence {place}", *map(str, row))
        division = Division(found, [tokenizer.bases(ids) for ids in found.sequences], target)
        division.split_off("valid", self.valid_fraction, self.seed)
        train, valid = (division.items(p, tokenizer.vocab.pad_id) for p in ("train", "valid"))
        target = division.target
        target.check_valid(valid.labels, "X")
        parts = train, valid, valid.select(torch.arange(0))
        data = TaskData("X", list(target.names), *parts, self.stranded, target=target)
        network, on_bases = self._networks(loaded.denoiser.backbone, tokenizer, data)
        model: TaskModel = network
        if self.combine:
            kmers = KmerLogistic(tokenizer, KMER)
            parts_of = {NETWORK: network, BASES: on_bases, KMERS: kmers}
            model = CombinedModel({name: name for name in parts_of}, parts_of)
        model.check(data)
        seeds = range(self.seed, self.seed + self.seeds)
        task = {"longest": data.max_length, "settings": {}}
        logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
        members = []
        self._described = []
        for seed in seeds:
            with warnings.catch_warnings(action="ignore"):  # those of Lightning
                # The validation items are predicted too: a training that diverged is refused.
                model.fit_predict(replace(data, test=valid), seed)
            trained: Any = model.trained
            members.append(SeedClassifier(seed, trained, fingerprint(trained)[:12], Path()))
            of_seed = data, task, seeds, model.describe(), model.fit_info
            described = finetuning.description(loaded, *of_seed, asdict(network.inputs))
            self._described.append({**described, "name": finetuning.FINE_TUNED, "metrics": {}})
        self.ensemble_ = ClassifierEnsemble(
            members[0].classifier.target,
            members,
            tokenizer,
            loaded.path,
            data.name,
            data.max_length,
            EVALUATION * self.batch_size,
            network.device,
        )
        return self

    def _networks(
        self, backbone: Any, tokenizer: DNATokenizer, data: TaskData
    ) -> tuple[FineTunedModel, OneHotModel]:
        """The networks of a study with the defaults of the command."""
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        head = self.head
        if isinstance(head, str):
            heads = {p.stem: p for p in (config_dir() / "head").glob("*.yaml") if p.stem != AUTO}
            if head not in heads:
                raise ValueError(f"head {head!r} is not known; choose {', '.join(sorted(heads))}")
            head = read_yaml(heads[head])
        check_head(head, data)
        is_automatic = self.epochs == AUTO
        rates = PRETRAINED_RATES if isinstance(self.lr, str) else self.lr
        recipe: JsonDict = {
            "device": device,
            "epochs": None if is_automatic else self.epochs,
            "patience": finetuning.PATIENCE if is_automatic else None,
            "batch_size": self.batch_size,
            "warmup": 0.1,
        }
        inputs = HeadInputs(one_hot=True)
        network = FineTunedModel(
            lambda seed: copy.deepcopy(backbone),
            rates,
            head=head,
            inputs=inputs,
            layer_decay=finetuning.LAYER_DECAY,
            head_epochs=None,
            **recipe,
        )
        made = build({**head, "_partial_": True})
        return network, OneHotModel(tokenizer, made, NEW_RATES, **recipe)

    def _predicted(self, X: Any) -> ndarray:
        check_is_fitted(self, "ensemble_")
        return self.ensemble_.predict(X).values

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the fitted networks as a fine-tuned run, for `dnadiff.load` and the commands
        `predict` and `variants`; FileExistsError if there are some, unless `overwrite`."""
        check_is_fitted(self, "ensemble_")
        networks = Path(folder).expanduser() / FOLDER
        if networks.exists() and not overwrite:
            raise FileExistsError(
                f"{networks} exists; set overwrite=True to replace it, or choose another folder"
            )
        remove_all(networks)
        for member, described in zip(self.ensemble_.members, self._described):
            place = networks / f"seed_{member.seed}" / WEIGHTS
            weights = saved.write_weights(place, member.classifier)
            saved.save(networks, member.seed, weights, described)


class Classifier(ClassifierMixin, FineTuned):
    """A fine-tuned network that classifies sequences, as an estimator of scikit-learn; arguments as
    in `FineTuned`.

    Examples:
        >>> import dnadiff
        >>> model = dnadiff.Classifier("ecoli", epochs=3)
        >>> model.fit(sequences, labels).predict_proba(others)  # doctest: +SKIP
        array([[0.93, 0.07]])
        >>> sklearn.model_selection.cross_val_score(model, sequences, labels)  # doctest: +SKIP
        array([0.91, 0.9 , 0.93, 0.88, 0.92])
        >>> model.save("promoters"); dnadiff.load("promoters").classes  # doctest: +SKIP
        ('other', 'promoter')
    """

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on sequences and their classes (S,), numbers or strings.

        Args:
            X: strings or records, also in a mapping, a Series, or the column `sequence` of a data
                frame.

        Raises:
            ValueError: for sequences or labels that cannot be used, in one line.
        """
        labels = column_or_1d(y)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        return self._fit(X, [(label,) for label in labels.tolist()], ClassTarget(("y",)))

    def predict_proba(self, X: Any) -> ndarray:
        """Probabilities (S, C) of `classes_`, averaged over the seeds; NaN without a known base."""
        probs = self._predicted(X)
        return probs[:, [self.ensemble_.number_of(str(name)) for name in self.classes_.tolist()]]

    def predict(self, X: Any) -> ndarray:
        """The most probable class (S,) of each sequence; ValueError for one without a known
        base."""
        probs = self.predict_proba(X)
        if len(unknown := np.flatnonzero(np.isnan(probs).any(1))):
            raise ValueError(
                f"X: sequence {unknown[0]} has no known base (all N) and no class; leave it out"
            )
        return self.classes_[probs.argmax(1)]


@dataclass(eq=False, repr=False)
class Regressor(RegressorMixin, FineTuned):
    """A fine-tuned network that predicts one or more values of sequences, as an estimator of
    scikit-learn; arguments as in `FineTuned`, and two more.

    Args:
        transform: of the values before training: none, log1p or log2.
        loss: mse, huber, or poisson for counts.
    """

    transform: str = "none"
    loss: str = "mse"

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on sequences and their values (S,) or (S, K), NaN where one is missing; see
        `Classifier.fit`."""
        values = np.asarray(y, np.float64)
        self._shape = values.shape[1:]
        rows = values.reshape(len(values), -1).tolist()
        names = [f"y{number}" for number in range(len(rows[0]))] if self._shape else ["y"]
        return self._fit(X, rows, RegressionTarget(names, self.loss, self.transform))

    def predict(self, X: Any) -> ndarray:
        """Values (S,) or (S, K), averaged over the seeds; NaN without a known base."""
        values = self._predicted(X)
        return values.reshape(len(values), *self._shape)
