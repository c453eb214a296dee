"""Figures 7 and 8: nine methods on SUSY, stationary and drifting."""

from anabranch.paper.physics import physics

EXPERIMENT = physics("susy", "Figures 7, 8")
