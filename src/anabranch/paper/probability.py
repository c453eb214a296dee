"""Figure 4 and Table 3: DLR-Random on the drifting stream, with four activation probabilities."""

from anabranch.paper.one_setting import one_setting
from anabranch.paper.study import IMNIST_DRIFT, Method

PROBABILITIES = (0.25, 0.5, 0.75, 1.0)

EXPERIMENT = one_setting(
    "probability",
    IMNIST_DRIFT,
    Method("DLR", "Random"),
    "Figure 4, Table 3",
    "Performance metrics for different activation probability",
    {f"p = {p:g}": {"activation": {"name": "Random", "p": p}} for p in PROBABILITIES},
)
