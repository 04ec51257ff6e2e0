"""A model ready to use, how it is built from its configuration, whatever file it comes from, and
what its source records besides the network: training data, held-out likelihood, licenses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn import Module
from typing_extensions import TypedDict

from dnadiff.data.alignment import Alignment
from dnadiff.data.base import SequenceDataModule, run_data
from dnadiff.data.tokenizer import DNATokenizer, Tokenizer, marks
from dnadiff.data.windows import Conditions
from dnadiff.diffusion.denoiser import BaseDenoiser
from dnadiff.diffusion.noise import NoiseSchedule
from dnadiff.diffusion.objective.base import Objective
from dnadiff.diffusion.process import AbsorbingProcess
from dnadiff.diffusion.vocab import FREQUENCY, Vocab
from dnadiff.fields import (
    Config,
    Json,
    JsonMap,
    Natural,
    PositiveInt,
    check_arguments,
    check_value,
    explained,
)
from dnadiff.networks.adapter import build_adapter
from dnadiff.networks.backbone.base import Backbone, PublishedLayout
from dnadiff.progress import log
from dnadiff.renamed import VERSION
from dnadiff.store.address import with_texts
from dnadiff.store.disk import json_hash, read_json
from dnadiff.store.objects import PACKAGE, Trust, build, locate
from dnadiff.weights import tensors
from dnadiff.weights.tensors import fingerprint

if TYPE_CHECKING:
    from dnadiff.data.genome.genome import Genome

CONFIG = "config.json"
TENSORS = ("model.safetensors", "pytorch_model.bin")
# of an exported model; published folders have none
CARD = "README.md"
DESCRIPTION = "dnadiff.json"
FORMAT = 1
# Of the configuration: what the denoiser is built from.
MODEL = ("backbone", "objective", "noise", "time_conditioning")
# Not a published key: a vocabulary that is not the one that the format implies.
VOCAB_KEY = "dnadiff_vocab"
# Not a published key: names that file, without which the objective would be unknown.
DESCRIPTION_KEY = "dnadiff_description"
REMEDY = "use another copy of it"
_KEYS: Mapping[str, object] = {
    **dict.fromkeys(("backbone", "objective", "noise", "tokenizer", "origin"), dict),
    "time_conditioning": bool | None,
    "data": dict | None,
    "labels": list[str],
    "step": Natural,
    "fingerprint": str,
}
_BUNDLED = "bundled:"
# How a network is computed, not which one it is.
_DEFAULTS = {"scan": "auto", "activation_checkpointing": False, "compile": False}
D = TypeVar("D", bound=BaseDenoiser)
P = TypeVar("P")
# The process of versions that had no other one.
ABSORBING = {"_target_": "dnadiff.diffusion.process.AbsorbingProcess", "_partial_": True}


class GroupLikelihood(TypedDict):
    """The likelihood of one group of held-out tokens; None is what too few windows leave
    unknown."""

    bits: float | None
    bits_low: float | None
    bits_high: float | None
    nll: float | None
    perplexity: float | None
    se_total: float | None
    tokens: int


class MarkovGroup(TypedDict):
    """A Markov model on one group of tokens, and the model minus it with a 95 % interval, in bits
    per token."""

    bits: float | None
    difference_bits: float | None
    low: float | None
    high: float | None


class MarkovLikelihood(TypedDict):
    """A Markov model of one order."""

    order: int
    groups: dict[str, MarkovGroup]


class HeldOutLikelihood(TypedDict):
    """Held-out likelihood with its baselines."""

    part: str
    data: str
    own_data: bool
    window: int
    split: str
    split_hash: str
    protocol: str
    groups: dict[str, GroupLikelihood]
    markov: list[MarkovLikelihood]


class CurvePoints(TypedDict):
    """h(n): bits per token of a token with n others visible, in ranges of n."""

    visible: list[float]
    bits: list[float]


class DataDescription(TypedDict, total=False):
    """What is used of a description of data (`SequenceDataModule.describe`)."""

    name: str
    split: str
    split_hash: str
    split_tokens: dict[str, int]
    held_out_records: dict[str, list[str]]


@dataclass(frozen=True)
class Origin:
    """What the source of a model records besides what is needed to use it; None is not recorded.

    Attributes:
        kind: of the source, in words.
        tokens: tokens seen in training.
        split_hash: of the records and their split (`dnadiff.data.splits.split_hash`).
        digest: of the sequence that it was trained on (`SequenceDataModule.digest`).
        alignment: identity of the alignment that it was trained with.
        data: description of the training data (`SequenceDataModule.describe`).
        data_changed: the files of the training data held something else when the model was
            exported.
        likelihood: held-out likelihood with its baselines, as `held_out_likelihood` returns it.
        curve: h(n) on the held-out part, if the order of the tokens is free.
        seconds: of training.
        license: of the weights.
        data_license: of the training data.
        note: how it was trained and what it is for, in words.
    """

    kind: str = "run"
    tokens: int | None = None
    split_hash: str | None = None
    digest: str | None = None
    alignment: str | None = None
    data: Config | None = None
    data_changed: bool = False
    likelihood: Config | None = None
    curve: Config | None = None
    seconds: float | None = None
    license: str | None = None
    data_license: str | None = None
    note: str | None = None


def read_origin(kind: str, content: JsonMap) -> Origin:
    """The origin in the description of a model.

    Raises:
        KeyError, TypeError, ValueError: naming the key, if one is missing, unknown, or of another
            type.
    """
    check_value("origin", content, dict)
    check_arguments(Origin, content, "origin.")
    check_value("origin.data", content.get("data"), DataDescription | None)
    check_value("origin.curve", content.get("curve"), CurvePoints | None)
    likelihood = content.get("likelihood")
    found = None if likelihood is None else held_out_likelihood(likelihood, "origin.likelihood")
    return Origin(kind, **{**content, "likelihood": found})


def held_out_likelihood(content: JsonMap, key: str = "likelihood") -> Config:
    """A `HeldOutLikelihood` without further keys; KeyError if one is missing, ValueError, naming
    the key, if a value has another type."""
    try:
        return dict(TypeAdapter(HeldOutLikelihood).validate_python(content, strict=True))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":
            raise KeyError(first["loc"][-1]) from None
        raise ValueError(explained(error, key, content, HeldOutLikelihood)) from None


class ChangedDataError(ValueError):
    """The files of the training data hold something else than at the time of training."""


class UnknownTokenizer(Tokenizer):
    """Stands for the tokenizer of a published text model, which its folder does not hold. It can
    neither encode nor decode."""

    name = "unknown"
    mask_letter = ""

    def __init__(self, vocab: Vocab, source: Path) -> None:
        self.vocab = vocab
        self.source = source

    def error(self) -> ValueError:
        """What is missing, and what to do."""
        return ValueError(
            f"{self.source} is a model of text and holds no tokenizer; copy the tokenizer.json of "
            "its training into that folder (GPT-2's for MDLM on OpenWebText); evaluate and train "
            "init_from= also take tokenizer= with their data"
        )

    def encode(self, *args: Any) -> Any:
        """Raises ValueError."""
        raise self.error()

    decode = config = encode


@dataclass(frozen=True)
class Loaded:
    """A model ready to use.

    Attributes:
        denoiser: in evaluation mode.
        process: of its training. If it is another one than the absorbing process, formulas for
            masks refuse the denoiser (`dnadiff.diffusion.process.require`).
        tokenizer: converts between letters and ids; `tokenizer.vocab` is the denoiser's.
        config: `backbone`, `objective`, `noise` and `time_conditioning`; of a run everything that
            it was started with. `data` is missing if the source does not describe the training
            data, as published folders.
        path: the file of the weights.
        step: optimizer steps taken; 0 if the source does not record them.
        conditions: labels and values that the network takes, in the order of the columns of `cond`.
        origin: what else its source records.
    """

    denoiser: BaseDenoiser
    process: AbsorbingProcess
    tokenizer: Tokenizer
    config: Config
    path: Path
    step: int
    conditions: Conditions = field(default_factory=Conditions)
    origin: Origin = field(default_factory=Origin)

    @property
    def is_dna(self) -> bool:
        """Whether it is a model of DNA, and not of text."""
        return self.tokenizer.vocab.complement is not None

    @property
    def objective(self) -> Objective:
        """The objective of its training."""
        return build_objective(self.config, self.process, None)

    def training_length(self, key: str = "length") -> int:
        """Tokens in a training window; of a model that does not record it, the most that its
        network takes.

        Raises:
            ValueError: naming the `key` to set, if neither is known.
        """
        length = (self.config.get("data") or {}).get("length") or self.denoiser.max_length
        if length is None:
            raise ValueError(
                f"{key} is missing: {self.path.parent} does not record the length of its training "
                f"windows; set {key}=..."
            )
        return int(length)

    def window(self, given: int | None) -> int:
        """The longest window in which a command reads records: the one `given`, or else that of the
        training.

        Raises:
            ValueError: if the model is one of text, or the window exceeds what the network takes.
        """
        if not self.is_dna:
            raise ValueError(
                f"input is read as DNA, but {self.path} was trained on text; give a model of DNA"
            )
        given = check_value("window", given, PositiveInt | None)
        window = self.training_length("window") if given is None else given
        longest = self.denoiser.backbone.max_length
        if longest is not None and window > longest:
            raise ValueError(
                f"window {window} is more than the {longest} tokens that this network takes; set "
                "window to that or less"
            )
        return window

    def was_trained_on(self, data: SequenceDataModule) -> bool | None:
        """Whether data have the records, the split and the sequence of its training; None if its
        source records neither."""
        split_hash = self.origin.split_hash
        digest = self.origin.digest
        if split_hash is None and digest is None:
            return None
        if split_hash not in (None, data.describe()["split_hash"]):
            return False
        # The split_hash of a text depends on every letter.
        return not self.is_dna or digest in (None, data.digest)

    def training_data(self, trust: Sequence[str] = ()) -> SequenceDataModule:
        """The data of its training, prepared.

        Raises:
            ChangedDataError: if the files that they were read from hold something else today.
            ValueError, FileNotFoundError: if they cannot be read here, as
                `dnadiff.data.base.run_data`.
        """
        data = run_data(self.config.get("data"), self.known_tokenizer, trust)
        data.prepare()
        if self.was_trained_on(data) is False:
            raise ChangedDataError(
                f"{data.name} changed since {self.path} was trained on it (other sequence, records "
                "or split); restore its files"
            )
        return data

    def columns_for(
        self, alignment: str | Path | None, genome: Genome | None = None
    ) -> Alignment | None:
        """See `dnadiff.weights.loaded.columns_for`."""
        return columns_for(self.denoiser.backbone, self.path, alignment, genome)

    @property
    def known_tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the source of the model holds none."""
        return None if isinstance(self.tokenizer, UnknownTokenizer) else self.tokenizer

    def check_tokenizer(self) -> None:
        """Raise ValueError, with the remedy, if the tokenizer is not known."""
        if isinstance(self.tokenizer, UnknownTokenizer):
            raise self.tokenizer.error()

    def with_tokenizer(self, tokenizer: Tokenizer) -> Loaded:
        """The same model with the tokenizer of its training, if its source holds none; itself if it
        has one.

        Raises:
            ValueError: if it cannot be that tokenizer (`with_vocab`).
        """
        if not isinstance(self.tokenizer, UnknownTokenizer):
            return self
        network = self.denoiser.backbone
        wider = with_vocab(network, self.config, tokenizer.vocab, self.path.parent)
        denoiser, process = wrapped(wider, self.config)
        return replace(self, denoiser=denoiser.eval(), process=process, tokenizer=tokenizer)


