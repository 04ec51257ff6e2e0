"""Compare the results of this version with those of another commit: every documented command on
tiny input, every output file.

    python scripts/golden.py --against COMMIT
    python scripts/golden.py --against COMMIT --only sample/ score/fasta --jobs 2
    python scripts/golden.py --against COMMIT --record      # write golden.json
    python scripts/golden.py                                # compare with golden.json

The command lines are in golden.txt beside this file. Both versions run on this machine, each case
in a folder of its own. Sequences, tables, JSON and messages must be equal but for times, arrays and
tensors by value, pages by their numbers. `INTENDED` lists what may differ, with the reason. The
results of COMMIT never change: they are kept in the folder of `--cache`. golden.json has, for each
file, a digest of its keys, columns, names of records and integers, which are the same on every
machine.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import functools
import gzip
import hashlib
import html
import importlib
import io
import json
import math
import os
import pkgutil
import random
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LISTED = HERE / "golden.txt"
KEPT = HERE / "golden.json"
OWN = ".golden"  # the folder of a case with what its commands printed
PRELOADED = (
    *("torch", "lightning", "hydra", "omegaconf", "numpy", "pandas", "scipy.stats", "yaml"),
    *("sklearn.linear_model", "safetensors.torch", "matplotlib.pyplot", "anndata", "pyarrow"),
    *("dnadiff",),
)
LIMIT = 300.0  # seconds of one command


@dataclass(frozen=True)
class Intended:
    """A difference that is wanted.

    Args:
        reason: why it differs.
        case, file, key: patterns of the case, of the file in its folder, and of the key in it.
    """

    reason: str
    case: str = "*"
    file: str = "*"
    key: str = "*"

    def covers(self, case: str, file: str, key: str) -> bool:
        """Whether this difference is the intended one."""
        return (
            fnmatch.fnmatchcase(case, self.case)
            and fnmatch.fnmatchcase(file, self.file)
            and fnmatch.fnmatchcase(key, self.key)
        )


# Changes since 6f6c684e.
INTENDED = (
    Intended("messages say what runs", "evaluate/*", "*printed*.err"),
    Intended("one digest of weights identifies a network", key="*weights"),
    Intended("unguided samples are next to designs", "design/*", "*unguided*"),
    Intended("unguided samples are next to designs", "design/*", "*", "*unguided*"),
    Intended("unguided samples are next to designs", "design/*", "*.json", "design*"),
    Intended("the last stage resamples", "design/resample_move"),
    Intended("keys have another order", "[ds][ea]*/*", "*.json", " keys"),
    Intended("saved networks list all settings", "finetune/*", "*model.json", "settings*"),
    Intended("finetune.json has the summary", "finetune/*", "*results.json"),
    Intended("embed can be resumed", "embed/*", "*.json"),
    Intended("the track is in the settings", "predict/*", "*.json", "settings.track*"),
)

# Times, and what else differs between two runs of the same version.
VARYING = re.compile(
    r"(^|[./ ])(\w*seconds\w*|elapsed|date|created|started|finished|\w*_per_second|\w*_time"
    r"|hostname|pid|peak_\w+|wall\w*|sha256\.(best|last)\.ckpt|check"
    r"|waiting_share|parts\.samples\.(bytes|crc))($|[./ ])"
)  # the digests are of files that hold times
VARYING_FILES = (".samples.part",)
DURATION = re.compile(
    r"\w+/s +\d[\d.,]*|seconds of training \| [\d.,]+"
    r"|(?:less than )?\b\d[\d.,]* ?(?:s|ms|min|h|seconds?|minutes?|hours?|tokens/s|MB|it/s)\b"
    r"(?: \d+ (?:s|min)\b)?"
    r"|\d{4}-\d\d-\d\d[_ T]\d\d[:-]\d\d[:-]\d\d(?:[.\d]*)|\b\d+:\d\d(?::\d\d)?\b"
)


# The cases


@dataclass(frozen=True)
class Case:
    """Commands that share a folder.

    Args:
        name: of the case, and of its folder.
        commands: words of each; `$OUT` is replaced by the name.
        needs: cases whose outputs they read.
        digest: of all that the results depend on, but for the version.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...]
    digest: str = ""


