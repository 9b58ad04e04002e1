"""Rules of the code that no linter knows."""

import ast
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from faithline import config
from faithline.metrics.catalogue import METRICS

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "stages").glob("*.py")])
STAGES = sorted((ROOT / "stages").glob("*.py"))

UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "eval", "exec"}
UNSAFE_KEYWORDS = {"trust_remote_code"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def literals(call: ast.Call) -> set[tuple[str | None, object]]:
    """Keywords of a call that have a constant, with it."""
    return {(keyword.arg, keyword.value.value) for keyword in call.keywords if isinstance(keyword.value, ast.Constant)}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What could run code that came with data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield node.module or ""
        elif isinstance(node, ast.Call):
            if (called := dotted(node.func)) in UNSAFE_CALLS:
                yield called
            if called == "torch.load" and ("weights_only", True) not in literals(node):
                yield "torch.load"  # which then may run what the file says
            for keyword in node.keywords:
                if keyword.arg in UNSAFE_KEYWORDS:
                    yield keyword.arg
            if any(keyword.arg == "allow_pickle" for keyword in node.keywords) and ("allow_pickle", False) not in literals(node):
                yield "allow_pickle"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_nothing_unpickles(path: Path) -> None:
    found = list(unsafe(ast.parse(path.read_text())))
    assert not found, f"{name(path)}: {found}"


def test_one_file_reads_what_torch_saved_and_params_are_read_by_a_safe_loader() -> None:
    """test_checkpoints.py hands that file a pickle that would run code."""
    assert [name(path) for path in SOURCES if "torch.load(" in path.read_text()] == ["src/faithline/checkpoints.py"]
    assert issubclass(config._UniqueKeyLoader, yaml.SafeLoader)
    with pytest.raises(config.ConfigError, match="could not determine a constructor"):
        config.parse("seed: !!python/object/apply:os.getcwd []")


def test_the_search_for_unsafe_calls_finds_them() -> None:
    code = """
import pickle, joblib
from dill import loads
torch.load(f)
torch.load(f, weights_only=False)
torch.load(f, weights_only=flag)
torch.load(f, map_location="cpu", weights_only=True)
yaml.load(t)
np.load(f, allow_pickle=False)
np.load(f, allow_pickle=True)
m(trust_remote_code=True)
"""
    expected = ["pickle", "joblib", "dill", *["torch.load"] * 3, "yaml.load", "allow_pickle", "trust_remote_code"]
    assert sorted(unsafe(ast.parse(code))) == sorted(expected)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=name)
