"""What the commands share: configuration, run folder, `--help`, one-line errors. Only this file,
`config` and commands know Hydra."""

from __future__ import annotations

import argparse
import ctypes
import difflib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnadiff.checks import check_value, integer
from dnadiff.config import Config, Json, Keys, as_dict, build, check, choices, compose, config_dir
from dnadiff.progress import configure_logging, printable
from dnadiff.renamed import RENAMED_CHOICES, with_current_choices
from dnadiff.store.address import is_remote
from dnadiff.store.address import parse as parse_address

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from dnadiff.weights.loaded import Loaded

# glibc returns large freed arrays to the system and requests them again in the next step, page by
# page: 20,000 page faults per step of Caduceus 64 x 4 at 8,192 tokens, a fifth of its time.
# Commands keep the memory instead.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _LARGEST = (
    -1,
    -3,
    2**31 - 1,
)  # the first two: mallopt's names in malloc.h
# keys of commands that name a file to write
OUTPUTS = ("output", "per_base", "track", "dependency", "windows", "report")
Command = Callable[[Config, Path, list[str]], object]
COMMANDS = {
    "train": "train a masked diffusion model on a genome or a text",
    "evaluate": "held-out likelihood with error bars, compared with Markov models",
    "compare": "the paired difference of the held-out likelihoods of two models",
    "zero_shot": "held-out likelihood on several text data sets, in one table",
    "score": (
        "the likelihood of each record or region as a table, and the information content of "
        "each base"
    ),
    "embed": "the network's features of each record or region, as npz, Parquet or AnnData",
    "variants": (
        "log-likelihood ratios of variants from a VCF file, a table, or all those of some regions"
    ),
    "sample": "generate synthetic sequences, as FASTA",
    "judge": "compare samples with held-out windows; every metric with a real-vs-real baseline",
    "judge_text": (
        "generative perplexity of text samples under a local causal model, with entropy "
        "and repetition"
    ),
    "copies": "the longest match of each record of a FASTA file with the training data",
    "finetune": "fine-tune a trained model on classes, labels or values, compared with baselines",
    "predict": (
        "classes, labels or values of new sequences by a fine-tuned model, as a table and a track"
    ),
    "export": "a trained model as a folder to share, with a model card",
    "info": "what a model is, what it was trained on, and what it is for",
    "merge": "the output of a command from its shards",
    "genome": "pack, verify and describe a genome, extract regions of it",
    "compress": "compress a FASTA file losslessly with a trained model",
    "decompress": "restore a compressed FASTA file, byte for byte",
}
# Commands that do not choose their number of threads: they run no network, or store the number in
# their output, as .dnd files do.
ONE_NUMBER_OF_THREADS = (
    "genome",
    "copies",
    "judge",
    "export",
    "info",
    "compress",
    "decompress",
    "merge",
)
log = logging.getLogger("dnadiff")


def run(name: str, function: Command, keys: Keys, argv: Sequence[str] | None = None) -> None:
    """Run one command: compose `configs/<name>.yaml` with the overrides, then call
    `function(config, run folder, overrides)`.

    `keys` are the type hints of its own keys; those of the config groups come from the classes that
    they name. An error ends the process with status 1 and one line on standard error;
    HYDRA_FULL_ERROR=1 shows the traceback. A run folder that is left empty by an error is removed.
    `argv` None takes the arguments of the process.
    """
    # GNU OpenMP threads spin at barriers for milliseconds: on a busy machine ten times slower.
    # docs/results/performance.md has the numbers.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_freed_memory()
    sys.argv = sys.argv if argv is None else [f"dnadiff.{name}", *argv]
    configure_logging()
    folder, rest = parse(with_current_choices(sys.argv[1:]))
    sys.argv[1:] = (
        rest if folder is None else [f"--config-dir={folder}", *rest]
    )  # Hydra refuses options between overrides
    if {"--help", "-h"} & set(rest):
        return print(help_text(name, folder))
    before, os.environ["HYDRA_FULL_ERROR"] = (
        os.environ.get("HYDRA_FULL_ERROR"),
        "1",
    )  # Hydra then raises an error instead of printing it
    try:
        _compose_and_call(name, function, keys)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if before == "1":
            raise
        print(report(error, name, [a for a in rest if not a.startswith("-")]), file=sys.stderr)
        raise SystemExit(1) from None
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]