def read_cases(text: str) -> dict[str, Case]:
    """The cases of golden.txt, by name, in its order."""
    joined: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and joined:
            joined[-1] += " " + line.strip()
        elif line and not line.startswith("#"):
            joined.append(line)
    words: dict[str, str] = {}
    lines: dict[str, str] = {}
    for line in joined:
        if line.startswith("$"):
            name, value = (part.strip() for part in line[1:].split("=", 1))
            words[name] = value
        else:
            name, _, value = line.partition(":")
            lines[name] = value.strip()
    cases = {name: _case(name, line, words, lines) for name, line in lines.items()}
    source = Path(__file__).read_text(encoding="utf-8")
    inputs = source.split("\n# The input files\n")[1].split("\n# Running one version")[0]

    @functools.cache
    def digest(name: str) -> str:
        needed = [digest(other) for other in cases[name].needs]
        text = json.dumps([cases[name].commands, needed, inputs])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    return {name: replace(case, digest=digest(name)) for name, case in cases.items()}


def _case(name: str, line: str, words: Mapping[str, str], known: Mapping[str, str]) -> Case:
    while (filled := re.sub(r"\$([A-Z]+)", lambda m: words.get(m[1], f"${m[1]}"), line)) != line:
        line = filled
    commands: list[list[str]] = [[]]
    for word in shlex.split(line.replace("$OUT", name)):
        if word == "&&":
            commands.append([])
        else:
            commands[-1].append(word)
    text = " ".join(word for command in commands for word in command)
    needs = tuple(other for other in known if other != name and re.search(rf"\b{other}\b", text))
    own = f"hydra.run.dir={name}/folder"  # two commands of one second share the folder by default
    for words in commands:
        command = words[1:] if words[:1] == ["interrupted"] else words
        if command and command[0] not in STARTS and not re.search(r"hydra\.run\.dir=| --", text):
            words.append(own)
    return Case(name, tuple(map(tuple, commands)), needs)


def chosen(cases: Mapping[str, Case], only: Iterable[str]) -> list[str]:
    """Names of the cases that begin with one of `only`, or of all."""
    only = tuple(only)
    names = [name for name in cases if not only or name.startswith(only)]
    if not names:
        raise SystemExit(f"no case begins with {' or '.join(only)}; known: {', '.join(cases)}")
    return names


def with_needs(cases: Mapping[str, Case], names: Iterable[str]) -> list[str]:
    """These cases after those that they read."""
    ordered: dict[str, None] = {}

    def add(name: str) -> None:
        for other in cases[name].needs:
            add(other)
        ordered[name] = None

    for name in names:
        add(name)
    return list(ordered)


# The input files


