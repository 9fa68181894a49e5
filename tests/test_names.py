"""A class name stands for one thing in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "halo_weave"


def test_every_class_name_is_used_once():
    modules = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}
