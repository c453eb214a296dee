"""One party's numbers and one round: Algorithm 1, its updates, models and activations."""
