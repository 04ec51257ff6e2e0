"""The version, and names of earlier versions that still work: classes in configurations, choices
and keys of the command line."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

VERSION = "0.1.0"
# Old paths of modules and classes that a configuration may name, so that runs and checkpoints of
# earlier versions load.
MOVED = {
    "dnadiff.callbacks": "dnadiff.training.callbacks",
    "dnadiff.callbacks.MetricsFile": "dnadiff.training.loggers.MetricsFile",
    "dnadiff.data.blocks": "dnadiff.data.splits",
    "dnadiff.data.datamodule": "dnadiff.data.genome.datamodule",
    "dnadiff.data.datamodule.TextDataModule": "dnadiff.data.text.datamodule.TextDataModule",
    "dnadiff.data.download": "dnadiff.store.remote",
    "dnadiff.data.genome.blocks": "dnadiff.data.splits",
    "dnadiff.data.hub": "dnadiff.data.text.corpus",
    "dnadiff.data.pretrained": "dnadiff.data.text.pretrained",
    "dnadiff.data.genome.short_sequences": "dnadiff.data.genome.datamodule",
    "dnadiff.data.short": "dnadiff.data.genome.datamodule",
    "dnadiff.data.subword": "dnadiff.data.text.pretrained",
    "dnadiff.data.text": "dnadiff.data.text.datamodule",
    "dnadiff.data.text.documents": "dnadiff.data.text.corpus",
    "dnadiff.data.text.hub": "dnadiff.data.text.corpus",
    "dnadiff.data.text.subword": "dnadiff.data.text.pretrained",
    "dnadiff.design.rewards.composition": "dnadiff.design.reward",
    "dnadiff.design.rewards.motif": "dnadiff.design.reward",
    "dnadiff.design.rewards.predicted": "dnadiff.design.predicted",
    "dnadiff.design.rewards.weighted": "dnadiff.design.reward",
    "dnadiff.downstream.adapter.lora": "dnadiff.supervised.networks",
    "dnadiff.diffusion.process.absorbing": "dnadiff.diffusion.process",
    "dnadiff.diffusion.process.mixture": "dnadiff.diffusion.process",
    "dnadiff.downstream.benchmark": "dnadiff.supervised.tasks",
    "dnadiff.downstream.cnn": "dnadiff.supervised.networks",
    "dnadiff.downstream.fasta": "dnadiff.supervised.tasks",
    "dnadiff.downstream.folders": "dnadiff.supervised.tasks",
    "dnadiff.downstream.intervals": "dnadiff.supervised.tasks",
    "dnadiff.downstream.one_hot": "dnadiff.supervised.networks",
    "dnadiff.downstream.promoter_grid": "dnadiff.supervised.tasks",
    "dnadiff.downstream.promoter_motif": "dnadiff.supervised.baselines",
    "dnadiff.downstream.table": "dnadiff.supervised.tasks",
    "dnadiff.downstream.target.multilabel": "dnadiff.supervised.classes",
    "dnadiff.downstream.tasks": "dnadiff.supervised.tasks",
    **{
        f"dnadiff.{folder}.{module}": "dnadiff.genomics.variants.methods"
        for folder in ("variant_effect", "genomics.variants")
        for module in ("block", "by_kind", "log_prob", "masked", "window")
    },
    "dnadiff.jobs.launcher.processes": "dnadiff.jobs.launcher",
    "dnadiff.jobs.launcher.ray": "dnadiff.jobs.launcher",
    "dnadiff.networks.backbone.gpt2": "dnadiff.networks.backbone.transformer",
    "dnadiff.noise.mask_fraction": "dnadiff.diffusion.noise",
    "dnadiff.noise.total_noise": "dnadiff.diffusion.noise",
    "dnadiff.objective.clipped": "dnadiff.diffusion.objective.masking",
    "dnadiff.objective.rates": "dnadiff.diffusion.objective.masking",
    "dnadiff.objective.masking.Coins": "dnadiff.diffusion.objective.masking.Bernoulli",
    "dnadiff.objective.masking.Steps": "dnadiff.diffusion.objective.masking.DiscreteTime",
    "dnadiff.objective.masking.WeighedSteps": (
        "dnadiff.diffusion.objective.masking.ImportanceDiscreteTime"
    ),
    "dnadiff.optim": "dnadiff.training.optim",
    "dnadiff.supervised.head.attention": "dnadiff.supervised.heads",
    "dnadiff.supervised.head.base": "dnadiff.supervised.heads",
    "dnadiff.supervised.head.conv": "dnadiff.supervised.heads",
    "dnadiff.supervised.head.flatten": "dnadiff.supervised.heads",
    "dnadiff.supervised.head.mean": "dnadiff.supervised.heads",
    "dnadiff.supervised.layers": "dnadiff.supervised.networks",
    "dnadiff.supervised.regions": "dnadiff.supervised.tasks",
    "dnadiff.supervised.targets.classes": "dnadiff.supervised.classes",
    "dnadiff.supervised.targets.regression": "dnadiff.supervised.targets",
    "dnadiff.training.metrics_file": "dnadiff.training.loggers",
    "dnadiff.training.callbacks.MetricsFile": "dnadiff.training.loggers.MetricsFile",
    "dnadiff.shards.launcher.processes": "dnadiff.jobs.launcher",
    "dnadiff.shards.launcher.ray": "dnadiff.jobs.launcher",
    "dnadiff.sampler.ar.AR": "dnadiff.diffusion.sampler.ar.Autoregressive",
    "dnadiff.sampler.drawn_token.DrawnToken": (
        "dnadiff.diffusion.sampler.low_confidence.LowConfidence"
    ),
}
# Old paths of packages: each module and class in them has moved along, unless `MOVED` names its old
# or its new path. The first entry that fits counts.
MOVED_PACKAGES = {
    "dnadiff.backbone": "dnadiff.networks.backbone",
    "dnadiff.blocks": "dnadiff.diffusion.process",
    "dnadiff.bootstrap": "dnadiff.diffusion.bootstrap",
    "dnadiff.categorical": "dnadiff.diffusion.draws",
    "dnadiff.compression": "dnadiff.genomics.compression",
    "dnadiff.denoiser": "dnadiff.diffusion.denoiser",
    "dnadiff.draws": "dnadiff.diffusion.draws",
    "dnadiff.kernels": "dnadiff.networks.kernels",
    "dnadiff.kmers": "dnadiff.data.kmers",
    "dnadiff.likelihood.evaluation": "dnadiff.genomics.evaluation",
    "dnadiff.likelihood.held_out": "dnadiff.genomics.held_out",
    "dnadiff.likelihood.information": "dnadiff.genomics.information",
    "dnadiff.likelihood": "dnadiff.diffusion.likelihood",
    "dnadiff.markov": "dnadiff.genomics.markov",
    "dnadiff.metrics": "dnadiff.genomics.metrics",
    "dnadiff.noise": "dnadiff.diffusion.noise",
    "dnadiff.objective": "dnadiff.diffusion.objective",
    "dnadiff.parameterization": "dnadiff.diffusion.process",
    "dnadiff.positions": "dnadiff.diffusion.objective.masking",
    "dnadiff.process": "dnadiff.diffusion.process",
    "dnadiff.reward": "dnadiff.design.rewards",
    "dnadiff.sampler": "dnadiff.diffusion.sampler",
    "dnadiff.variant_effect": "dnadiff.genomics.variants",
    "dnadiff.vocab": "dnadiff.diffusion.vocab",
    "dnadiff.downstream.target": "dnadiff.supervised.targets",
    "dnadiff.downstream": "dnadiff.supervised",
}
# Renamed choices of the command line. The old names work with a warning until version 0.3.
RENAMED_CHOICES = {
    "objective/masking=coins": "objective/masking=bernoulli",
    "objective/masking=steps": "objective/masking=discrete_time",
    "experiment=human_chr20": "experiment=chr20_hnf4a",
    "sampler=drawn_token": "sampler=low_confidence",
}
# Renamed keys of the command line; the old names work with a warning until version 0.3, too.
RENAMED_KEYS = {
    "task.cluster_word": "task.cluster_kmer",
    "neighbours": "neighbors",
    "words": "ngram_size",
}
DECLARED = (
    "trainer.strategy",
    "trainer.num_nodes",
)  # keys of earlier versions that had to be added with a plus


def current_name(target: str) -> str:
    """The current dotted path of a class, given its path in this or an earlier version."""
    module, _, name = target.rpartition(".")
    if target in MOVED or module in MOVED:
        return MOVED.get(target) or f"{MOVED[module]}.{name}"
    for old, new in MOVED_PACKAGES.items():
        if target.startswith(f"{old}."):
            return current_name(new + target.removeprefix(old))
    return target


def with_current_choices(overrides: Sequence[str]) -> list[str]:
    """The overrides with renamed choices and keys under their current names, with one warning for
    each."""
    current = []
    for override in overrides:
        choice = override.lstrip("+")
        group, _, name = choice.partition("=")
        override = choice if group in DECLARED else override
        if key := RENAMED_KEYS.get(group):
            logging.getLogger("dnadiff").warning(
                f"{group} is now called {key}; the old name will stop working in version 0.3"
            )
            override = override.replace(group, key, 1)
        if new := RENAMED_CHOICES.get(f"{group.partition('@')[0]}={name}"):
            logging.getLogger("dnadiff").warning(
                f"{choice} is now called {new}; the old name will stop working in version 0.3"
            )
            override = override.removesuffix(name) + new.partition("=")[2]
        current.append(override)
    return current


def with_current_names(config: Any) -> Any:
    """A nested configuration in which every `_target_` is a current name."""
    if isinstance(config, Mapping):
        found = {key: with_current_names(value) for key, value in config.items()}
        target = config.get("_target_")
        return found | ({"_target_": current_name(target)} if isinstance(target, str) else {})
    if isinstance(config, (list, tuple)):
        return [with_current_names(value) for value in config]
    return config
