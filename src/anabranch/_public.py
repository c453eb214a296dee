"""The public names, which `anabranch` imports when the first of them is asked for."""

# ruff: noqa: F401
from anabranch import streams
from anabranch.core import models
from anabranch.core.activation import Activation, Event, Fixed, Full, Random, Recorded
from anabranch.core.models import SplitModel
from anabranch.core.updates import DLR, OGD, SLR, Update
from anabranch.environment import keep_programs
from anabranch.errors import AnabranchError, ConfigError, DataError, Diverged, Interrupted, ModelError, OutputError
from anabranch.simulation.delays import Delay, GeometricDelay, UniformDelay
from anabranch.simulation.drift_detection import Detect
from anabranch.simulation.online import OnlineVFL
from anabranch.simulation.output import save
from anabranch.simulation.result import Result
from anabranch.simulation.simulator import Progress, simulate

keep_programs()
