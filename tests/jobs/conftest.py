import json

import pytest


def contents(folder):
    """The bytes of each file, without the times in a JSON file."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name.endswith(".json"):
            content = {key: value for key, value in json.loads(content).items() if key != "seconds"}
        elif path.name.endswith(".html"):
            content = content.replace(f"{folder.name}/".encode(), b"")
        found[path.name] = content
    return found


@pytest.fixture
def merged(cli, tmp_path):
    """merged(command, count, *args): the same files with and without shards; `OUT` in an argument
    is the folder of outputs."""

    def compare(command, count, *args):
        def run(name, folder, *more):
            status, _, err = cli(
                name,
                *(a.replace("OUT", folder) for a in (*args, *more) if name != "merge" or a in more),
            )
            assert status == 0, err
            return err

        run(command, "whole")
        for number in (*range(2, count + 1), 1):
            run(command, "parts", f"shard={number}/{count}")
        output = next(a for a in args if a.startswith("output="))
        run("merge", "parts", output)
        whole, parts = contents(tmp_path / "whole"), contents(tmp_path / "parts")
        assert parts.keys() == whole.keys()
        for name in whole:
            assert parts[name] == whole[name], name
        return whole

    return compare
