"""What a command refuses before it imports torch, Ray and MLflow, which takes seconds, and what it shows meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from cifar_ray import storage
from cifar_ray.config import files, runfile
from cifar_ray.config import sweep as sweeps
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.train import TrainConfig
from cifar_ray.display.run import Console
from cifar_ray.orchestration.cluster import servers
from cifar_ray.reporting import EXPORTED
from cifar_ray.runs.folder import CONFIG, SWEEP, check_free
from cifar_ray.tracking import uri as stores


@contextmanager
def loading(text: str, always: bool = False) -> Iterator[None]:
    """Context manager: show ``text`` while libraries load; with ``always``, also where there is no terminal.

    Raises:
        ConfigError: when there is no home folder, which MLflow needs wherever its store is.
    """
    files.home()
    with Console() as console:
        if console.is_live or always:
            console.doing(text)
        yield


def check_training(config: TrainConfig) -> None:
    """Refuse a run whose name is taken, whose store is none, or whose cluster does not answer.

    Raises:
        ConfigError: naming the option.
    """
    servers.reach_chosen(config.address)
    stores.resolve_uri(config.tracking_uri)
    check_free(config)


def check_runs(runs: Sequence[str], tracking_uri: str | None) -> None:
    """Refuse names of runs that neither the tracking store has nor the default storage.

    Raises:
        ConfigError: naming the first of them.
    """
    uri = stores.resolve_uri(tracking_uri)
    for run in runs:
        if stores.lacks(uri, run) and "/" not in run and not storage.at(None).below(run).disk.exists():
            raise stores.no_such_run(uri, run)


def check_studies(
    names: Sequence[str], tracking_uri: str | None, absent: Callable[[str, str], ConfigError] = stores.no_such_name
) -> None:
    """Refuse names of sweeps or runs that the tracking store certainly does not have; exported files are not looked up.

    Raises:
        ConfigError: as ``absent`` makes it of the store's URI and the first of them.
    """
    uri = stores.resolve_uri(tracking_uri)
    for name in names:
        if not name.endswith(EXPORTED) and stores.lacks(uri, name):
            raise absent(uri, name)


def known_config(name: str) -> TrainConfig | None:
    """The config of a run, or what all runs of a sweep share, from its folder; None where only the store knows that."""
    folder = storage.at(name) if "/" in name else storage.at(None).below(name)
    with suppress(ConfigError, OSError):
        if (path := folder.disk / CONFIG).is_file():
            return runfile.load(path)
        if (path := folder.disk / SWEEP).is_file():
            return sweeps.from_mapping(runfile.read(path)).base
    return None
