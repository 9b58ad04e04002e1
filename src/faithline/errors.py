"""The error that a user can mend, and how a stage reports it. Light: a stage imports this before anything heavy."""

import gc
from collections.abc import Callable


class ArtifactError(RuntimeError):
    """A file is missing, damaged or not what its reader expects; the message names the file and says what makes it."""


def run_stage(stage: Callable[[], None]) -> None:
    """Run a stage's function; an expected fault becomes one line and exit status 1, without a traceback.

    Faults that are bugs of ours keep their traceback.
    """
    try:
        stage()
    except (ArtifactError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    gc.freeze()  # the interpreter's last collection would walk all of torch: a second a stage
