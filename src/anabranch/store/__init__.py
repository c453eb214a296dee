"""What a party keeps on disk, so that a crash loses nothing: checkpoints, and the server's round log."""

from anabranch.store.checkpoint import Checkpoint, load, save
from anabranch.store.lock import locked
from anabranch.store.roundlog import RoundLog

__all__ = ["Checkpoint", "RoundLog", "load", "locked", "save"]
