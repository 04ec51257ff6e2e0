"""Files for packaging agree with pyproject.toml and with the commands."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from dnadiff.commands import COMMANDS
from dnadiff.config import compose

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base", "typing-extensions": "typing_extensions"}  # other names there


def test_every_command_has_a_console_script():
    assert PROJECT["scripts"] == {f"dnadiff-{name.replace('_', '-')}": f"dnadiff.{name}:main" for name in COMMANDS}


def test_the_conda_recipe_has_the_same_commands_and_dependencies():
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(re.sub(r"{%.*?%}", "", re.sub(r"{{.*?}}", "x", text)))
    assert recipe["build"]["entry_points"] == [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    wanted = [re.fullmatch(r"([\w-]+)(\S*)", dependency).groups() for dependency in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == [f"python {PROJECT['requires-python']}", *(f"{CONDA.get(n, n)} {bound}" for n, bound in wanted)]
    assert "dnadiff" not in [entry.partition(" = ")[0] for entry in recipe["build"]["entry_points"]]  # MUMmer's
    assert f'version = "{PROJECT["version"]}"' in text


def test_every_dependency_has_a_lower_bound():
    extras = [dependency for group in PROJECT["optional-dependencies"].values() for dependency in group]
    required = [dependency for dependency in [*PROJECT["dependencies"], *extras] if not dependency.startswith("dnadiff[")]
    assert not [dependency for dependency in required if ">=" not in dependency]


@pytest.mark.parametrize("path", ["packaging/snakemake/Snakefile", "packaging/nextflow/main.nf"])
def test_command_lines_of_workflows_compose(path):
    text = re.sub(r'"\s*\n\s*"', "", (ROOT / path).read_text(encoding="utf-8"))  # strings that Python joins
    found = re.findall(r"python -m dnadiff\.(\w+) ([^\"\n]+)", text)
    assert {name for name, _ in found} == {"train", "evaluate", "variants"}
    for name, rest in found:
        overrides = shlex.split(re.sub(r"\$?{(?:params\.arguments)}", "", rest))
        compose(name, [re.sub(r"\$?{[\w.]+}", "x", each) for each in overrides], resolve=False)


def test_scripts_that_continuous_integration_runs_exist():
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 2
    for path in workflows:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        named = re.findall(r"scripts/\S+\.sh", "\n".join(lines))
        assert named and not [name for name in named if not (ROOT / name).is_file()]
        assert all("timeout-minutes" in job for job in jobs.values())


def test_the_locked_requirements_have_the_tested_versions():
    def pins(path):
        found = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        return {name.lower().replace("_", "-").replace(".", "-"): version for name, version in found}

    locked, tested = pins("packaging/uv/requirements.txt"), pins("constraints.txt")
    assert not {
        name: (version, tested[name]) for name, version in locked.items() if name != "triton" and tested.get(name, version) != version
    }
    needed = [re.match(r"[\w-]+", dependency)[0].lower() for dependency in PROJECT["dependencies"]]
    assert set(needed) <= set(locked)