def write_inputs(world: Path) -> None:
    """Every file that the cases read but do not write."""
    draw = random.Random(0)
    bases = "".join(draw.choices("AACGT", k=6_000))
    other = "".join(draw.choices("ACGGT", k=4_000))
    files = {"g.fa": f">chr1\n{bases}\n", "other.fa": f">chr1 other\n{other}\n"}
    files["related.afa"] = f">chr1\n{bases}\n>related\n{bases.replace('AA', 'AC')}\n"
    files["promoter.fa"] = f">p\n{bases[:48]}\n"
    files["promoters.fa"] = _fasta((f"p{i}", bases[100 * i : 100 * i + 48]) for i in range(8))
    files["x.fa"] = _fasta((f"s{i}", "".join(draw.choices("ACGT", k=64))) for i in range(12))
    files["real.fa"] = _fasta((f"r{i}", bases[90 * i : 90 * i + 64]) for i in range(60))
    files["long.fa"] = _fasta((f"l{i} x", bases[i * 9 : i * 9 + 20 + i % 20]) for i in range(300))
    files["sequences.fa"] = _fasta(
        (f"q{i} class={'ab'[i % 2]}", bases[60 * i : 60 * i + 30 + i % 20]) for i in range(90)
    )
    files["short.fa"] = _fasta((f"d{i}", bases[50 * i : 50 * i + 24]) for i in range(12))
    files["messy.fa"] = (
        f">one first record\n{bases[:30]}\nNNNNNN{bases[30:70].lower()}\n\n>two\nRYKM\n"
        f">three\n{bases[100:190]}\n>four\nacgtu\n"
    )
    files["t.fa"] = f">t\n{'N' * 20}ACGT{'R' * 4}{'N' * 12}\n>u\nGGNNNNCC{'N' * 24}GAATTC\n"
    files["t.txt"] = "To be [MASK*8] that\n"
    files["genes.bed"] = "chr1\t1000\t1040\ta\t0\t+\nchr1\t3000\t3030\tb\t0\t-\n"
    files["split.bed"] = "chr1\t0\t4000\ttrain\nchr1\t4100\t5000\tvalid\nchr1\t5100\t6000\ttest\n"
    files["blacklist.bed"] = "a\t100\t300\nb\t0\t20\n"
    files["genes.gtf"] = (
        'chr1\tx\tCDS\t1001\t1060\t.\t+\t0\tgene_id "a";\n'
        'chr1\tx\tgene\t1001\t1100\t.\t+\t.\tgene_id "a";\n'
        'chr1\tx\tCDS\t2001\t2030\t.\t-\t0\tgene_id "b";\n'
    )
    files.update(_variants(bases))
    files.update(_tables(draw))
    files["g.gb"] = _genbank(bases)
    for name, text in files.items():
        (world / name).parent.mkdir(parents=True, exist_ok=True)
        (world / name).write_text(text, encoding="utf-8")
    three = _fasta((name, bases[2000 * i : 2000 * i + 2000]) for i, name in enumerate("abc"))
    for name, text in (("x.fa", files["x.fa"]), ("x.vcf", files["x.vcf"]), ("three.fa", three)):
        (world / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    subprocess.run([sys.executable, "-c", _BCF], cwd=world, check=False)
    shutil.copytree(ROOT / "tests" / "compat", world / "compat", dirs_exist_ok=True)


_BCF = """
try: import pysam
except ImportError: raise SystemExit
rows = pysam.VariantFile("x.vcf")
with pysam.VariantFile("x.bcf", "wb", header=rows.header) as out:
    for row in rows: out.write(row)
"""


def _fasta(records: Iterable[tuple[str, str]]) -> str:
    return "".join(f">{name}\n{sequence}\n" for name, sequence in records)


def _variants(bases: str) -> dict[str, str]:
    swap = str.maketrans("ACGT", "CATG")
    at = [120, 700, 1500, 2500, 3300, 4000, 4700, 5500]
    rows = [(p, bases[p - 1], bases[p - 1].translate(swap)) for p in at]
    rows += [(p, bases[p - 1 : p + 2], bases[p - 1]) for p in (900, 2222)]
    rows += [(p, bases[p - 1], bases[p - 1] + "ACG") for p in (1800, 5000)]
    rows += [(3210, bases[3209:3211], bases[3209:3211].translate(swap))]
    rows.sort()
    head = "chrom\tpos\tref\talt\n"
    table = [f"chr1\t{p}\t{ref}\t{alt}\n" for p, ref, alt in rows]
    vcf = "".join(
        f"chr1\t{p}\trs{p}\t{ref}\t{alt}\t.\tPASS\tAC={i}\n" for i, (p, ref, alt) in enumerate(rows)
    )
    header = (
        f"##fileformat=VCFv4.2\n##contig=<ID=chr1,length={len(bases)}>\n"
        '##FILTER=<ID=PASS,Description="passed">\n'
        '##INFO=<ID=AC,Number=1,Type=Integer,Description="count">\n'
        "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    )
    wrong = f"chr1\t50\t{bases[49].translate(swap)}\t{bases[49]}\n"
    return {
        "x.vcf": header + vcf,
        "variants.tsv": head + "".join(table),
        "snv.tsv": head + "".join(row for row in table if len(row.split()[2] + row.split()[3]) < 3),
        "one.tsv": head + table[0],
        "wrong.tsv": head + table[0] + wrong + table[1],
    }


def _tables(draw: random.Random) -> dict[str, str]:
    rows = []
    for i in range(60):
        sequence = "".join(draw.choices("ACGT" if i % 2 else "AACG", k=32))
        rows.append(f"{sequence},{'ab'[i % 2]},{i % 7 + 0.5},{i % 2},{i % 3 // 2},{(i + 1) % 2}")
    words = ["To", "be", "or", "not", "to", "be", "that", "is", "the", "question"]
    sentences = [" ".join(draw.choices(words, k=12)) for _ in range(60)]
    lines = "".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences)
    return {
        "table.csv": "sequence,label,expression,liver,brain,heart\n" + "\n".join(rows) + "\n",
        "book.txt": "\n\n".join(sentences) + "\n",
        "ptb.test.txt": "\n\n".join(sentences[:20]) + "\n",
        "notes/a.jsonl": lines,
        "lambada_test.jsonl": lines,
    }


def _genbank(bases: str) -> str:
    letters = bases[:3120].lower()
    rows = [
        f"{i + 1:>9} " + " ".join(letters[j : j + 10] for j in range(i, min(i + 60, 3120), 10))
        for i in range(0, 3120, 60)
    ]
    return (
        "LOCUS       chr1   3120 bp    DNA     linear   BCT 01-JAN-2000\n"
        "ACCESSION   chr1\nVERSION     chr1\nFEATURES             Location/Qualifiers\n"
        "ORIGIN\n" + "\n".join(rows) + "\n//\n"
    )


# Running one version: a process that imports once, and a fork of it for every command


@dataclass(frozen=True)
class Version:
    """One version, and where its results go.

    Args:
        root: its package and configs.
        world: the folder in which commands run: the same for all versions, so that paths in results
            are the same.
        results: of its cases, moved here from `world`.
        reference: results that other cases read: those of COMMIT, so that a difference in one case
            does not appear in those after it.
    """

    root: Path
    world: Path
    results: Path
    reference: Path


def run_version(version: Version, cases: list[Case], jobs: int) -> None:
    """Run the cases; each result is kept with its digest."""
    world = version.world
    shutil.rmtree(world, ignore_errors=True)
    world.mkdir(parents=True)
    version.results.mkdir(parents=True, exist_ok=True)
    write_inputs(world)
    (world / "cache").mkdir(parents=True, exist_ok=True)
    kernels = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "dnadiff/networks/kernels"
    )
    kernels.mkdir(parents=True, exist_ok=True, mode=0o700)
    (world / "cache" / "kernels").symlink_to(kernels)
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        **{
            "PYTHONPATH": str(version.root),
            "DNADIFF_CACHE": str(world / "cache"),
            "PYTHONHASHSEED": "0",
        },
        **{"HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg", "COLUMNS": "100", "TQDM_DISABLE": "1"},
        "GOMP_SPINCOUNT": "10000",
    }
    work = {
        "version": [str(path) for path in astuple(version)],
        "jobs": jobs,
        "cases": [astuple(case) for case in cases],
    }
    command = [sys.executable, str(HERE / "golden.py"), "--serve"]
    subprocess.run(
        command, input=json.dumps(work), text=True, cwd=world, env=environment, check=True
    )


