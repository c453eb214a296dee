"""Where tests look for real data: the folder that ANABRANCH_DATA names, or one beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("ANABRANCH_DATA") or Path(__file__).parents[1].parent / "shared" / "data")
