"""``cifar-ray compare``: what differs between runs, and whether some are slower than others."""

from __future__ import annotations

from cifar_ray.cli import early, output
from cifar_ray.config.commands import CompareCommand
from cifar_ray.reporting import cost


def show(command: CompareCommand) -> int:
    """``cifar-ray compare``."""
    if command.max_slowdown is not None:
        return _guard(command, command.max_slowdown)
    cost.checked(command.price)
    early.check_runs(command.runs, command.tracking_uri)
    from cifar_ray.reporting import compare as side_by_side
    from cifar_ray.reporting import data

    with output.progress(command.json), early.loading("loading MLflow"):
        import cifar_ray.tracking.reading  # noqa: F401
    others = ("runs", "json", "max_slowdown")
    options = {name: value for name, value in vars(command).items() if name not in others}
    comparison = side_by_side.compare(*command.runs, **options)
    if command.json:
        output.show(data.whole(comparison), as_json=True)
    else:
        print(comparison)
    return 0


def _guard(command: CompareCommand, max_slowdown: float) -> int:
    """``cifar-ray compare --max-slowdown``."""
    sides = early.sides(command)
    with output.progress(command.json), early.loading("loading MLflow"):
        from cifar_ray.reporting.slowdown import slowdown

        told = slowdown(sides, max_slowdown, command.tracking_uri)
    output.show(told, command.json, lambda: print(told))
    return told.status