def serve() -> None:
    """In the process of one version: run the cases that standard input names, each command in a
    fork."""
    work = json.load(sys.stdin)
    version = Version(*map(Path, work["version"]))
    sys.path[0] = os.getcwd()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        preload(str(version.root))
    cases = [Case(n, tuple(map(tuple, c)), tuple(needs), d) for n, c, needs, d in work["cases"]]
    waiting = {case.name: case for case in cases}
    running: dict[int, str] = {}
    while waiting or running:
        blocked = {*waiting, *running.values()}
        ready = [case for case in waiting.values() if not blocked & set(case.needs)]
        for case in ready[: work["jobs"] - len(running)]:
            del waiting[case.name]
            for name in case.needs:
                if not Path(name).exists():
                    shutil.copytree(version.reference / name, name)
            if (child := os.fork()) == 0:
                status = 1
                try:
                    run_case(case, version)
                    status = 0
                finally:
                    os._exit(status)
            running[child] = case.name
        child, status = os.wait()
        name = running.pop(child)
        if status:
            print(f"{name}: the case itself failed", file=sys.stderr)


def preload(root: str) -> None:
    """Import what every command needs, before the first fork."""
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    package = sys.modules["dnadiff"]
    if not str(package.__file__).startswith(root):
        raise SystemExit(f"{package.__file__} was imported, not the package in {root}")
    for folder in [p for p in package.__path__ if p] and sorted(
        Path(package.__path__[0]).iterdir()
    ):
        if not (folder / "__init__.py").is_file() and not folder.is_dir():
            continue
        for module in pkgutil.walk_packages([str(folder)], f"dnadiff.{folder.name}."):
            try:
                importlib.import_module(module.name)
            except Exception:  # of an extra that is not installed
                continue


