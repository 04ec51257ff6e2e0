"""Files for packaging agree with pyproject.toml, with the commands and with each other; scripts and
recipes refuse what they cannot do."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import dnadiff
from dnadiff.options.command import command_names, compose

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CONDA = {  # other names there
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "typing-extensions": "typing_extensions",
    "huggingface-hub": "huggingface_hub",
}
ONLY_CONDA = ["cxx-compiler"]  # compiles the scan; pip has no compilers
IMPORTED_AS = {
    "vl-convert-python": "vl_convert",
    "biopython": "Bio",
    "scikit-learn": "sklearn",
    "hydra-core": "hydra",
    "pyyaml": "yaml",
}
# Packages that come with a declared one, and are imported only next to it.
ACCOMPANIES = {"h5py": "anndata"}


def requirement(dependency):
    """Name and versions of a requirement, without its extras and markers."""
    return re.fullmatch(r"([\w-]+)(?:\[\w+\])?([^;\s]*).*", dependency).groups()


def declared(*extras):
    """The names of all dependencies and of those of the extras."""
    groups = [
        PROJECT["dependencies"],
        *(PROJECT["optional-dependencies"][extra] for extra in extras),
    ]
    return {requirement(dependency)[0] for group in groups for dependency in group}


def recipe():
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"{%.*?%}", "", re.sub(r"{{.*?}}", "x", text)))


def test_every_command_has_a_console_script():
    assert PROJECT["scripts"] == {
        f"dnadiff-{name.replace('_', '-')}": f"dnadiff.{name}:main" for name in command_names()
    }


def test_the_conda_recipe_has_the_same_commands_and_dependencies():
    found = recipe()
    assert found["build"]["entry_points"] == [
        f"{name} = {target}" for name, target in PROJECT["scripts"].items()
    ]

    def of_conda(dependencies):
        return [
            f"{CONDA.get(name, name)} {versions}"
            for name, versions in map(requirement, dependencies)
        ]

    python = f"python {PROJECT['requires-python']}"
    assert found["requirements"]["run"] == [python, *of_conda(PROJECT["dependencies"]), *ONLY_CONDA]
    assert found["requirements"]["host"] == [
        python,
        "pip",
        *of_conda(PYPROJECT["build-system"]["requires"]),
    ]
    assert "dnadiff" not in [
        entry.partition(" = ")[0] for entry in found["build"]["entry_points"]
    ]  # MUMmer's


def test_every_file_has_the_same_version():
    conda = (ROOT / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert [dnadiff.__version__, cited, *re.findall(r'{% set version = "(.+)" %}', conda)] == [
        PROJECT["version"]
    ] * 3


def test_every_dependency_has_a_lower_bound():
    extras = [
        dependency for group in PROJECT["optional-dependencies"].values() for dependency in group
    ]
    required = [
        dependency
        for dependency in [*PROJECT["dependencies"], *extras]
        if not dependency.startswith("dnadiff[")
    ]
    assert not [dependency for dependency in required if ">=" not in dependency]


def test_every_imported_package_is_a_dependency_or_an_extra():
    imported = set()
    for path in (ROOT / "dnadiff").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            imported |= {name.partition(".")[0] for name in names}
    imported -= {
        *sys.stdlib_module_names,
        "dnadiff",
        "_typeshed",
    }  # `_typeshed` exists for type checkers alone
    known = {
        IMPORTED_AS.get(name, name.replace("-", "_"))
        for name in declared(*PROJECT["optional-dependencies"])
    }
    assert imported - known == set(ACCOMPANIES) and set(ACCOMPANIES.values()) <= known


def test_frames_hub_files_and_configurations_need_no_extra():
    assert {"pandas", "huggingface-hub", "omegaconf"} <= declared()


def test_all_has_every_optional_feature_and_leaves_out_what_has_no_wheel():
    optional = set(PROJECT["optional-dependencies"]) - {
        "all",
        "test",
        "docs",
        "align",
        "explain",
        "cuda",
        "triton",
    }
    (inner,) = (
        each for each in PROJECT["optional-dependencies"]["all"] if each.startswith("dnadiff[")
    )
    named = re.search(r"\[(.*)\]", inner)[1].split(",")
    rest = [each for each in PROJECT["optional-dependencies"]["all"] if each != inner]
    # hatchling drops the marker of `dnadiff[EXTRA]; marker`.
    assert ";" not in inner and all("; " in each for each in rest)
    assert (
        {requirement(each)[0] for each in rest}
        == declared(*optional - set(named)) - declared()
        == {"constriction", "pyBigWig"}
    )
    assert set(rest) <= set(PROJECT["optional-dependencies"]["test"])


def test_the_package_says_that_it_has_type_hints():
    assert "Typing :: Typed" in PROJECT["classifiers"] and (ROOT / "dnadiff" / "py.typed").is_file()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists the files that git tracks")
def test_the_source_distribution_has_the_files_that_tests_read():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True, text=True
    ).stdout.split("\0")
    tracked = {name.partition("/")[0] for name in listed if name}
    assert set(included) == {
        f"/{name}" for name in tracked - {".gitignore", "pyproject.toml"}
    }  # hatchling adds these two


@pytest.mark.parametrize("path", ["packaging/snakemake/Snakefile", "packaging/nextflow/main.nf"])
def test_command_lines_of_workflows_compose(path):
    text = re.sub(
        r'"\s*\n\s*"', "", (ROOT / path).read_text(encoding="utf-8")
    )  # strings that Python joins
    found = re.findall(r"python -m dnadiff\.(\w+) ([^\"\n]+)", text)
    assert {name for name, _ in found} == {"train", "evaluate", "variants"}
    for name, rest in found:
        overrides = shlex.split(re.sub(r"\$?{(?:params\.arguments)}", "", rest))
        compose(name, [re.sub(r"\$?{[\w.]+}", "x", each) for each in overrides], resolve=False)


def test_workflows_declare_the_files_that_variants_writes(cli, tmp_path):
    (tmp_path / "g.fa").write_text(">chr1\n" + "ACGTTGA" * 40 + "\n")
    (tmp_path / "v.vcf").write_text(
        "##fileformat=VCFv4.2\n##contig=<ID=chr1>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
        "chr1\t9\t.\tC\tA\t.\t.\t.\n"
    )
    inputs = set(tmp_path.iterdir())
    for options in (
        ["vcf=v.vcf", "output=variants.tsv"],
        ["saturate=chr1:50-60", "output=region.tsv", "report=region.html"],
    ):
        status, _, errors = cli("variants", "checkpoint=ecoli", "genome=g.fa", *options)
        assert status == 0, errors
    written = {path.name for path in set(tmp_path.iterdir()) - inputs if path.is_file()}
    nextflow = re.findall(
        r"path '(\S+)'", (ROOT / "packaging" / "nextflow" / "main.nf").read_text(encoding="utf-8")
    )
    snakemake = re.findall(
        r'f"{OUT}/([\w.]+)",',
        (ROOT / "packaging" / "snakemake" / "Snakefile").read_text(encoding="utf-8"),
    )
    assert set(nextflow) - {"run", "evaluate.json"} == set(snakemake) == written


def test_scripts_that_continuous_integration_runs_exist():
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 2
    for path in workflows:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert content["permissions"] == {"contents": "read"}
        lines = [
            step["run"]
            for job in content["jobs"].values()
            for step in job["steps"]
            if "run" in step
        ]
        named = re.findall(r"scripts/\S+\.sh|packaging/\S+(?:file|\.txt)", "\n".join(lines))
        assert named and not [name for name in named if not (ROOT / name).is_file()]
        assert all("timeout-minutes" in job for job in content["jobs"].values())


def test_actions_are_pinned_by_commit_and_name_their_version():
    found = [
        line.partition("uses:")[2].strip()
        for path in (ROOT / ".github").rglob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    pinned = re.compile(r"([\w.-]+/[\w./-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+")
    actions = [pinned.fullmatch(line) for line in found]
    assert found and all(actions), [line for line in found if not pinned.fullmatch(line)]
    assert len({match[0] for match in actions}) == len({match[1] for match in actions})


def test_the_image_runs_as_a_user_and_others_write_to_none_of_its_folders():
    lines = (ROOT / "packaging" / "docker" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1].partition(":")[0] for line in lines if line.startswith("USER ")]
    assert users and users[-1] not in ("root", "0")
    last = max(number for number, line in enumerate(lines) if line.startswith("USER "))
    assert [line.split()[0] for line in lines[last + 1 :]] == ["CMD"]
    modes = re.findall(r"chmod (?:-R )?(\S+)", "\n".join(lines))
    assert modes and not [
        mode
        for mode in modes
        if re.search(r"(^|,)[ugoa]*[oa][ugoa]*[+=][^,]*w|^[+=]\w*w|[2367]$", mode)
    ]


def test_python_versions_of_classifiers_are_tested():
    jobs = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    )["jobs"]
    tested = {row["python"] for row in jobs["test"]["strategy"]["matrix"]["include"]}
    assert tested == {
        each[1]
        for each in (re.search(r":: Python :: (3\.\d+)$", line) for line in PROJECT["classifiers"])
        if each
    }


def test_the_locked_requirements_have_the_tested_versions():
    def pins(path):
        found = re.findall(
            r"^([\w.-]+)==([^\s;]+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        )
        return {
            name.lower().replace("_", "-").replace(".", "-"): version for name, version in found
        }

    locked, tested = pins("packaging/uv/requirements.txt"), pins("constraints.txt")
    assert not {
        name: (version, tested[name])
        for name, version in locked.items()
        if tested.get(name, version) != version
    }
    assert (
        locked["triton"] == tested["triton"]
    )  # that of PyTorch for CUDA; with another, torch from PyPI cannot be installed
    assert {name.lower() for name in declared()} <= set(locked)


def test_the_image_is_built_from_files_that_its_build_context_has():
    folder = ROOT / "packaging" / "docker"
    copied = re.findall(
        r"^COPY (.+) \S+$", (folder / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    names = {name for line in copied for name in line.split()}
    patterns = (folder / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[2:] for line in patterns if line.startswith("!/")} == names
    assert all((ROOT / name).exists() for name in names)
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "dnadiff"} <= names
    assert {
        name.split("/")[0]
        for name in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    } <= names


@pytest.mark.parametrize(
    "path", ["setup.sh", "test.sh", "docs.sh", "demo.sh", "release.sh", "bundled/train.sh"]
)
def test_scripts_run_on_macos_too(path):
    """Its tools are those of BSD, and its Bash is 3.2, for which an empty array is not set."""
    text = (ROOT / "scripts" / path).read_text(encoding="utf-8")
    code = "\n".join(
        line.partition(" #")[0] for line in text.splitlines() if not line.startswith("#")
    )
    assert not re.findall(
        r"\bnproc\b|realpath -e|readlink -f|mapfile|sed -i|declare -A|\$\{\w+(?:,,|\^\^)", code
    )
    may_be_empty = re.findall(r"\b(\w+)=\(\)", code)
    for name in may_be_empty:
        every, guarded = f'"${{{name}[@]}}"', f'${{{name}[@]+"${{{name}[@]}}"}}'
        assert code.count(every) == code.count(guarded) > 0


def shell(script, *arguments, **environment):
    """(exit status, output, errors) of a script of Bash."""
    path = {"PATH": "/usr/bin:/bin", **environment}
    process = subprocess.run(
        ["bash", str(script), *arguments], capture_output=True, text=True, env=path, timeout=60
    )
    return process.returncode, process.stdout, process.stderr


def python_that_says(path, version):
    """A program that runs Python code with another `sys.version_info`, and does not make
    environments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} '
        '"$2"\nexit 9\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path):
    """The scripts and what they read, without an environment."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "dnadiff").mkdir()
    for name in (
        "scripts/setup.sh",
        "scripts/release.sh",
        "pyproject.toml",
        "constraints.txt",
        "CHANGELOG.md",
        "dnadiff/renamed.py",
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("extras", "version", "least"),
    [("", (3, 10, 14), "3.11.0"), ("[test,docs]", (3, 11, 4), "3.11.5")],
)
def test_setup_refuses_a_python_that_is_too_old(extras, version, least, checkout):
    python = python_that_says(checkout / "bin" / "python", version)
    status, _, errors = shell(checkout / "scripts" / "setup.sh", extras, PYTHON=str(python))
    assert (
        status == 1
        and (
            f"Python {'.'.join(map(str, version))} is too old: dnadiff{extras} needs Python "
            f"{least} or later"
        )
        in errors
    )
    assert not (checkout / ".venv").exists()


def test_setup_checks_the_python_of_an_existing_environment(checkout):
    python_that_says(checkout / ".venv" / "bin" / "python", (3, 10, 14))
    status, _, errors = shell(checkout / "scripts" / "setup.sh", "")
    assert status == 1 and "Python 3.10.14 is too old" in errors
    asked = python_that_says(checkout / "bin" / "python", (3, 13, 1))
    status, _, errors = shell(checkout / "scripts" / "setup.sh", "", PYTHON=str(asked))
    assert (
        status == 1
        and f".venv has Python 3.10.14, but PYTHON={asked} is Python 3.13.1; remove .venv" in errors
    )


def test_a_release_has_the_version_of_the_package_and_a_section_in_the_changelog(checkout):
    script = checkout / "scripts" / "release.sh"
    stop = {
        "PYTHON": str(python_that_says(checkout / "bin" / "python", (3, 12, 0)))
    }  # ends where the first environment would be made
    version = dnadiff.__version__
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    status, _, errors = shell(script, "9.9.9", **stop)
    assert status == 1 and f"9.9.9 is not the version of the package, {version}" in errors
    status, _, errors = shell(script, f"v{version}", **stop)
    assert status == 1 and f"CHANGELOG.md has no section '## {version}'" in errors
    assert shell(script, **stop)[0] == 9  # no tag, no section
    (checkout / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2030-01-01)\n")
    assert shell(script, f"v{version}", **stop) == (9, "", "")
