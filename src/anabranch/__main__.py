"""``python -m anabranch`` is the command ``anabranch``."""

from anabranch.cli import main

main()