def columns_for(
    backbone: Backbone | None,
    path: Path,
    alignment: str | Path | None,
    genome: Genome | None = None,
) -> Alignment | None:
    """The alignment whose columns a network reads; None if it reads the sequence alone. If it was
    trained with an alignment, that is logged.

    Args:
        path: of the model, for messages.
        alignment: a file; `none`: without columns, on purpose.
        genome: that the windows are of; None if the caller compares the records.

    Raises:
        ValueError: if the model reads no alignment, or it was made for another genome.
        FileNotFoundError: if there is no such file.
    """
    layer = None if backbone is None else backbone.columns
    if alignment in (None, "none"):
        if layer is not None and alignment is None:
            log.info(
                f"{path} was trained with an alignment, and none is given: it predicts from the "
                "sequence alone; set alignment=target.aln, or alignment=none"
            )
        return None
    if layer is None:
        raise ValueError(
            f"alignment={alignment}, but {path} reads no alignment; leave it out, or train a "
            "model with data.alignment"
        )
    found = Alignment(alignment)
    if found.is_compact and FREQUENCY.start in layer.reads:
        raise ValueError(
            f"alignment={alignment} is compact, without the frequencies of bases that {path} "
            "reads; give the whole alignment"
        )
    if genome is not None:
        found.check(genome)
    return found


