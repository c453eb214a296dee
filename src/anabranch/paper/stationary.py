"""Figure 2 and Table 1: nine methods on the stationary i-MNIST stream."""

from anabranch.paper.main_table import main_table
from anabranch.paper.study import IMNIST

EXPERIMENT = main_table(
    "stationary",
    IMNIST,
    "Figure 2, Table 1",
    "Run-time error rate and performance metrics under stationary data stream",
    thresholds={"OGD": -0.2, "SLR": -0.1, "DLR": -0.1},
    slr_window=40,
)