def test_init_files_import_nothing_of_ours(path: Path) -> None:
    """This earns them their exemption from the deps of stages."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{name(path)}: an empty file draws a DVC warning at every run"
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    if name(path) == "src/faithline/__init__.py":
        assert {node.module for node in imports if isinstance(node, ast.ImportFrom)} == {"importlib", "typing"}
    else:
        assert len(tree.body) == 1, f"{name(path)}: a docstring and nothing else"


def run(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True)


def test_importing_the_package_loads_nothing() -> None:
    done = run(
        "import sys; before = set(sys.modules); import faithline; dir(faithline); print(sorted(set(sys.modules) - before))"
    )
    loaded = {module.split(".")[0] for module in ast.literal_eval(done.stdout)}
    assert loaded - sys.stdlib_module_names == {"faithline"}
    assert "faithline.config" not in ast.literal_eval(done.stdout)


def test_public_names_are_there() -> None:
    import faithline as fl

    assert {"MaskedModel", "Baseline", "attribute", "score", "load_explainer", "patch_features"} <= set(dir(fl))
    for public in fl.__all__:
        assert callable(getattr(fl, public)), public
    with pytest.raises(AttributeError, match="no attribute 'atribute'"):
        fl.atribute  # noqa: B018


NAMES = {"attribute": ["digits_cnn", "lime"], "explain": ["digits_cnn", "deepfaith"], "fud": ["digits_cnn", "lime"], "report": []}
"""What a stage script is started with, where that is not a task alone."""

READ_PARAMS = [path for path in STAGES if path.stem != "manifest"]


@pytest.mark.parametrize("path", READ_PARAMS, ids=name)
def test_a_bad_value_stops_each_stage_before_torch(path: Path, tmp_path: Path) -> None:
    text = (ROOT / "params.yaml").read_text()
    broken = re.sub(r"quantile: [0-9.]+", "quantile: 1.7", text)
    assert broken != text
    (tmp_path / "params.yaml").write_text(broken)
    (tmp_path / "src").symlink_to(ROOT / "src")
    done = run(
        "import runpy, sys\n"
        f"sys.argv = {[str(path), *NAMES.get(path.stem, ['digits_cnn'])]}\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n    print(sorted({'torch', 'polars', 'pyarrow', 'numpy', 'captum'} & set(sys.modules)))",
        tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines() == [
        "params.yaml: 1 invalid value(s); nothing was run",
        "  curate.quantile = 1.7: Input should be less than 0.5",
    ]
    assert done.stdout.strip() in ("", "[]"), f"{name(path)} imports {done.stdout} before it reads params.yaml"
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("params.yaml", "src")] == [], "nothing was made"


@pytest.mark.parametrize(
    ("stage", "words", "message"),
    [
        ("bank", ["nowhere"], "error: no task 'nowhere' in params.yaml; there are: affairs_mlp"),
        ("attribute", ["digits_cnn", "magic"], "error: no method 'magic' in params.yaml; there are: saliency"),
        ("attribute", ["digits_cnn", "exact_shapley"], "error: no method 'exact_shapley' in params.yaml"),  # known, not used
        ("explain", ["digits_cnn", "lime"], "error: no explainer 'lime' in params.yaml; there are: deepfaith"),
        ("explain", ["digits_cnn"], "usage: python stages/explain.py TASK EXPLAINER"),
    ],
)
def test_a_stage_started_with_a_name_that_params_do_not_know(stage: str, words: list[str], message: str) -> None:
    command = [sys.executable, f"stages/{stage}.py", *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", STAGES, ids=name)
def test_stages_are_thin_and_do_not_import_each_other(path: Path) -> None:
    tree = ast.parse(path.read_text())
    others = {p.stem for p in STAGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "stages"
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & others, name(path)
    assert len(path.read_text().splitlines()) <= 80, f"{name(path)}: logic belongs into the library"


def test_metrics_of_the_schema_are_those_of_the_catalogue() -> None:
    assert set(typing.get_args(config.Metric)) == set(METRICS)
    for key, metric in METRICS.items():
        assert metric.direction in ("higher", "lower"), key
        assert metric.low < metric.high, key
        assert metric.meaning, key
    assert {key for key, metric in METRICS.items() if metric.direction == "lower"} == {"del", "pos"}


def test_methods_of_the_schema_have_a_file_each() -> None:
    folder = ROOT / "src/faithline/attributions"
    with_method = {p.stem for p in folder.glob("*.py") if re.search(r"^MODALITIES\b", p.read_text(), re.M)}
    assert set(config.Methods.model_fields) == with_method


@pytest.mark.parametrize(
    "preset",
    ["params.yaml", *(f"params/{name}.yaml" for name in ("smoke", "sensitivity", "full", "paper", "photos", "photos_gpu"))],
)
def test_methods_fit_the_modality_they_are_listed_under(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from faithline.attributions.run import load_method

    monkeypatch.chdir(ROOT)
    params = config.parse(Path(preset).read_text(), preset)
    for modality in ("table", "text", "image"):
        section = getattr(params, modality)
        for method in section.methods.names():
            module = load_method(method)
            assert modality in module.MODALITIES, f"{preset}: {modality}.methods.{method}"
            if module.MASKS is not None and module.MASKS[1] == "all":
                assert all(params.tasks[task].bank.exact for task in section.tasks), f"{preset}: {method} needs exact tables"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_path_of_a_machine(path: Path) -> None:
    assert not re.search(r"""["'](/home|/root|/work|/tmp|/Users|[A-Z]:\\)""", path.read_text()), name(path)