def run_case(case: Case, version: Version) -> None:
    """Run the commands of a case one after the other, keep what they print, and move the folder to
    the results."""
    folder = Path(case.name)
    (folder / OWN).mkdir(parents=True)
    done = []
    begin = time.monotonic()
    for i, words in enumerate(case.commands):
        printed = folder / OWN / f"printed{i}"
        if words and words[0] in STARTS:
            STARTS[words[0]](folder, version.reference, *words[1:])
            status = 0
        else:
            status = run_command(words, printed, folder)
        done.append({"words": words, "status": status})
    record = {"commands": done, "seconds": round(time.monotonic() - begin, 2)}
    (folder / OWN / "case.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / OWN / "digest").write_text(case.digest, encoding="utf-8")
    kept = version.results / case.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, kept)


def copy_case(folder: Path, reference: Path, other: str) -> None:
    """`from OTHER`: the folder of a case that the reference wrote."""
    shutil.copytree(reference / other, folder, dirs_exist_ok=True)
    shutil.rmtree(folder / OWN)
    (folder / OWN).mkdir()
    for path in folder.rglob("*"):  # names of the folder in what it holds
        if path.suffix in (".json", ".yaml") and path.is_file():
            text = path.read_text(encoding="utf-8")
            if f"{other}/" in text:
                path.write_text(text.replace(f"{other}/", f"{folder}/"), encoding="utf-8")


def copy_compat(folder: Path, reference: Path, name: str) -> None:
    """`from_compat NAME`: a run of an earlier version."""
    del reference
    shutil.copytree(Path("compat") / name, folder, dirs_exist_ok=True)


def copy_run(folder: Path, reference: Path, run: str, evaluation: str) -> None:
    """`from_run RUN EVALUATION`: a run with its evaluate.json."""
    del reference
    shutil.copytree(run, folder, dirs_exist_ok=True)
    shutil.copy(evaluation, folder / "evaluate.json")


STARTS = {"from": copy_case, "from_compat": copy_compat, "from_run": copy_run}


def run_command(words: tuple[str, ...], printed: Path, folder: Path) -> int:
    """The exit status of one command in a fork; with `interrupted` first, it is stopped when it has
    written a file to the folder."""
    interrupted = words[:1] == ("interrupted",)
    words = words[1:] if interrupted else words
    if (child := os.fork()) == 0:
        os._exit(_command(words, printed))
    limit = time.monotonic() + LIMIT
    sent = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return 0 if interrupted and code in (0, 130) else code
        if interrupted and not sent and _written(folder):
            time.sleep(0.05)
            os.kill(child, signal.SIGINT)
            sent = True
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.003)


def _written(folder: Path) -> bool:
    files = (path for path in folder.rglob("*") if OWN not in path.parts)
    return any(path.is_file() and path.stat().st_size > 200 for path in files)


def _command(words: tuple[str, ...], printed: Path) -> int:
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{printed}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), write_through=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    module = f"dnadiff.{words[0]}" if words else "dnadiff"
    sys.argv = [module, *words[1:]]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        import traceback

        traceback.print_exception(error)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


# Reading what a case wrote


def files_of(folder: Path) -> list[str]:
    """The files of a case, by their path in its folder."""
    paths = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")
    names = sorted(str(p.relative_to(folder)) for p in paths if "tfevents" not in p.name)
    own = (f"{OWN}/case.json", f"{OWN}/digest")
    return [n for n in names if not n.endswith(VARYING_FILES) and n not in own]