def _compose_and_call(name: str, function: Command, keys: Keys) -> None:
    from dnadiff.config import call_composed

    existing = {
        path
        for a in sys.argv
        if a.startswith("hydra.run.dir=") and (path := Path(a.partition("=")[2])).exists()
    }  # never removed
    caught: list[
        Exception
    ] = []  # raised again outside: Hydra prints a line of its own about every error that passes through it

    def main(config: DictConfig, run_dir: Path, overrides: list[str]) -> None:
        run_dir = (
            run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
        )  # short names in messages
        configure_logging()
        try:
            call(name, function, keys, config, run_dir, overrides)
        except Exception as error:
            caught.append(error)
        finally:
            if run_dir not in existing:
                from dnadiff.store.disk import remove_if_empty

                remove_if_empty(run_dir)

    call_composed(name, main)
    if caught:
        raise caught[0]


def call(
    name: str,
    function: Command,
    keys: Keys,
    config: DictConfig,
    run_dir: Path,
    overrides: list[str],
) -> None:
    """Check the composed configuration of a command, and run it."""
    plain = as_dict(config, throw_on_missing=True)
    check_new_keys(overrides, name)
    for key in keys:
        *parents, last = key.split(".")
        holder = functools.reduce(lambda inner, part: inner.get(part) or {}, parents, plain)
        if last in holder:
            check_value(key, holder[last], keys[key])
    first = all(
        os.environ.get(rank, "0") == "0" for rank in ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    )  # of several processes
    if first and "torch" not in sys.modules:
        log.info(
            f"{name}: loading PyTorch" + (" and Lightning" if "trainer" in plain else "")
        )  # seconds, before the first result
    check(plain, trust=None)
    from dnadiff.store.outputs import refuse_remote_shards, uploading
    from dnadiff.supervised.runs import refuse_classifier

    refuse_classifier(plain, name)
    outputs = {key: plain.get(key) for key in OUTPUTS}
    if plain.get("shard") is not None or plain.get("launcher"):
        refuse_remote_shards(outputs)
    if plain.get("launcher"):  # starts this command once for each shard
        return build(plain["launcher"], trust=None).launch(
            name, plain, overrides, parse(sys.argv[1:])[0]
        )
    if name not in ONE_NUMBER_OF_THREADS:
        from dnadiff.kernels.facade import choose_threads

        choose_threads()
    if is_remote(run_dir):
        raise ValueError(
            f"hydra.run.dir {parse_address(run_dir).shown} is on another machine, and a run folder is on "
            "this one; give output=... instead"
        )
    resume, overwrite = plain.get("resume") is True, plain.get("overwrite") is True
    with uploading(outputs, resume, overwrite) as local:
        function({**plain, **local}, run_dir, overrides)


def report(error: Exception, name: str, overrides: Sequence[str]) -> str:
    """The line on standard error that ends a command; it names the key of a value that it repeats,
    such as the name of a missing file."""
    text = printable(explain(error, name, overrides))
    given = [
        (key, value.strip("'\""))
        for key, _, value in (o.lstrip("+").partition("=") for o in overrides)
    ]
    blamed = next(
        (
            key
            for key, value in reversed(given)
            if value and re.match(rf"(checkpoint )?{re.escape(value)}[ :]", text)
        ),
        "",
    )
    return (
        f"error: {text}"
        if not blamed or text.startswith(f"{blamed} ")
        else f"error: {blamed}: {text}"
    )


