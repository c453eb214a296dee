"""One party's own functions, compiled for blocks of rounds, and the state that they move on."""

from anabranch.core.party_programs.client import ClientCompute
from anabranch.core.party_programs.server import ServerCompute, Stepped
from anabranch.core.party_programs.state import Pending, Rate, State, from_arrays, program, reading, to_arrays

__all__ = [
    "ClientCompute",
    "Pending",
    "Rate",
    "ServerCompute",
    "State",
    "Stepped",
    "from_arrays",
    "program",
    "reading",
    "to_arrays",
]
