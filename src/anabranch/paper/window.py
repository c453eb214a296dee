"""Figure 5: DLR-Full on the drifting stream, with four window lengths."""

from anabranch.paper.one_setting import one_setting
from anabranch.paper.study import IMNIST_DRIFT, Method

EXPERIMENT = one_setting(
    "window",
    IMNIST_DRIFT,
    Method("DLR", "Full"),
    "Figure 5",
    "Ablation study on window length l",
    {f"l = {window}": {"update": {"name": "DLR", "window": window, "decay": 0.95}} for window in (10, 50, 100, 150)},
)