def with_vocab(network: Backbone, config: Config, vocab: Vocab, source: Path) -> Backbone:
    """The network of a published text model with the vocabulary of a tokenizer, which may have
    further ids after the published ones.

    With GPT-2's tokenizer the published code uses one id, 50,257, for padding and mask; here
    padding is 50,258. Its embedding is that of the mask, so padding is read as in the published
    code. Its row of the head is zero, and it is never emitted.

    Raises:
        ValueError: if the vocabulary cannot be the published one.
    """
    known = network.vocab
    if vocab == known:
        return network
    last = known.size - 1  # of published text models only the number of ids is known
    new = vocab.size - known.size
    if (
        "vocab_embed.embedding" not in (state := network.state_dict())  # of a DiT
        or known != Vocab(size=known.size, mask_id=last, pad_id=last, never_emitted=(last,))
        or vocab.complement is not None
        or new < 0
        or not set(range(known.size, vocab.size)) <= set(vocab.never_emitted)
        or vocab.mask_id > last
    ):
        raise ValueError(
            f"{source} has {known.size} ids with the mask {known.mask_id}, and this vocabulary "
            f"{vocab.size} with the mask {vocab.mask_id}: not the vocabulary of its training; "
            "choose its tokenizer (tokenizer=gpt2 for MDLM on OpenWebText)"
        )
    with torch.random.fork_rng(devices=()):
        wider: Backbone = build(config["backbone"], vocab=vocab)
    for name, rows in {
        "vocab_embed.embedding": state["vocab_embed.embedding"][vocab.mask_id].expand(new, -1),
        "output_layer.linear.weight": torch.zeros(new, state["vocab_embed.embedding"].shape[1]),
        "output_layer.linear.bias": torch.zeros(new),
    }.items():
        state[name] = torch.cat([state[name], rows])
    wider.load_state_dict(state)
    return wider


