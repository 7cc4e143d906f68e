"""The CSI driver: mounts what the node agent prepared into a pod's volume, and nothing else.

It is the one privileged process that lives on a node, so it decides as little as it can: the agent
says what a pod may have, the driver binds those folders read-only where the kubelet wants them.
"""

from importlib.metadata import version

__version__ = version("weightlease-csi-driver")
