"""Many trials: grids over a configuration, on all cores or a cluster, continued where they stopped."""
