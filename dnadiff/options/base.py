"""The base of the options of a command, and the fields that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from dnadiff.fields import Built, Config, Natural, NonNegative, PositiveInt, check_value
from dnadiff.store.address import expand_user, shortened
from dnadiff.store.disk import check_output

if TYPE_CHECKING:
    import pandas

    from dnadiff.weights.loaded import Loaded

T = TypeVar("T")
MISSING = "???"  # a value that the user must give, in Hydra's notation
# An object that a config group describes: `_target_` and the arguments of its constructor.
Group = dict[str, Any]
Accelerator = Literal["auto", "cpu", "gpu", "cuda", "mps"]
MODEL = (
    "a bundled model (ecoli, enterobacteria, yeast, human_chr20, multi), a run folder, a .ckpt "
    "file, latest, an exported or published folder, hf:ORG/NAME@REVISION (docs/models.md)"
)
Checkpoint = Annotated[str, Field(description=MODEL)]
Draws = Annotated[
    PositiveInt,
    Field(description="network calls per window, even; an autoregressive model always makes one"),
]
Protocol = Annotated[
    Literal["count", "mdlm"],
    Field(description="count, or mdlm: one draw per window, as in MDLM's tables, without se_mc"),
]


def group(default: str | None = None, last: bool = False) -> Any:
    """A field that holds a choice of a config group: a name on the command line, and the content of
    that file here.

    Args:
        default: the name of the file.
        last: the file may set the other keys of the command, as those of `experiment=` do.
    """
    return Field(None, json_schema_extra={"group": default, "last": last})


class Start(NamedTuple):
    """How a command was started: its run folder, and the arguments of its command line."""

    run_dir: Path = Path()
    overrides: tuple[str, ...] = ()
    config_folder: Path | None = None  # the user's own folder of YAML files


class Options(BaseModel):
    """The keys of a command: the type, default, limits and help of each are declared here alone.

    The docstring of a subclass is the page of `--help`: the first paragraph, indented examples, and
    the paragraphs after the keys.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )
    # Keys of which one says what resume=true continues, besides the run folder.
    resumes_by: ClassVar[tuple[str, ...]] = ()
    chooses_threads: ClassVar[bool] = True  # False: no network, or the number is in the output
    # Types of keys inside groups whose classes have no hints with limits.
    inner: ClassVar[Mapping[str, object]] = {}
    _start: Start = PrivateAttr(default_factory=Start)

    overwrite: bool = False
    """replace files that exist"""
    trust: list[str] = []
    """packages besides dnadiff whose classes a checkpoint may name"""

    @field_validator("*", mode="plain")
    @classmethod
    def _of_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        return check_value(name, value, hint_of(cls.model_fields[name]))

    @classmethod
    def of(cls, values: Mapping[str, Any], start: Start | None = None) -> Self:
        """The options of a composed configuration.

        Raises:
            ValueError: naming the key, its value and what is expected.
        """
        for key, hint in cls.inner.items():
            held: Any = values
            *parents, last = key.split(".")
            for part in parents:
                held = held.get(part) or {}
            if last in held:
                check_value(key, held[last], hint)
        options = cls.model_validate(values)
        options._start = start or Start()
        return options

    @classmethod
    def groups(cls) -> dict[str, tuple[str | None, bool]]:
        """The config groups by name: the default choice, and whether the file comes last."""
        found = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return {
            name: (extra["group"], extra["last"])  # type: ignore[misc]
            for name, extra in found.items()
            if isinstance(extra, dict) and "group" in extra
        }

    @classmethod
    def node(cls, name: str) -> Config:
        """The command's primary configuration, as Hydra composes it."""
        first, last = (
            [{group: name} for group, (name, is_last) in cls.groups().items() if is_last == side]
            for side in (False, True)
        )
        own = {
            key: MISSING if field.is_required() else field.get_default(call_default_factory=True)
            for key, field in cls.model_fields.items()
            if key not in cls.groups()
        }
        run = {"dir": f"runs/{name}/${{now:%Y-%m-%d_%H-%M-%S}}"}
        defaults = [*first, "_self_", *last]
        return {"defaults": defaults, **own, "hydra": {"output_subdir": None, "run": run}}

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return self._start.run_dir

    @property
    def overrides(self) -> tuple[str, ...]:
        """The arguments of the command line but for those of Hydra, as they are recorded: without
        secrets."""
        return tuple(each for each in shortened(self.arguments) if not each.startswith("hydra."))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments of the command line."""
        return self._start.overrides

    @property
    def config_folder(self) -> Path | None:
        """The user's own folder of YAML files."""
        return self._start.config_folder

    @property
    def device(self) -> str:
        """The device of torch that the key `accelerator` means."""
        return device_of(getattr(self, "accelerator", "cpu"))

    def loaded(self, key: str = "checkpoint") -> Loaded:
        """The model that a key names, on the device; errors as
        `dnadiff.weights.checkpoint.load`."""
        from dnadiff.weights import checkpoint

        found = checkpoint.load(getattr(self, key), self.trust)
        found.denoiser.to(self.device)
        return found

    @property
    def pages(self) -> dict[str, str]:
        """The pages that were asked for, by their key."""
        keys = "report", "browser"
        return {key: path for key in keys if (path := getattr(self, key, None)) is not None}

    def output_path(self, name: str) -> Path:
        """The file of the key `output`, or one of this name in the run folder."""
        return expand_user(self._output(name))

    def new_output(self, name: str) -> Path:
        """As `output_path`; an error if it exists and is not to be replaced."""
        return check_output(self._output(name), self.overwrite)

    def _output(self, name: str) -> str | Path:
        return getattr(self, "output", None) or self.run_dir / name

    def into(self, target: Callable[..., T], **more: Any) -> T:
        """What a class or function makes of the keys with the names of its parameters, and of
        `more`."""
        known = {*type(self).model_fields, "device"} - more.keys()
        names = [name for name in inspect.signature(target).parameters if name in known]
        return target(**{name: getattr(self, name) for name in names}, **more)

    def only(self, *keys: str) -> dict[str, Any]:
        """Some of the keys with their values."""
        return {key: getattr(self, key) for key in keys}

    def given(self, *keys: str) -> Iterator[str]:
        """Those of the keys, or keys inside them, that the command line names."""
        for override in self.overrides:
            name = override.lstrip("+~").partition("=")[0]
            if name.partition("@")[0].replace("/", ".").partition(".")[0] in keys:
                yield name


