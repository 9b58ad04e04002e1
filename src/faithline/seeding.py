"""Random numbers that depend on what they are for, never on batch, shard or worker."""

import ctypes
import hashlib
import os
import random

import numpy as np
import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of `mallopt(3)`."""
_LARGEST_KEPT = 1 << 30


def derive(seed: int, *words: str | int) -> int:
    """A 63-bit seed for one purpose: the same seed and words always give the same number, other words an unrelated one."""
    text = "\x1f".join([str(seed), *(str(word) for word in words)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(seed: int, *words: str | int) -> np.random.Generator:
    """A NumPy generator for one purpose (see `derive`)."""
    return np.random.Generator(np.random.PCG64(derive(seed, *words)))


def torch_generator(seed: int, *words: str | int) -> torch.Generator:
    """A CPU torch generator for one purpose (see `derive`)."""
    return torch.Generator().manual_seed(derive(seed, *words))


def setup(seed: int) -> None:
    """Seed every global generator and make torch deterministic; the number of threads is fixed for the whole process.

    `FAITHLINE_THREADS` sets the threads (default: all cores). Bits agree between machines of the same kind and thread count.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Else MKL computes equal rows of one matrix product with different last bits, by their place in the batch.
    os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.set_num_threads(int(os.environ.get("FAITHLINE_THREADS") or os.cpu_count() or 1))
    # The same switch as `use_deterministic_algorithms(True)`, which would import the compiler: seconds in every stage.
    torch.set_deterministic_debug_mode("error")
    # Determinism would also fill every fresh tensor with NaN; nothing here reads uninitialised memory, and it costs a tenth.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let the allocator reuse freed memory instead of giving it back: else each large tensor is fresh pages, zeroed by the kernel.

    On a CPU that is most of the time of a batch of photographs. Only glibc has the switches.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for switch in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(switch, _LARGEST_KEPT)


def device() -> torch.device:
    """Where tensors live: `FAITHLINE_DEVICE` if set, else the first GPU, else the CPU."""
    name = os.environ.get("FAITHLINE_DEVICE") or "auto"
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