def parse(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The user's own folder of YAML files (`--config-dir`) and the other arguments of a command
    line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-dir", "-cd", type=Path)
    parser.add_argument(
        "--cfg", "-c", action="append", default=[]
    )  # declared, or argparse would read Hydra's -c as short for -cd
    options, rest = parser.parse_known_args(arguments)
    return options.config_dir, [*(f"--cfg={part}" for part in options.cfg), *rest]


def recompose(name: str, overrides: Sequence[str], resolve: bool = True) -> Config:
    """The configuration of a command with other overrides, from inside a running one;
    `--config-dir` of the process applies."""
    return compose(name, overrides, resolve, parse(sys.argv[1:])[0])


def help_text(name: str, folder: Path | None = None) -> str:
    """What `--help` prints: the page in the command's YAML file, with the choices that this command
    reads."""
    import yaml

    page = yaml.safe_load((config_dir() / f"{name}.yaml").read_text(encoding="utf-8"))["hydra"][
        "help"
    ]
    listed = "".join(
        f"{group}: {', '.join(names)}\n" for group, names in choices(name, folder).items()
    )
    return (
        page["template"]
        .replace("${hydra.help.header}", page["header"])
        .replace("$APP_CONFIG_GROUPS", listed)
    )


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for the next allocation; True if the C library is glibc
    and accepts the setting.

    It applies to the whole process: for programs, not for libraries. Peak memory does not change.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):  # another C library
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(
        _MMAP_THRESHOLD, 2**25
    )  # older releases refuse more than 32 MiB
    return bool(mallopt(_TRIM_THRESHOLD, _LARGEST) and mapped)


def explain(error: Exception, name: str, overrides: Sequence[str]) -> str:
    """An error as one line: what is wrong and what to do."""
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import (
        ConfigAttributeError,
        ConfigKeyError,
        InterpolationToMissingValueError,
        MissingMandatoryValue,
    )

    if isinstance(error, (HydraException, ConfigAttributeError, ConfigKeyError)):
        return _explain_composition(error, name, overrides)
    if isinstance(error, (MissingMandatoryValue, InterpolationToMissingValueError)):
        return _explain_missing(str(error), name)
    parts = (
        (error.filename, error.strerror)
        if isinstance(error, OSError) and error.strerror
        else (str(error),)
    )
    text = " ".join(": ".join(str(part) for part in parts if part).split()) or type(error).__name__
    forced = isinstance(error, RuntimeError) and "was asked for and cannot run" in text
    if forced or (
        isinstance(error, (ValueError, OSError, yaml.YAMLError))
        and not isinstance(error, UnicodeDecodeError)
    ):
        return text
    return f"{type(error).__name__}: {text} (HYDRA_FULL_ERROR=1 shows where)"


def _explain_missing(text: str, name: str) -> str:
    plain = r"(?:Missing mandatory value|MissingMandatoryValue while resolving.*?interpolation.*?)[: ]+([\w.]+)"
    missing = (re.search(r"full_key: ([\w.]+)", text) or re.search(plain, text) or ("", "a value"))[
        1
    ]
    return (
        f"{missing} is missing: give {missing}=... on the command line (python -m "
        f"dnadiff.{name} --help shows how)"
    )


