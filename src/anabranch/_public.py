"""The public names, which `anabranch` imports when the first of them is asked for."""

# ruff: noqa: F401
from anabranch import models, streams
from anabranch.activation import Activation, Event, Fixed, Full, Random, Recorded
from anabranch.delays import Delay, GeometricDelay, UniformDelay
from anabranch.drifts import Detect
from anabranch.errors import AnabranchError, ConfigError, DataError, Diverged, Interrupted, ModelError, OutputError
from anabranch.models import SplitModel
from anabranch.online import OnlineVFL
from anabranch.output import save
from anabranch.result import Result
from anabranch.simulator import Progress, simulate
from anabranch.updates import DLR, OGD, SLR, Update
