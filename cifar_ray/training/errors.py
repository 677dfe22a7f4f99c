"""Errors of the training loop; the same run would meet the first two again."""


class CheckpointError(ValueError):
    """A checkpoint cannot be used, or its folder is in use; the sentence names it and why."""


class DivergedError(RuntimeError):
    """The loss is not a finite number."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"the loss is not a finite number at step {step}; a lower --lr may help")

    def __reduce__(self) -> tuple[type["DivergedError"], tuple[int]]:
        return DivergedError, (self.step,)


class RankFailedError(OSError):
    """Another rank has failed; its own error says why."""
