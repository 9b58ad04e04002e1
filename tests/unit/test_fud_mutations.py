"""The mutation list of spec fud.md: each of these faults, put into a copy of the code, turns a named test red."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MUTATIONS = {
    "noise scaled by the variance": (
        "diffusion/sampler.py",
        "mean + variance.sqrt() * self._noise.next()",
        "mean + variance * self._noise.next()",
        "test_diffusion_exact.py",
    ),
    "kept features one level off": (
        "diffusion/sampler.py",
        "preset, kept = self._preset, self._schedule.kept(step.t)",
        "preset, kept = self._preset, self._schedule.kept(step.after)",
        "test_diffusion_sampler.py",
    ),
    "no paste at the end": (
        "diffusion/sampler.py",
        "return torch.where(self._keep, self._known, x) if self._preset.hard else x",
        "return x",
        "test_diffusion_sampler.py",
    ),
    "towards the class": ("diffusion/guidance.py", "gain = -log_p if", "gain = log_p if", "test_diffusion_guidance.py"),
    "label for prediction": (
        "fud_sampling.py",
        'settings.target == "predicted"',
        'settings.target != "predicted"',
        "test_fud_stages.py::test_the_class_is_the_predicted_one_or_the_label_as_asked",
    ),
    "pixels in the wrong range": (
        "fud.py",
        "images=2 * scene.pixels - 1",
        "images=scene.pixels",
        "test_fud.py::test_removed_pixels_fit_the_kept_ones_in_the_same_units",
    ),
    "a double softmax": (
        "fud.py",
        "logits.float().softmax(1).gather",
        "logits.float().softmax(1).softmax(1).gather",
        "test_fud.py::test_confidence_is_the_softmax_of_each_row_s_own_class",
    ),
    "a class index that is not gathered": (
        "fud.py",
        "softmax(1).gather(1, target[:, None])[:, 0]",
        "softmax(1)[:, target][0]",
        "test_fud.py::test_confidence_is_the_softmax_of_each_row_s_own_class",
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("fault", MUTATIONS)
def test_a_fault_of_the_list_is_seen(fault: str, tmp_path: Path) -> None:
    file, old, new, check = MUTATIONS[fault]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "stages", "params"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "src/faithline" / file
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is not in {file}, or not once"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/unit/{check}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "FAITHLINE_THREADS": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    path.write_text(text.replace(old, new))
    done = run()
    assert done.returncode == 1, done.stdout[-2000:]
    assert " failed" in done.stdout
    path.write_text(text)
    assert run().returncode == 0
