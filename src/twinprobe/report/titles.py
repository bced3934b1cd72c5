"""The titles of the old columns, and what each of them holds."""

from __future__ import annotations

NOT_APPLICABLE = "N/A"

# By statistic: its difference, and the difference as a share of the golden value.
DIFFERENCES = {"max": "Max diff", "min": "Min diff", "mean": "Mean diff", "norm": "L2norm diff"}
RELATIVES = {"max": "MaxRelativeErr", "min": "MinRelativeErr", "mean": "MeanRelativeErr", "norm": "NormRelativeErr"}
# By title: the field of a pair's metrics.
METRICS = {
    "Cosine": "cosine",
    "EucDist": "euclid",
    "MaxAbsErr": "max_abs",
    "MaxRelativeErr": "max_rel",
    "One Thousandth Err Ratio": "one_thousandth",
    "Five Thousandths Err Ratio": "five_thousandths",
}
