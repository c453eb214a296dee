"""Figure 13: DLR with one to four of the four clients activated, drawn at random each round."""

from anabranch.paper.one_setting import one_setting
from anabranch.paper.study import IMNIST, Method

EXPERIMENT = one_setting(
    "activated",
    IMNIST,
    Method("DLR", "Random"),
    "Figure 13",
    "Number of activated clients",
    {f"{k} of 4 clients": {"activation": {"name": "Fixed", "k": k}} for k in (1, 2, 3, 4)},
)
