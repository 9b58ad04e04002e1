"""What every record of a result file shares."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A part of a result file: NaN and infinity are refused, keys that the report does not show are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Interval(Record):
    """A mean with the ends of its bootstrap interval; null where it is undefined."""

    mean: float | None
    low: float | None
    high: float | None
