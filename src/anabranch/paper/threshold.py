"""Table 4: DLR-Event on the drifting stream, with three activation thresholds."""

from anabranch.paper.one_setting import one_setting
from anabranch.paper.study import IMNIST_DRIFT, Method

THRESHOLDS = {"Γ = 0.6": 0.6, "Γ = 0.2": 0.2, "Γ = −0.2": -0.2}

EXPERIMENT = one_setting(
    "threshold",
    IMNIST_DRIFT,
    Method("DLR", "Event"),
    "Table 4",
    "Performance metrics for activation threshold",
    {title: {"activation": {"name": "Event", "threshold": threshold}} for title, threshold in THRESHOLDS.items()},
)