def hint_of(field: FieldInfo) -> Any:
    """The type of a field with its limits."""
    limits = tuple(field.metadata)
    return Annotated[field.annotation, *limits] if limits else field.annotation


def pages(kind: type[Options]) -> tuple[str, str, str]:
    """The docstring of options in three parts: its first paragraph, examples and notes."""
    first, *others = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    examples = [text for text in others if text.startswith("    ")]
    notes = [text for text in others if not text.startswith("    ")]
    return " ".join(first.split()), "\n\n".join(examples), "\n\n".join(notes)


class ModelOptions(Options):
    """Of commands that compute with a trained model."""

    checkpoint: Checkpoint
    accelerator: Accelerator = "auto"
    """where the network computes"""
    batch_size: PositiveInt = 32
    """sequences in a batch"""
    seed: Natural = 1
    """of everything that is random"""


class RegionOptions(Options):
    """Of commands that read regions of a genome."""

    regions: str | list[str] | None = None
    """BED, GTF or GFF file, chrom:first-last (1-based), or a list of these"""
    feature: str | None = None
    """rows of a GTF or GFF file with this third column, null: all"""
    spliced: bool = False
    """join the exons (or rows of feature=) of each transcript of a GTF or GFF file, or the blocks
    of BED12"""


class PlacedOptions(RegionOptions):
    """Of commands that read a genome from a file of its own, possibly with related genomes."""

    genome: str | None = None
    """FASTA, 2bit or GenBank file with the regions"""
    alignment: str | None = None
    """of related genomes, made for this genome (docs/related_genomes.md); for models that read one
    """


class ShardedOptions(Options):
    """Of commands whose work can be divided among processes."""

    resumes_by = ("output",)
    launcher: Group | None = group()
    """run all shards: processes or ray, launcher.shards=N"""
    shard: Any = None
    """i/n: part i of n, for python -m dnadiff.merge (docs/scaling.md)"""


