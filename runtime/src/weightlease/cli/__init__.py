"""The command line: publish, ls, inspect, verify, lease and cleanup on a store root or an agent."""

from weightlease.cli.entry import main

__all__ = ["main"]