def build_objective(
    config: Config, process: AbsorbingProcess, trust: Trust = (PACKAGE,)
) -> Objective:
    """The objective of a training configuration."""
    return build({**config["objective"], "_partial_": False}, process=process, trust=trust)


def resolved(config: Config, trust: Trust = (PACKAGE,)) -> Config:
    """The configuration with `time_conditioning: null` replaced by the objective's default, in the
    backbone too."""
    conditioned = config.get("time_conditioning")
    if conditioned is None:
        objective = locate(config["objective"]["_target_"], trust)
        conditioned = bool(getattr(objective, "time_conditioning", False))
    backbone = dict(config["backbone"])
    if backbone.get("time_conditioning", False) is None:
        backbone["time_conditioning"] = conditioned
    return {**config, "time_conditioning": conditioned, "backbone": backbone}


def build_denoiser(
    config: Config, tokenizer: Tokenizer, trust: Trust = (PACKAGE,)
) -> tuple[BaseDenoiser, AbsorbingProcess]:
    """The untrained network and process of a training configuration; the objective chooses the
    denoiser class around the network.

    Raises:
        ValueError: if objective, backbone and time conditioning are incompatible.
    """
    config = resolved(config, trust)
    backbone = build(config["backbone"], vocab=tokenizer.vocab, trust=trust)
    if layer := config.get("columns"):
        backbone.read_columns(lambda d_model: build(layer, d_model=d_model, trust=trust))
    if adapter := config.get("adapter"):
        build_adapter(adapter, trust).attach(backbone)
    denoiser, process = wrapped(backbone, config, trust)
    if (config.get("data") or {}).get("lengths"):  # of pairs
        process.separator, _ = marks(tokenizer)
    return denoiser, process


