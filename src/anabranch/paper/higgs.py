"""Figures 9 and 10: nine methods on HIGGS, stationary and drifting."""

from anabranch.paper.physics import physics

EXPERIMENT = physics("higgs", "Figures 9, 10")