def contents(path: Path, replaced: Mapping[str, str]) -> dict[str, Any]:
    """The values in a file, by key; paths of this machine and times are left out."""
    name = path.name
    data = path.read_bytes()
    if path.parent.name == OWN:
        return dict(enumerate_lines(printed_text(data.decode(errors="replace"), replaced)))
    if name.endswith((".gz", ".bgz")):
        name = name.rpartition(".")[0]
        data = gzip.decompress(data)
    kind = name.rpartition(".")[2]
    values = READERS.get(kind, _read_text)(data)
    if kind == "md":
        values = {key: DURATION.sub("TIME", line) for key, line in values.items()}
    return {
        key: _replace(value, replaced) if isinstance(value, str) else value
        for key, value in values.items()
        if not VARYING.search(key)
    }


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


def printed_text(text: str, replaced: Mapping[str, str]) -> list[str]:
    """What a command printed, without the lines that a later one overwrote, without times and the
    width of columns."""
    lines = [line.rpartition("\r")[2] for line in _replace(text, replaced).split("\n")]
    shown = []
    speeds = False
    for line in lines:
        words = DURATION.sub("TIME", line).split()
        speeds = bool(words) and (speeds or words[-1].endswith("/s"))
        if not (words and words[-1] == "left"):  # progress
            shown.append(" ".join(words[:-1] if speeds else words))
    return shown


def enumerate_lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each line by its number."""
    for i, line in enumerate(lines, 1):
        yield f"line {i}", line


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and lists, by their path."""
    if isinstance(value, Mapping):
        yield f"{key} keys", ", ".join(map(str, value))
        for name, inner in value.items():
            yield from flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        yield f"{key} length", len(value)
        for i, inner in enumerate(value):
            yield from flat(inner, f"{key}[{i}]")
    elif hasattr(value, "detach"):
        import torch

        value = value.detach()
        if value.dtype is torch.bfloat16:
            value = value.float()
        yield key, value.numpy()
    else:
        yield key, value


def _read_text(data: bytes) -> dict[str, Any]:
    try:
        return dict(enumerate_lines(data.decode().split("\n")))
    except UnicodeDecodeError:
        return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _read_table(data: bytes) -> dict[str, Any]:
    lines = data.decode().split("\n")
    separator = "\t" if "\t" in data.decode() else ","
    header = lines[0].split(separator)
    values: dict[str, Any] = {"columns": lines[0], "lines": len(lines)}
    for i, line in enumerate(lines[1:], 1):
        for j, cell in enumerate(line.split(separator)):
            values[f"{header[j] if j < len(header) else j}[{i}]"] = cell
    return {
        key: value for key, value in values.items() if not VARYING.search(key.partition("[")[0])
    }


def _read_json(data: bytes) -> dict[str, Any]:
    return dict(flat(json.loads(data)))


def _read_json_lines(data: bytes) -> dict[str, Any]:
    return dict(flat([json.loads(line) for line in data.splitlines()]))


def _read_yaml(data: bytes) -> dict[str, Any]:
    import yaml

    return dict(flat(yaml.safe_load(data)))


def _read_torch(data: bytes) -> dict[str, Any]:
    import torch

    return dict(flat(torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)))


def _read_safetensors(data: bytes) -> dict[str, Any]:
    from safetensors.torch import load

    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return dict(flat({**dict(sorted(load(data).items())), "header": header.get("__metadata__")}))


def _read_numpy(data: bytes) -> dict[str, Any]:
    import numpy as np

    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    arrays = dict(loaded) if hasattr(loaded, "files") else {"array": loaded}
    for name, array in arrays.items():
        if array.shape == () and array.dtype.kind == "U":
            with suppress(ValueError):
                arrays[name] = json.loads(array.item())
    return dict(flat(arrays))