def wrapped(
    backbone: Backbone, config: Config, trust: Trust = (PACKAGE,)
) -> tuple[BaseDenoiser, AbsorbingProcess]:
    """The denoiser that the objective of a configuration puts around a network, and the process of
    its noise schedule."""
    noise = build(config["noise"], trust=trust)
    if not isinstance(noise, NoiseSchedule) or not isinstance(backbone, Backbone):
        raise ValueError(
            "noise and backbone of the configuration must build a NoiseSchedule and a Backbone; "
            "check their _target_"
        )
    process: AbsorbingProcess = build(
        {**(config.get("process") or ABSORBING), "_partial_": False},
        vocab=backbone.vocab,
        noise=noise,
        trust=trust,
    )
    objective = build_objective(config, process, trust)
    denoiser = objective.denoiser(backbone, bool(config["time_conditioning"]))
    denoiser.process_type = type(process)  # so that formulas for masks refuse another one
    denoiser.bound = objective.token_bound if objective.own_bound else None
    if objective.sampler or not isinstance(process, AbsorbingProcess):
        denoiser.sampler = objective.sampler or process.sampler
    if isinstance(process, Module):  # what it counts or learns is stored with the weights
        denoiser.process = process
    return denoiser, process


def other_parts(config: Config) -> Config:
    """The process of a configuration, and the layer that reads columns, under their keys; nothing
    for the absorbing process, which earlier versions did not record, and without such a layer."""
    process = config.get("process") or ABSORBING
    is_other = locate(process["_target_"], None) is not AbsorbingProcess
    found = {"process": process} if is_other else {}
    return found | ({"columns": config["columns"]} if config.get("columns") else {})


def built_tokenizer(config: Config, trust: Trust, path: Path) -> Tokenizer:
    """The tokenizer that a file describes; ValueError if it describes something else."""
    tokenizer = build(config, trust=trust)
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"{path} names {config.get('_target_')!r} as its tokenizer, which is not one; use "
            "another copy of it"
        )
    return tokenizer


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Errors of values that no command writes, for which constructors and torch raise many kinds,
    become a ValueError that names the file."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        is_clear = isinstance(error, (ValueError, KeyError)) or "argument" in text
        reason = f" ({shorten(text, 300)})" if is_clear else ""
        raise ValueError(
            f"{path} does not describe a model that can be built{reason}; use another copy of it"
        ) from error


def description(loaded: Loaded, origin: Origin) -> Config:
    """The contents of `dnadiff.json` for a model; `origin` is what else is recorded of it, without
    paths of this machine."""
    config = {key: loaded.config[key] for key in MODEL} | other_parts(loaded.config)
    backbone = dict(config["backbone"])
    config["backbone"] = backbone | {
        key: value for key, value in _DEFAULTS.items() if key in backbone
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        **config,
        "data": portable_data(loaded.config.get("data")),
        "tokenizer": {
            key: portable(value) if key == "name" else value
            for key, value in loaded.tokenizer.config().items()
        },
        **loaded.conditions.describe(),
        "step": loaded.step,
        "origin": {
            key: value
            for key, value in asdict(origin).items()
            if key != "kind" and (key != "alignment" or value)
        },
        "fingerprint": fingerprint(loaded.denoiser),
    }
    content = json.loads(json.dumps(content))  # as it is read again: lists for tuples
    return content | {"check": check_of(content)}


