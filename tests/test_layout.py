"""The directions of imports, and other rules of the house that a reader relies on."""

import ast
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
ASSETS, RESOURCES = CHECKOUT / "engcmp_assets", CHECKOUT / "engcmp_resources"
LEAVES = {"engcmp_resources.errors", "engcmp_resources.canonical"}
# Modules that bind pure functions to files, engines, Dagster or the user. All others are pure.
GLUE_NAMES = {"step.py", "steps.py"}
GLUE_FILES = {
    *(f"kernel/{name}.py" for name in ("work", "study", "tables", "window_files")),
    *(
        f"captured_rows/{name}.py"
        for name in ("session", "journalled", "refusals", "rows", "running", "watching", "drift")
    ),
    "catalog/gathering.py",
    "comparisons/distances.py",
    "comparisons/reply_sides.py",
    "engine_launch/preconditions.py",
    "engine_launch/sides.py",
    "engine_launch/served.py",
    "engine_launch/serving.py",
    "throughput_events/session.py",
    "throughput_events/journalled.py",
    "throughput_events/cell_folders.py",
    "throughput_events/startup.py",
    "engine_versions/look.py",
    "long_output_checks/judging.py",
    "file_scores/reading.py",
    "frozen_protocol/engine_settings.py",
    "frozen_protocol/iteration_freeze.py",
    "engine_launch/journalled.py",
    "long_replies/journalled.py",
    "long_replies/session.py",
    "long_replies/stages.py",
    "prompt_set/replies.py",
    "prompt_set/outside.py",
    "prompt_set/making.py",
    "sources/published.py",
    "throughput_events/prompt_form.py",
    "export/bundle.py",
    "scores/windows.py",
    "export/contents.py",
}
# The modules that bind the project to Dagster.
DAGSTER_FILES = {
    f"{name}.py"
    for name in (
        "alerting",
        "graph",
        "event_log",
        "events",
        "observations",
        "automation",
        "upkeep",
        "lost_runs",
        "beats",
        "worker",
        "spreading",
        "partitions",
    )
}
GLUE_FOLDERS = {"commands", "audit"}


def modules(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


@cache
def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def is_glue(path: Path) -> bool:
    place = path.relative_to(ASSETS).as_posix()
    return (
        path.name in GLUE_NAMES
        or place in GLUE_FILES | DAGSTER_FILES
        or path.relative_to(ASSETS).parts[0] in GLUE_FOLDERS
    )


def test_every_file_that_is_named_as_glue_exists() -> None:
    assert all((ASSETS / name).is_file() for name in GLUE_FILES | DAGSTER_FILES)
    assert all((ASSETS / name).is_dir() for name in GLUE_FOLDERS)


def test_resources_import_nothing_else_of_ours() -> None:
    for path in modules(RESOURCES):
        ours = {name for name in imports_of(path) if name.startswith(("engcmp_assets", "definitions"))}
        assert not ours, f"{path}: {ours}"


def test_pure_functions_import_neither_dagster_nor_resources() -> None:
    pure = [path for path in modules(ASSETS) if not is_glue(path)]
    assert len(pure) > 10
    for path in pure:
        for name in imports_of(path):
            assert name.split(".")[0] != "dagster", path
            assert not name.startswith("engcmp_resources") or name in LEAVES, f"{path} imports {name}"


def test_only_the_graph_and_the_commands_know_dagster() -> None:
    allowed = DAGSTER_FILES - {"worker.py"} | {"run.py", "instance.py"}
    knowing = {path.name for path in modules(ASSETS) if any(n.split(".")[0] == "dagster" for n in imports_of(path))}
    assert knowing == allowed


def test_a_room_s_pure_functions_import_no_other_room() -> None:
    for path in modules(ASSETS):
        room = path.relative_to(ASSETS).parts[0]
        if is_glue(path) or room in ("kernel",) or path.parent == ASSETS:
            continue
        rooms = {n.split(".")[1] for n in imports_of(path) if n.startswith("engcmp_assets.")}
        # The conformance vector is of every measure and judgement: that is its purpose.
        others = rooms - {"kernel", room} if path.name != "conformance.py" else set()
        assert not others, f"{path} imports {others}"


@pytest.mark.parametrize("banned", ["torch", "pickle", "cloudpickle", "dill", "requests", "sympy"])
def test_no_module_imports(banned: str) -> None:
    for path in [*modules(ASSETS), *modules(RESOURCES)]:
        assert banned not in {name.split(".")[0] for name in imports_of(path)}, path


def test_no_module_is_longer_than_450_lines() -> None:
    for path in [*modules(ASSETS), *modules(RESOURCES)]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 450, path


def test_every_dependency_says_what_it_is_for() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    block = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    for line in block.splitlines():
        if line.strip().startswith('"') and any(sign in line for sign in ("==", ">=")):
            assert "#" in line, line


def test_every_test_file_has_a_name_of_its_own() -> None:
    """Two of one name cannot be collected together, and the run ends before its first test."""
    names = [path.name for path in (CHECKOUT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_a_helper_that_tests_import_by_its_bare_name_is_the_only_one_of_it() -> None:
    """pytest puts each folder of tests on the path: the first of two such files would be imported for both, or for neither."""
    folders: dict[str, set[Path]] = {}
    for path in (CHECKOUT / "tests").rglob("*.py"):
        for name in imports_of(path):
            if (path.parent / f"{name}.py").is_file() and not (path.parent / "__init__.py").exists():
                folders.setdefault(name, set()).add(path.parent)
    assert {name: found for name, found in folders.items() if len(found) > 1} == {}
