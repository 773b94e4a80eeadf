"""Who lives where and who may know whom (docs/architecture.md), held against the code itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGES = ("monitor_core", "dashboard")
GENERATED = {"monitor_core/formats/monitor_pb2.py"}
TOP_LEVEL = {
    "pyproject.toml", "dashboard", "monitor_core", "assets", "tests", "sample_logs", "README.md", "README_CN.md",
    "docs", "benchmarks", "examples", "CHANGELOG.md", "LICENSE", ".ci", ".gitignore",
}  # fmt: skip

#: Third-party package -> the files (or folders) that may import it. A new use is a decision, made here.
OWNERS: dict[str, tuple[str, ...]] = {
    "mindspore": ("monitor_core/mindspore/",),
    "numpy": (
        "monitor_core/batch.py", "monitor_core/formats/", "monitor_core/detectors/", "monitor_core/mindspore/",
        "monitor_core/collectors/", "monitor_core/logs.py", "dashboard/store/", "dashboard/query.py",
        "dashboard/overlays.py", "dashboard/stream.py", "dashboard/ingest/",
    ),
    "pandas": ("monitor_core/logs.py", "monitor_core/detectors/"),
    "orjson": ("monitor_core/formats/json_array.py", "monitor_core/formats/protobuf.py", "dashboard/stream.py"),
    "google": ("monitor_core/formats/protobuf.py", "monitor_core/formats/payload.py"),
    "psutil": ("monitor_core/collectors/", "dashboard/ingest/"),
    "yaml": ("monitor_core/config.py", "monitor_core/config_file.py"),
    "tomllib": ("monitor_core/config.py", "monitor_core/config_file.py"),
    "tomli": ("monitor_core/config.py", "monitor_core/config_file.py"),
    "pyarrow": ("dashboard/store/",),
    "watchdog": ("dashboard/ingest/watch.py",),
    "dash": ("dashboard/app.py", "dashboard/layout.py", "dashboard/callbacks.py", "dashboard/panels/"),
    "dash_ag_grid": ("dashboard/layout.py", "dashboard/panels/"),
    "dash_mantine_components": ("dashboard/layout.py", "dashboard/panels/"),
    "plotly": ("dashboard/layout.py", "dashboard/panels/"),
    "flask": ("dashboard/app.py", "dashboard/security.py", "dashboard/stream.py", "dashboard/receive.py"),
    "werkzeug": ("dashboard/app.py", "dashboard/security.py"),
    "flask_compress": ("dashboard/app.py",),
    "waitress": ("dashboard/app.py", "dashboard/cli.py"),
}  # fmt: skip

#: Folder or file -> own modules that it must never import (prefixes).
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "monitor_core/": ("dashboard",),
    "dashboard/": (
        "monitor_core.monitor", "monitor_core.writers", "monitor_core.collectors", "monitor_core.mindspore",
        "monitor_core.buffer",
    ),
    "monitor_core/formats/": ("monitor_core.writers", "monitor_core.monitor", "monitor_core.config"),
    "monitor_core/detectors/": ("monitor_core.formats", "monitor_core.writers", "monitor_core.monitor"),
    "monitor_core/collectors/": ("monitor_core.monitor", "monitor_core.writers", "monitor_core.formats"),
    "dashboard/store/": ("dashboard.ingest", "dashboard.panels", "dashboard.app"),
    "dashboard/ingest/": ("dashboard.panels", "dashboard.app", "dashboard.stream", "dashboard.layout"),
    "dashboard/query.py": ("dashboard.ingest", "dashboard.panels", "dashboard.app"),
    "dashboard/panels/": ("dashboard.ingest", "dashboard.app"),
}  # fmt: skip

#: The one part of the dashboard that writes may know the writers.
EXCEPTIONS = {(f"dashboard/{name}.py", "monitor_core.writers") for name in ("receive", "receive_names")}

#: Pure files open nothing, read no clock and log nothing.
PURE = (
    "monitor_core/record.py", "monitor_core/batch.py", "monitor_core/limits.py", "monitor_core/errors.py",
    "monitor_core/manifest.py", "monitor_core/formats/", "monitor_core/detectors/", "dashboard/query.py",
    "dashboard/ingest/tail.py", "dashboard/store/", "dashboard/settings.py",
)  # fmt: skip
IMPURE_MODULES = {"time", "logging", "socket", "threading", "os", "pathlib", "io", "tempfile", "subprocess"}
#: A store is shared between threads, and settings name files: each exception with its reason.
IMPURE_ALLOWED = {
    ("dashboard/store/", "threading"),  # one lock between the ingest thread and readers
    ("dashboard/store/spill.py", "pathlib"),  # the one module of the store that touches the disk
    ("dashboard/store/spill.py", "tempfile"),  # its directory outside the log directories
    ("dashboard/store/evict.py", "logging"),  # a budget that cannot be held is said once
    ("dashboard/settings.py", "pathlib"),  # paths as values
}

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
#: The two places in which a broad except protects something: the hook boundary and the thread loops.
BROAD_EXCEPT = {
    "monitor_core/mindspore/callback.py", "monitor_core/monitor.py", "monitor_core/writers/push.py", "dashboard/ingest/ingester.py",
}  # fmt: skip


def product_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module with how many dots it begins with; ``from a import b`` gives ``a.b`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module, node.level
            yield from ((f"{module}.{alias.name}", node.level) for alias in node.names)


def under(name: str, places: tuple[str, ...] | set[str]) -> bool:
    return any(name == place or (place.endswith("/") and name.startswith(place)) for place in places)


def parsed() -> list[tuple[str, ast.Module]]:
    return [(name_of(path), ast.parse(path.read_text("utf-8"))) for path in product_files()]


def test_only_the_agreed_top_level() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0].strip('"') for line in tracked.stdout.splitlines()} <= TOP_LEVEL


def test_imports_are_absolute() -> None:
    assert [(name, module) for name, tree in parsed() for module, level in imports_of(tree) if level] == []


def test_third_party_packages_stay_with_their_owners() -> None:
    wrong = [
        (name, root)
        for name, tree in parsed()
        if name not in GENERATED
        for root in {module.split(".")[0] for module, _ in imports_of(tree)}
        if root not in sys.stdlib_module_names | {*PACKAGES, "__future__", ""} | ({"tomllib"} - set(OWNERS))
        if not under(name, OWNERS.get(root, ()))
    ]
    assert wrong == [], "give the package an owner in OWNERS, or move the import to its owner"


def test_nobody_imports_what_is_not_theirs_to_know() -> None:
    wrong = [
        (name, module)
        for name, tree in parsed()
        for place, modules in FORBIDDEN.items()
        if under(name, (place,))
        for module, _ in imports_of(tree)
        if any((module == bad or module.startswith(bad + ".")) and (name, bad) not in EXCEPTIONS for bad in modules)
    ]
    assert wrong == []


def test_pure_files_touch_nothing_outside() -> None:
    wrong = []
    for name, tree in parsed():
        if not under(name, PURE) or name in GENERATED:
            continue
        for module, _ in imports_of(tree):
            root = module.split(".")[0]
            allowed = any(under(name, (place,)) and root == what for place, what in IMPURE_ALLOWED)
            if root in IMPURE_MODULES and not allowed:
                wrong.append((name, module))
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        wrong += [(name, func.id) for func in calls if isinstance(func, ast.Name) and func.id in {"open", "print"}]
    assert wrong == []


def test_no_import_circles() -> None:
    modules = {name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): p for p in product_files()}
    graph = {module: set[str]() for module in modules}
    for module, path in modules.items():
        tree = ast.parse(path.read_text("utf-8"))
        top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for node in top:
            graph[module] |= {found for found, _ in imports_of(node) if found in modules and found != module}
    seen: dict[str, int] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert seen.get(module) != 1, " -> ".join((*trail, module))
        if module in seen:
            return
        seen[module] = 1
        for other in sorted(graph[module]):
            visit(other, (*trail, module))
        seen[module] = 2

    for module in sorted(graph):
        visit(module, ())


def test_files_and_functions_stay_small() -> None:
    too_long = [
        name_of(p) for p in product_files()
        if name_of(p) not in GENERATED and len(p.read_text("utf-8").splitlines()) > MAX_FILE_LINES
    ]  # fmt: skip
    functions = [
        (name, node.name, node.end_lineno - node.lineno + 1)
        for name, tree in parsed()
        if name not in GENERATED
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
    ]
    lengths = sorted(length for _, _, length in functions)
    assert too_long == []
    assert [f for f in functions if f[2] > MAX_FUNCTION_LINES] == []
    assert lengths[int(len(lengths) * 0.9)] <= 25, "nine functions of ten fit 25 lines"


def test_a_broad_except_stands_only_where_it_protects() -> None:
    found = set()
    for name, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                caught = "" if node.type is None else ast.unparse(node.type)
                if node.type is None or {"Exception", "BaseException"} & set(caught.strip("()").split(", ")):
                    found.add(name)
    assert found <= BROAD_EXCEPT


def test_every_package_is_in_the_wheel() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"])
    present = {name_of(path.parent).replace("/", ".") for path in product_files() if path.name == "__init__.py"}
    assert listed == present | {"dashboard.assets"}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import monitor_core", {"mindspore", "pandas", "numpy", "dash", "flask", "watchdog", "pyarrow"}),
        ("import dashboard.cli", {"mindspore", "pandas", "dash", "plotly", "pyarrow"}),
        ("import dashboard.tools", {"mindspore", "pandas", "dash", "plotly", "pyarrow"}),
        ("import dashboard.app", {"mindspore"}),
    ],
)
def test_heavy_packages_are_not_loaded_before_they_are_needed(statement: str, absent: set[str]) -> None:
    code = f"{statement}; import sys; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(out.split()) & absent == set()
