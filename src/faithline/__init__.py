"""faithline: attributions that are measured, explainers that are trained to be faithful, repairs that are proven.

    import faithline as fl

    game = fl.MaskedModel(model, fl.patch_features(image_size=224, patch=16), fl.Baseline.mean())
    maps = fl.attribute("integrated_gradients", game, x)
    result = fl.score(game, x, {"ig": maps, "mine": other})
    judged = fl.fud_score(game, x, {"ig": maps}, fl.load_score_model("models/score_models/digits_cnn"))
    explainer = fl.load_explainer("models/explainers/digits_cnn/deepfaith", model)

Importing the package loads nothing: a name is looked up in its module when it is first used.
"""

from importlib import import_module
from typing import Any

# A table of words, not import statements: this file is in the import closure of every stage, and must bring nothing into it.
_PUBLIC = {
    "Baseline": "faithline.masking",
    "Features": "faithline.masking",
    "MaskedModel": "faithline.masking",
    "attribute": "faithline.api",
    "FudResult": "faithline.api",
    "fud_score": "faithline.api",
    "column_features": "faithline.masking",
    "load_explainer": "faithline.explainers.load",
    "load_score_model": "faithline.score_models",
    "patch_features": "faithline.masking",
    "score": "faithline.api",
    "token_features": "faithline.masking",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'faithline' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
