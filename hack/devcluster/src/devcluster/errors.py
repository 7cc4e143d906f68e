"""What can go wrong, as a caller would act on it.

::

    DevclusterError
    ├── BadSetting            an environment variable or an argument is not usable
    ├── MissingPrerequisite   the machine lacks something; the text says the way out
    ├── CommandFailed         a program ended with an error
    ├── DeadlineExceeded      something was not ready, or not gone, in time
    ├── ClusterConflict       another cluster or program holds what this one needs
    ├── NoCluster             the command needs a running cluster
    ├── UnknownNode           no node of that name
    └── NotOurCluster         refused on a cluster that this tool did not start
"""


class DevclusterError(Exception):
    """Base of every error that the command line reports without a traceback."""


class BadSetting(DevclusterError):
    """An environment variable or an argument is not usable."""


class MissingPrerequisite(DevclusterError):
    """The machine lacks something; the text says the way out."""


class CommandFailed(DevclusterError):
    """A program ended with an error; carries its exit status and the end of its output."""

    def __init__(self, program: str, status: int, output: str) -> None:
        super().__init__(f"{program} ended with status {status}:\n{output}".rstrip(":\n"))
        self.status = status
        self.output = output


class DeadlineExceeded(DevclusterError):
    """Something was not ready, or not gone, in time."""


class ClusterConflict(DevclusterError):
    """Another cluster or program holds what this one needs."""


class NoCluster(DevclusterError):
    """The command needs a running cluster."""


class UnknownNode(DevclusterError):
    """No node of that name."""


class NotOurCluster(DevclusterError):
    """Refused on a cluster that this tool did not start."""