def _read_parquet(data: bytes) -> dict[str, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    return {"schema": str(table.schema), **dict(flat(table.to_pydict()))}


def _read_h5(data: bytes) -> dict[str, Any]:
    import h5py

    values: dict[str, Any] = {}
    with h5py.File(io.BytesIO(data)) as file:
        file.visititems(
            lambda name, item: (
                values.__setitem__(name, item[()])
                if isinstance(item, h5py.Dataset) and item.shape is not None  # not an empty one
                else None
            )
        )
    return values


def _read_page(data: bytes) -> dict[str, Any]:
    text = re.sub(r"<(script|style)\b.*?</\1>|data:[^\"']+", " ", data.decode(), flags=re.DOTALL)
    text = DURATION.sub(" ", html.unescape(re.sub(r"<[^>]+>", " ", text)))
    return {
        f"number {i}": number
        for i, number in enumerate(re.findall(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?", text))
    }


READERS = {
    **dict.fromkeys(("tsv", "csv"), _read_table),
    **{"json": _read_json, "jsonl": _read_json_lines, "yaml": _read_yaml, "html": _read_page},
    **dict.fromkeys(("ckpt", "pt"), _read_torch),
    **dict.fromkeys(("npz", "npy"), _read_numpy),
    **{"safetensors": _read_safetensors, "parquet": _read_parquet, "h5ad": _read_h5},
}


# Comparing two versions


def differences(case: str, old: Path, new: Path, replaced: Mapping[str, str]) -> list[str]:
    """What differs in a case, as lines; what is intended is left out."""
    pairs = [
        json.loads((world / case / OWN / "case.json").read_text(encoding="utf-8"))["commands"]
        for world in (old, new)
    ]
    found = [
        f"status {b['status']} instead of {a['status']}: {' '.join(b['words'])}"
        for a, b in zip(*pairs, strict=False)
        if a["status"] != b["status"] and not intended(case, "", "status")
    ]
    before = named(old / case)
    after = named(new / case)
    interrupted = any(each["words"][:1] == ["interrupted"] for each in pairs[1])
    for file in sorted({*before, *after}):
        if interrupted and (len(pairs[1]) == 1 or file.startswith(OWN)):
            continue  # how far it came differs
        if file not in before or file not in after:
            if not intended(case, file, ""):
                found.append(f"{file}: only in the {'old' if file in before else 'new'} version")
            continue
        first, second = (contents(path, replaced) for path in (before[file], after[file]))
        unequal = [
            key
            for key in {**first, **second}
            if not same(first.get(key), second.get(key)) and not intended(case, file, key)
        ]
        if unequal:
            key = unequal[0]
            shown = f"{brief(first.get(key))} -> {brief(second.get(key))}"
            found.append(f"{file}: {len(unequal)} differ; {key}: {shown}")
    return found


def named(folder: Path) -> dict[str, Path]:
    """The files of a case by their names, in which digests are replaced by numbers."""
    found: dict[str, Path] = {}
    for file in files_of(folder):
        name = re.sub(r"-[0-9a-f]{12}\.", "-DIGEST.", file)
        while name in found:
            name += "+"
        found[name] = folder / file
    return found


def shapes(case: str, folder: Path) -> dict[str, str]:
    """A digest of each file of a case: keys, columns, names of records and integers."""
    found = {}
    for name, path in named(folder).items():
        if path.parent.name != OWN:
            values = contents(path, {}).items()
            kept = {k: _kept(k, value) for k, value in values if not intended(case, name, k)}
            text = json.dumps({key: value for key, value in kept.items() if value is not None})
            found[name] = hashlib.sha256(text.encode()).hexdigest()[:10]
    return found


def _kept(key: str, value: Any) -> Any:
    """What is kept of a value, None if nothing."""
    if hasattr(value, "dtype"):
        return [str(value.dtype), list(value.shape)]
    if isinstance(value, bool | int) or key.endswith((" keys", "columns", "schema")):
        return value
    if isinstance(value, str) and value.startswith(">"):
        return value.split()[0]
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return value
    return None


def intended(case: str, file: str, key: str) -> bool:
    """Whether a difference is one of `INTENDED`."""
    file = file.removeprefix(f"{OWN}/")
    return any(each.covers(case, file, key) for each in INTENDED)


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; nan equals nan."""
    if hasattr(a, "dtype") and hasattr(b, "dtype"):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tobytes() == b.tobytes() or bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and math.isnan(a) and math.isnan(b):
        return True
    return bool(a == b)


def brief(value: Any) -> str:
    """A value for a line."""
    if hasattr(value, "dtype") and value.dtype.kind in "iufb":
        return f"{value.dtype}{list(value.shape)} of mean {float(abs(value).mean()):.8g}"
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:120]}...{text[-30:]}"


# The command


def unpacked(commit: str, cache: Path) -> Path:
    """A folder for the commit, whose `tree` has its files."""
    git = functools.partial(subprocess.run, cwd=ROOT, check=True, capture_output=True)
    sha = git(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"]).stdout.decode().strip()
    home = cache / sha[:12]
    if not (home / "tree").is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            files = git(["git", "archive", sha]).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=files, check=True)
            shutil.copytree(folder, home / "tree")
    return home


def lacking(cases: Iterable[Case], results: Path) -> list[Case]:
    """The cases without results."""
    kept = {case.name: results / case.name / OWN / "digest" for case in cases}
    return [
        case
        for case in cases
        if not kept[case.name].is_file()
        or kept[case.name].read_text(encoding="utf-8") != case.digest
    ]


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n\n")[0])
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--only", nargs="+", default=(), help="cases that begin with these words")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / f"dnadiff-golden-{os.getuid()}",
        help="folder for the results of COMMIT and for work (default: %(default)s)",
    )
    parser.add_argument("--record", action="store_true", help="write golden.json")
    parser.add_argument("--keep", type=Path, help="folder for the results of this version")
    parser.add_argument("--list", action="store_true", help="print the command lines")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    cases = read_cases(LISTED.read_text(encoding="utf-8"))
    chosen_cases = [cases[name] for name in chosen(cases, options.only)]
    if options.list:
        for case in chosen_cases:
            print(f"{case.name}: {' && '.join(shlex.join(words) for words in case.commands)}")
        return 0
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    needed = [cases[name] for name in with_needs(cases, (case.name for case in chosen_cases))]
    with open(cache / "lock", "w") as lock, tempfile.TemporaryDirectory() as temporary:
        fcntl.flock(lock, fcntl.LOCK_EX)  # all versions run in the same folder
        new = (options.keep or Path(temporary)).resolve()
        if options.against is None:
            run_version(Version(ROOT, cache / "world", new, new), needed, options.jobs)
            kept = json.loads(KEPT.read_text(encoding="utf-8"))
            found = {c.name: unlike(kept.get(c.name, {}), c.name, new / c.name) for c in needed}
            return report(found)
        home = unpacked(options.against, cache)
        old = home / "results"
        if missing := lacking(needed, old):
            print(f"{len(missing)} cases of {options.against}", flush=True)
            run_version(Version(home / "tree", cache / "world", old, old), missing, options.jobs)
        if options.record:
            kept = {c.name: shapes(c.name, old / c.name) for c in needed if is_kept(c)}
            KEPT.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")
            return 0
        run_version(Version(ROOT, cache / "world", new, old), chosen_cases, options.jobs)
        replaced = {str(home / "tree"): "ROOT", str(ROOT): "ROOT"}
        return report(
            {case.name: differences(case.name, old, new, replaced) for case in chosen_cases}
        )


def is_kept(case: Case) -> bool:
    """Whether a case has the same files in each run: not if it was interrupted."""
    return not any(words[:1] == ("interrupted",) for words in case.commands)


def unlike(kept: Mapping[str, str], case: str, folder: Path) -> list[str]:
    """The files of a case that differ from golden.json, or are missing there or here."""
    found = shapes(case, folder) if kept else {}
    return [
        f"{file}: other keys, columns, names or integers, or not in both"
        for file in sorted({*kept, *found})
        if kept.get(file) != found.get(file) and not intended(case, file, "")
    ]


def report(found: Mapping[str, list[str]]) -> int:
    """Print what differs; the exit status."""
    for name, lines in found.items():
        for line in lines:
            print(f"{name}: {line}")
    bad = sum(map(bool, found.values()))
    print(f"{len(found)} cases, {bad} differ")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
