"""Volumes of pods: a socket that is the pod's identity, and files that engines open by path."""
