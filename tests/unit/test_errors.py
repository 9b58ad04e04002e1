"""A fault that the user can mend is one line; a bug of ours keeps its traceback."""

import os
import subprocess
import sys

import pytest

from faithline.errors import run_stage


def test_run_stage_turns_an_expected_fault_into_one_line() -> None:
    code = "from faithline.errors import *\ndef f(): raise ArtifactError('x is missing')\nrun_stage(f)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "src"})
    assert (done.returncode, done.stderr) == (1, "error: x is missing\n")


def test_run_stage_keeps_the_traceback_of_a_bug() -> None:
    with pytest.raises(KeyError):
        run_stage(lambda: {}["bug"])
