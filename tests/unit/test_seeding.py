"""Random numbers depend on what they are for, and on nothing else."""

import pytest
import torch

from faithline import seeding


def test_a_seed_is_a_pinned_number() -> None:
    """Another number here means that every frozen result changes."""
    assert seeding.derive(0, "bank", "digits_cnn", 3) == seeding.derive(0, "bank", "digits_cnn", 3)
    assert 0 <= seeding.derive(0, "a") < 2**63
    assert seeding.derive(0, "a") == 3269621562527583764


def test_words_do_not_run_into_each_other() -> None:
    seeds = {
        seeding.derive(seed, *words) for seed in (0, 1) for words in (("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), ())
    }
    assert len(seeds) == 10


def test_generators_of_one_purpose_agree_and_of_two_do_not() -> None:
    draws = [torch.rand(4, generator=seeding.torch_generator(0, "x", i)) for i in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert seeding.numpy_generator(0, "x").random() == seeding.numpy_generator(0, "x").random()
    assert seeding.numpy_generator(0, "x").random() != seeding.numpy_generator(1, "x").random()


def test_setup_seeds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("FAITHLINE_THREADS", "1")
    try:
        seeding.setup(3)
        first = torch.rand(3)
        seeding.setup(3)
        assert torch.equal(first, torch.rand(3))
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def test_device_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAITHLINE_DEVICE", "cpu")
    assert seeding.device() == torch.device("cpu")