class Reported(Options):
    """Of commands whose result has a page, which `dnadiff.report.NAME.page` makes."""

    report: str | None = None
    """.html page: one sentence, pictures, a table; opens without a network"""

    @model_validator(mode="after")
    def _are_pages(self) -> Self:
        for key, path in self.pages.items():
            if not path.lower().endswith(".html"):
                raise ValueError(f"{key} {path} has another format; its name must end in .html")
        return self


class BrowsedOptions(Reported):
    """Of commands whose track or variants `dnadiff.report.browser` shows."""

    shown_by: ClassVar[str] = ""  # the key of the track; without one the variants are shown
    browser: str | None = None
    """.html page: a genome browser with the bases and the track or variants; opens without a
    network (needs pip install -e '.[browser]')"""

    @model_validator(mode="after")
    def _is_shown(self) -> Self:
        if self.browser is not None and self.shown_by and not getattr(self, self.shown_by):
            raise ValueError(f"browser={self.browser} shows {self.shown_by}=; give it too")
        return self


class TrainingOptions(Options):
    """Of commands that train a model of tokens."""

    # Of classes of other packages, whose signatures give no limits.
    inner: ClassVar[Mapping[str, Any]] = {
        "callbacks.checkpoints.every_n_steps": PositiveInt,
        "trainer.callbacks": list[Built] | None,
        "optimizer.lr": NonNegative,
        "optimizer.eps": NonNegative,
        "trainer.max_steps": PositiveInt,
        "trainer.devices": PositiveInt | list[Natural] | str,
        "trainer.num_nodes": PositiveInt,
        "trainer.strategy": str | dict,
        "trainer.gradient_clip_val": NonNegative | None,
        "trainer.log_every_n_steps": PositiveInt,
    }
    tokenizer: Group | None = group()
    """of text; data= chooses its own"""
    optimizer: Group = group("adamw")
    lr_scheduler: Group = group("cosine")
    trainer: Group = group("default")
    """Lightning's Trainer"""
    callbacks: dict[str, Built | None] = group("default")
    logger: Group | None = group("csv")
    """csv, tensorboard, wandb, mlflow, or several as '[tensorboard,wandb]'"""
    experiment: str | None = group(last=True)
    """a recipe that sets the keys above"""
    seed: Natural = 1
    """of weights, windows and masks"""
    resume: bool = False
    """resume the run in hydra.run.dir; without that key, the newest unfinished run of the same
    configuration"""
    weight_decay: NonNegative = 0.1
    """of matrices"""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """of float32 matrix products; lower may be faster"""

    def recorded(self) -> dict[str, Any]:
        """What the run records of its configuration: all keys but `report` and groups that were not
        chosen."""
        values = dict(self)
        left_out = {k for k in self.groups() if values[k] is None} | {"report"}
        return {k: v for k, v in values.items() if k not in left_out}


def device_of(accelerator: Accelerator) -> str:
    """The device of torch that an accelerator means; ValueError if there is none of its kind."""
    import torch

    available = torch.cuda.is_available()
    if accelerator in ("gpu", "cuda") and not available:
        raise ValueError(
            f"accelerator={accelerator}: this machine or this build of torch has no CUDA device; "
            "use auto or cpu"
        )
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and available)
    return "cuda" if on_gpu else accelerator.replace("auto", "cpu")


@dataclass(frozen=True)
class Result:
    """What a command found: the content of its JSON file, whose keys are also attributes, and the
    files that it wrote."""

    content: Mapping[str, Any]
    paths: tuple[Path, ...] = ()
    rows: Sequence[Mapping[str, Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.content:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self.content[name]

    def __dir__(self) -> Iterator[str]:
        yield from (*super().__dir__(), *self.content)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows, or those of the table that was written."""
        import pandas

        if self.rows is not None:
            return pandas.DataFrame(self.rows)
        path = self.paths[0]
        parquet = path.suffix == ".parquet"
        return pandas.read_parquet(path) if parquet else pandas.read_csv(path, sep="\t")
