"""Texts that a user brings become token ids: the words, the vocabulary of the training split, and the networks that read them."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from faithline.config import TextFileSettings, TextTargetSettings
from faithline.dataset import Samples, assign_official
from faithline.errors import ArtifactError
from faithline.masking import token_features
from faithline.networks import TextLSTM
from faithline.seeding import numpy_generator
from faithline.targets import TextTransformer

PATTERN = r"[^\W_]+(?:'[^\W_]+)*"
"""Words of the lower-cased text, apostrophes within them kept; frozen with the task, so that new texts are cut alike."""
PAD, UNKNOWN = 0, 1
HEADS = 8
TOKEN_DROPOUT = 0.1


def text_samples(
    texts: Sequence[str],
    label: np.ndarray,
    official: np.ndarray,
    settings: TextFileSettings,
    seed: int,
    *,
    name: str,
    class_names: tuple[str, ...],
    source: str,
) -> Samples:
    """Samples of a text data set with an official test part; texts without a word and texts met before are dropped.

    The vocabulary is that of the training split alone, and no text is in two splits.

    Args:
        texts: N texts.
        label: Their classes, int (N,).
        official: `train` or `test` of each, (N,); validation is drawn from the former.
        settings: Counts, length and the least count of a known word.
        seed: Draws the splits.
        name: Of the data set, for the seed.
        class_names: One a class.
        source: Where the data comes from.

    Raises:
        ArtifactError: If the data has fewer texts than were asked for.
    """
    words = [re.findall(PATTERN, text.lower())[: settings.length] for text in texts]
    first = {text: number for number, text in reversed(list(enumerate(texts)))}
    kept = np.array([number for number, text in enumerate(texts) if words[number] and first[text] == number], dtype=np.int64)
    chosen, split, supervised = assign_official(
        official[kept],
        np.arange(len(kept)),
        {"train": settings.train, "validation": settings.validation, "test": settings.test},
        settings.supervised,
        numpy_generator(seed, name, "split"),
    )
    chosen = kept[chosen]
    found = [words[position] for position in chosen]
    vocabulary = fit_vocabulary([own for own, part in zip(found, split, strict=True) if part == "train"], settings.min_count)
    return Samples(
        x=encode(found, vocabulary, settings.length),
        label=torch.from_numpy(label[chosen].astype(np.int64)),
        split=split,
        supervised=supervised,
        features=token_features(settings.length, pad_id=PAD),
        class_names=class_names,
        feature_names=(),
        preprocessing={"vocabulary": vocabulary, "pattern": PATTERN},
        source=source,
        showable=False,
    )


def fit_vocabulary(texts: Sequence[Sequence[str]], min_count: int) -> list[str]:
    """`<pad>`, `<unk>`, then every word that these texts say at least `min_count` times, ascending."""
    counts = Counter(word for words in texts for word in words)
    return ["<pad>", "<unk>", *sorted(word for word, count in counts.items() if count >= min_count)]


def encode(texts: Sequence[Sequence[str]], vocabulary: list[str], length: int) -> Tensor:
    """Token ids, int64 (N, length): words that the vocabulary does not know are `<unk>`, the tail is padding."""
    token_id = {word: number for number, word in enumerate(vocabulary)}
    ids = torch.full((len(texts), length), PAD, dtype=torch.int64)
    for row, words in enumerate(texts):
        ids[row, : len(words)] = torch.tensor([token_id.get(word, UNKNOWN) for word in words])
    return ids


def text_network(settings: TextTargetSettings, samples: Samples) -> nn.Module:
    """The network that `architecture` names.

    Raises:
        ArtifactError: If the width of a transformer does not fit its heads.
    """
    vocabulary, classes = len(samples.preprocessing["vocabulary"]), len(samples.class_names)
    if settings.architecture == "lstm":
        return TextLSTM(
            vocabulary,
            classes,
            width=settings.width,
            depth=settings.depth,
            dropout=settings.dropout,
            token_dropout=TOKEN_DROPOUT,
            pad_id=PAD,
        )
    if settings.width % HEADS:
        raise ArtifactError(f"target.width = {settings.width}: must be a multiple of the {HEADS} heads of a transformer")
    return TextTransformer(
        vocabulary,
        samples.features.n,
        classes,
        width=settings.width,
        depth=settings.depth,
        heads=HEADS,
        dropout=settings.dropout,
        token_dropout=TOKEN_DROPOUT,
        pad_id=PAD,
    )