def _explain_composition(error: Exception, name: str, overrides: Sequence[str]) -> str:
    from hydra.errors import OverrideParseException

    text = str(error)
    if choice := re.search(
        r"Could not find '([^']+)'.*Available options in '([^']+)':\s*(.*)", text, re.DOTALL
    ):
        group, known = (
            choice[2],
            re.findall(
                r"[\w.\-]+", choice[3].partition("\n\n")[0].partition("\nConfig search path")[0]
            ),
        )
        wanted = choice[1].removeprefix(group + "/")
        hint = (
            f" any more; it is now {new}"
            if (new := RENAMED_CHOICES.get(f"{group}={wanted}"))
            else _closest(wanted, known)
        )
        return f"{group}={wanted} does not exist{hint}; known: {', '.join(sorted(known))}"
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the command line: {' '.join(text.split())[:160]} ; quote values with "
            "special characters, as in 'path=\"a b.fa\"'"
        )
    if merged := re.match(r"Error merging override (.*)", text):
        return (
            f"{merged[1]}: this key takes a value of another kind (a list, a mapping or a "
            "single value)"
        )
    chosen = dict(o.partition("=")[::2] for o in group_choices(overrides))
    if (at := re.search(r"override '((\w+)/(\w+))", text)) and at[1] in chosen:
        return f"{at[2]}={chosen.get(at[2], '...')} has no {at[3]} to choose; leave {at[1]} out"
    if key := re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)'", text):
        return unknown_key(key[1].partition("@")[0], name, overrides)
    return " ".join(text.split())


def unknown_key(key: str, name: str, overrides: Sequence[str] = ()) -> str:
    """The message for a key or group that the command does not have, given the groups that were
    chosen."""
    config = recompose(name, group_choices(overrides), resolve=False)
    if key.startswith("data.") and not config.get("data"):
        return (
            f"{key}: the data come from the checkpoint's run; to evaluate on others replace "
            "the "
            "whole group, as in data=fasta data.path=my.fa"
        )
    known, parent = set(_all_keys(config)), key.rpartition(".")[0]
    siblings = {k for k in known if parent and k.rpartition(".")[0] == parent} or {
        k.partition(".")[0] for k in known
    }
    listed = ", ".join(sorted(k.rpartition(".")[2] for k in siblings))
    return (
        f"unknown key {key}{_closest(key, sorted(known))}; "
        f"known{f' in {parent}' if parent else ''}: {listed}"
    )


def _all_keys(config: Mapping[str, Json], prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys, those of mappings included, empty or not."""
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _all_keys(value, f"{prefix}{key}.")


def group_choices(overrides: Sequence[str]) -> list[str]:
    """The overrides that choose a file of a group, as in `data=fasta`."""
    roots = [root for root in (config_dir(), parse(sys.argv[1:])[0]) if root is not None]
    return [
        o
        for o in overrides
        if any(
            (root / o.lstrip("+").partition("=")[0].partition("@")[0]).is_dir() for root in roots
        )
    ]


def check_new_keys(overrides: Sequence[str], name: str) -> None:
    """ValueError for a new key at the top level (`+x=1`), which nothing reads. Deeper ones
    (`+trainer.x=1`) go to a constructor, which checks."""
    added = [
        o.lstrip("+").partition("=")[0].rpartition("@")[2] for o in overrides if o.startswith("+")
    ]  # also of +group@key=choice
    if added and (
        unread := [
            key for key in added if key.partition(".")[0] not in recompose(name, [], resolve=False)
        ]
    ):
        raise ValueError(unknown_key(unread[0], name, overrides))


def pick_device(accelerator: str) -> str:
    """The torch device for `auto`, `cpu`, `gpu`, `cuda` or `mps`; ValueError if it is another word,
    or CUDA is not available."""
    import torch

    available, known = (
        torch.cuda.is_available(),
        {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "mps": "mps"},
    )
    device = {**known, "auto": "cuda" if available else "cpu"}.get(accelerator)
    if device is None:
        raise ValueError(
            f"accelerator {accelerator!r} is not known; choose auto, {', '.join(known)}"
        )
    if torch.device(device).type == "cuda" and not available:
        raise ValueError(
            f"accelerator={accelerator}: this machine or this build of torch has no CUDA device; "
            "use auto or cpu"
        )
    return device


def check_window(window: int | None, loaded: Loaded) -> int:
    """As `Loaded.window`."""
    return loaded.window(None if window is None else integer("window", window))


def _closest(word: str, known: Sequence[str]) -> str:
    return "".join(
        f"; did you mean {match}?"
        for match in difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    )