def portable(value: Json) -> Json:
    """Nested values in which the absolute paths of this machine are replaced by the names of their
    files."""
    return with_texts(value, lambda text: Path(text).name if text.startswith(("/", "~")) else text)


def portable_data(data: Config | None) -> Config | None:
    """The configuration of training data for other machines: files keep their path only if all of
    them ship with the package.

    Elsewhere the data are named again by data=. The tokenizer is left out, because the model has
    its own.
    """
    if data is None:
        return None
    kept = {key: value for key, value in data.items() if key != "tokenizer"}
    result = portable(kept)
    if result == kept and all(path.startswith(_BUNDLED) for path in _strings(kept.get("path"))):
        return result
    return result | {"path": None, "name": data_name(kept)}


def data_name(data: Config) -> str | None:
    """The name of training data in their configuration, or else of their files; None if they have
    neither."""
    names = [Path(path).name.removeprefix(_BUNDLED) for path in _strings(data.get("path"))]
    return str(data.get("name") or ", ".join(names)) or None


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def check_of(content: Config) -> str:
    """SHA-256 of everything in a description besides `check`."""
    return json_hash({key: value for key, value in content.items() if key != "check"})


def read_description(folder: Path) -> Config:
    """The contents of the `dnadiff.json` in a folder, in which every key has its type.

    Raises:
        ValueError: if it is damaged or was changed, or another version of dnadiff wrote it.
    """
    path = folder / DESCRIPTION
    content = read_json(path, ("format",), REMEDY)
    if content["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {str(content['format'])[:40]!r}, and this version of dnadiff reads "
            f"{FORMAT}; update dnadiff"
        )
    if missing := [key for key in ("check", *_KEYS) if key not in content]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; {REMEDY}")
    if content["check"] != check_of(content):
        raise ValueError(
            f"{path} was changed after it was exported; {REMEDY}, or export the model again"
        )
    with names_file(path):
        for key, hint in _KEYS.items():
            check_value(key, content[key], hint)
    return content


def layout_of(denoiser: BaseDenoiser) -> PublishedLayout:
    """The published form of the network of a denoiser, and what else was trained, under names that
    published code ignores."""
    layout = denoiser.backbone.published_layout()
    state = denoiser.state_dict()
    own = [
        (tensor, (f"denoiser.{name}",))
        for name, tensor in state.items()
        if not name.startswith("backbone.")
    ]
    return layout._replace(weights=[*layout.weights, *own])


def filled_network(path: Path, config: str, make: Callable[[], tuple[D, P]]) -> tuple[D, P, Path]:
    """A denoiser with the weights of a folder, its process, and the file of the weights; `config`
    is the name of the file that describes what `make` builds."""
    make = names_file(path / config)(make)
    file = next((path / name for name in TENSORS if (path / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path} holds neither {' nor '.join(TENSORS)}")
    given = tensors.read(file)
    if not isinstance(given, dict) or not all(isinstance(each, Tensor) for each in given.values()):
        raise ValueError(f"{file} is not a file of named tensors")
    # Before memory is allocated for a network that does not match the file.
    with tensors.without_memory(len(given), file):
        layout = layout_of(make()[0])
    tensors.check_layout(layout, given, file)
    tensors.check_memory(given.values(), file)
    with torch.random.fork_rng(devices=()):  # the initial weights are overwritten
        denoiser, process = make()
    tensors.fill(layout_of(denoiser), given, file)
    return denoiser, process, file


def described_config(network: Backbone, time_conditioning: bool) -> Config:
    """The contents of the `config.json` of a network."""
    layout = network.published_layout()
    config = dict(layout.config)
    if "time_conditioning" in config:
        config["time_conditioning"] = time_conditioning
    if (layout.vocab or DNATokenizer().vocab) != network.vocab:
        config[VOCAB_KEY] = asdict(network.vocab)
    return config
