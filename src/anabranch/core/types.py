"""The arrays that a round is made of, each with its shape, named once.

Sizes: ``M`` clients, ``d_m`` features and ``e_m`` embedding elements of client ``m``, ``e = Σ e_m``,
``l`` the window length. Under SLR a party evaluates its whole window, so its arrays have a leading axis of ``l`` rows.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from jaxtyping import Array, Bool, Float, Int

Features: TypeAlias = Float[Array, "*l d_m"]
"""What one client sees of a sample."""
Embedding: TypeAlias = Float[Array, "*l e_m"]
"""``h_m(w_m; x_m)``: what one client sends up."""
Embeddings: TypeAlias = Float[Array, "*l e"]
"""Every client's embedding, side by side: what the top model takes."""
Derivative: TypeAlias = Float[Array, "*l e_m"]
"""``v_m = ∂f/∂h_m``: what the server returns to one activated client."""
Derivatives: TypeAlias = Float[Array, "*l e"]
"""Every client's derivative, side by side."""
Label: TypeAlias = Int[Array, ""]
"""The class of this round's sample."""
Labels: TypeAlias = Int[Array, "*l"]
"""The classes of what a party evaluates: this round's, or a window of them under SLR."""
Prediction: TypeAlias = Int[Array, ""]
"""The class that the server predicts, before any update of the round."""
Flag: TypeAlias = Bool[Array, ""]
"""A decision, such as whether a client is activated."""
Round: TypeAlias = Int[Array, ""]
"""The number of a round, from 0."""
Scalar: TypeAlias = Float[Array, ""]
"""A loss or a learning rate."""
Tree: TypeAlias = Any
"""A pytree of arrays, such as a model's parameters."""
