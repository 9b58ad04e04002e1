"""faithline: attributions that are measured, explainers that are trained to be faithful, repairs that are proven."""
