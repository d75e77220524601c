"""The errors a user can cause. Each carries one line: what, where, what to do.

Command lines print the line and exit with status 1; library users catch `ArbiterError`.
Anything that is not an `ArbiterError` is a bug and keeps its traceback.
"""


class ArbiterError(Exception):
    """Base of all errors whose remedy lies with the user."""


class ConfigError(ArbiterError):
    """A configuration value is not allowed.

    `key` is relative to the object that raised; `arbiter.config.validate` turns it into the full
    dotted key that a person can type on the command line. It is empty where the whole is wrong.
    """

    def __init__(self, key: str, value: object, allowed: str):
        self.key, self.value, self.allowed = key, value, allowed
        super().__init__(f"{key}={value}: {allowed}")

    def __reduce__(self) -> tuple:
        """Jobs in other processes send their errors back."""
        return ConfigError, (self.key, self.value, self.allowed)

    def under(self, prefix: str) -> "ConfigError":
        """The same error, with its key below `prefix`."""
        key = f"{prefix}.{self.key}" if self.key else prefix
        return ConfigError(key, self.value, self.allowed)


class UsageError(ArbiterError):
    """A command line is not one."""


class SampleError(ArbiterError):
    """A sample is not a legal decision problem."""


class SourceError(ArbiterError):
    """A data source cannot be read."""


class MediaError(ArbiterError):
    """An image, video or audio clip cannot be decoded."""


class EncoderError(ArbiterError):
    """An encoder cannot be built, or cannot encode what it was given."""


class StoreError(ArbiterError):
    """The feature store is damaged or cannot be written."""


class RunError(ArbiterError):
    """A run directory is missing something, is in use, or cannot be gone on with."""


class RunInterrupted(RunError):
    """A run was asked to stop, and can be gone on with."""


class DecisionError(ArbiterError):
    """A question put to a trained model is not one that it can answer."""


class PlanError(ArbiterError):
    """A run would not fit into the memory that it may take."""


class ProcessLost(RunInterrupted):
    """Another process of a run died or hangs; the run can be gone on with."""


class ProcessFailed(RunError):
    """Another process of a run failed, for a reason that it left word of."""
