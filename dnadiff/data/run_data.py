"""The data of a training run, read again by later commands from the files that its configuration
names, and never from the network.

`chosen_data` prefers the data that the command line names; a model without a run, such as published
weights, needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dnadiff.data.base import SequenceDataModule
from dnadiff.data.genome.genome import is_manifest
from dnadiff.fields import Config, Json
from dnadiff.store.address import CACHED, is_remote
from dnadiff.store.objects import PACKAGE, build

if TYPE_CHECKING:
    from dnadiff.data.tokenizer import Tokenizer

# Keys of the data whose objects fetch files. The model's own tokenizer replaces the one that the
# configuration names.
_FETCHED, _REPLACED = ("download", "hub"), ("tokenizer",)
_REMEDY = (
    "give them to evaluate, judge or copies, as in data=ecoli or data=fasta "
    "data.path=my.fa, "
    "or to finetune, as in pretraining_overlap=my.fa"
)


def chosen_data(
    given: Config | None, config: Config, tokenizer: Tokenizer | None, trust: Sequence[str] = ()
) -> SequenceDataModule:
    """The data `given` on the command line, or else those that a model was trained on, not yet
    prepared.

    Args:
        given: `data` of the command line.
        config: the model's configuration, with `data` if its source describes them.
        tokenizer, trust: as of `run_data`.

    Raises:
        ValueError: as `run_data`, or if the data are not sequences that this tokenizer reads.
    """
    if not given:
        return run_data(config.get("data"), tokenizer, trust)
    data: SequenceDataModule = build(given, trust=None)
    if tokenizer is not None:
        data.expect(tokenizer)
    return data


def run_data(
    config: Json, tokenizer: Tokenizer | None, trust: Sequence[str] = ()
) -> SequenceDataModule:
    """The data that a model was trained on, not yet prepared.

    A checkpoint can come from anyone. Its configuration may name files of this machine, but nothing
    that it names is fetched.

    Args:
        config: `data` of the configuration in the checkpoint; None if it has none.
        tokenizer: of the model; None if it is not known, and the data choose it.
        trust: packages besides dnadiff whose classes the configuration may name.

    Raises:
        ValueError: if the run used downloaded data only, the source of the model names no file, or
            the data are not sequences that this tokenizer reads.
    """
    data = build(without_download(config), trust=(PACKAGE, *trust))
    if not isinstance(data, SequenceDataModule):
        raise ValueError(
            f"data of the training run are described as {type(data).__name__}, which is no data "
            "module; name other data"
        )
    if tokenizer is not None:
        data.expect(tokenizer)
    return data


def without_download(data: Json) -> dict[str, Json]:
    """The data configuration of a run without what could be fetched.

    Raises:
        ValueError: if the run used downloaded data only.
    """
    if data is None:
        raise ValueError(
            f"data is missing: this model comes without a run that names its data; {_REMEDY}"
        )
    if not isinstance(data, Mapping):
        raise ValueError(
            f"data of the training run are {data!r}, expected a mapping; name other data"
        )
    fetched = [key for key in _FETCHED if data.get(key)]
    if fetched and not data.get("path"):
        raise ValueError(
            f"the run was trained on downloaded data ({data.get('name')}); name it again, as in "
            "data=hg38, to allow the download"
        )
    if data.get("path", "") is None:
        raise ValueError(
            "data is missing: this model was exported without the path of its data "
            f"({data.get('name')}); {_REMEDY}"
        )
    kept = {
        key: value for key, value in data.items() if key not in fetched and key not in _REPLACED
    }
    return kept | {"path": _stored_manifests(kept["path"])} if "path" in kept else kept


def _stored_manifests(path: Json) -> Json:
    """Paths in which the addresses of a manifest are read from the cache; `build` does this for the
    addresses themselves."""
    if isinstance(path, Mapping):
        return {label: _stored_manifests(one) for label, one in path.items()}
    if isinstance(path, (list, tuple)):
        return [_stored_manifests(one) for one in path]
    return (
        CACHED + path
        if isinstance(path, str) and is_manifest(path) and not is_remote(path)
        else path
    )
