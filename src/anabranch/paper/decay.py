"""Figure 6: DLR-Full on the drifting stream with a window of 100, with three attenuation coefficients."""

from anabranch.paper.one_setting import one_setting
from anabranch.paper.study import IMNIST_DRIFT, Method

EXPERIMENT = one_setting(
    "decay",
    IMNIST_DRIFT,
    Method("DLR", "Full"),
    "Figure 6",
    "Attenuation coefficient α",
    {f"α = {decay:g}": {"update": {"name": "DLR", "window": 100, "decay": decay}} for decay in (0.99, 0.95, 0.9)},
)
