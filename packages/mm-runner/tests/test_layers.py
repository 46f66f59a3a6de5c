"""Subpackages form layers: each imports what stands left of it, and nothing goes in circles."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import mm_runner

_ROOT = Path(mm_runner.__file__).parent
_LAYERS = (
    ("errors",),
    ("config", "registry", "checkpoint"),
    ("data", "model", "optim", "evaluator", "reporting"),
    ("hooks", "loops"),
    ("validation", "runner"),
    ("openmmlab", "tools", "diagnostics"),
    ("cli",),
)
_LEVELS = {name: level for level, names in enumerate(_LAYERS) for name in names}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports when it runs, in full."""
    inside = ["mm_runner", *path.relative_to(_ROOT).parts[:-1]]

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            holder = inside[: len(inside) - node.level + 1] if node.level else []
            module = ".".join([*holder, *([node.module] if node.module else [])])
            yield from (f"{module}.{one.name}" for one in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")))


def module_graph() -> dict[str, set[str]]:
    """Return which modules of the package import which, as ``{importer: {imported}}``."""
    files = {
        path.relative_to(_ROOT).with_suffix("").as_posix(): path for path in _ROOT.rglob("*.py")
    }
    modules = {
        name.removesuffix("/__init__").replace("/", "."): path for name, path in files.items()
    }
    found: dict[str, set[str]] = {name: set() for name in modules}
    for importer, path in modules.items():
        for name in imports_of(path):
            package, *parts = name.split(".")
            while parts and ".".join(parts) not in modules:
                parts.pop()  # a class or a function of the module
            if package == "mm_runner" and parts:
                found[importer].add(".".join(parts))
    return found


def layer_graph() -> dict[str, set[str]]:
    """Return which subpackages, and modules beside them, import which others."""
    found: dict[str, set[str]] = {}
    for importer, imported in module_graph().items():
        name = importer.partition(".")[0]
        found.setdefault(name, set()).update(one.partition(".")[0] for one in imported)
    return {importer: imported - {importer} for importer, imported in found.items()}


def test_each_subpackage_has_a_layer():
    subpackages = {path.parent.name for path in _ROOT.glob("*/__init__.py")}
    assert subpackages <= set(_LEVELS)


def test_no_subpackage_imports_what_stands_right_of_it():
    offences = {
        f"{importer} -> {name}"
        for importer, imported in layer_graph().items()
        for name in imported
        if importer in _LEVELS and _LEVELS.get(name, 0) > _LEVELS[importer]
    }
    assert not offences


def test_no_imports_go_in_circles():
    for edges in (layer_graph(), module_graph()):
        TopologicalSorter(edges).prepare()  # names the circle if there is one
