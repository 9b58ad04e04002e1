"""What every attribution method is asked, and how it says that it cannot answer."""

from dataclasses import dataclass

from torch import Tensor

from faithline.bank import Masks
from faithline.masking import MaskedModel


class DoesNotFit(ValueError):  # noqa: N818 (a verdict on the pair of method and target, not a fault)
    """The method has no meaning, or no rule, for this target. Raised before any sample is explained, with the reason."""


@dataclass(frozen=True)
class Query:
    """B inputs of a game, and the class to explain for each of them.

    Attributes:
        game: The game.
        x: Inputs (B, ...).
        target: Explained classes, int64 (B,).
        masks: Masks of the same samples, of the use and law that the method's `MASKS` names; None where it names none.
        background: Real training inputs (R, ...) for methods that average over them, or None.
        seeds: One a sample, int64 (B,): all that is random about a sample comes from its own.
    """

    game: MaskedModel
    x: Tensor
    target: Tensor
    masks: Masks | None
    background: Tensor | None
    seeds: Tensor

    def given_masks(self) -> Masks:
        """The masks.

        Raises:
            ValueError: If there are none.
        """
        if self.masks is None:
            raise ValueError("the method needs masks of the bank, and got none")
        return self.masks

    def given_background(self) -> Tensor:
        """The background, of at least one row.

        Raises:
            ValueError: If there is none.
        """
        if self.background is None or not len(self.background):
            raise ValueError("the method needs background inputs, and got none")
        return self.background
