"""Loaders of model libraries over a `HostWeightRuntime`. Needs torch."""
