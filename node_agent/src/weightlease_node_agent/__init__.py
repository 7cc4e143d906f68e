"""The node agent: owns the stores of one node and leases what they hold."""

from importlib.metadata import version

__version__ = version("weightlease-node-agent")
