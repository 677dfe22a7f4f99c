"""A store that keeps what it is told, in place of MLflow's client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Store:
    """MLflow's client as far as our recording calls it, for one experiment.

    Attributes:
        runs: id -> run.
        artifacts: (run id, file name) -> what it was made of.
        datasets: run id -> the inputs logged.
        versions: of registered models.
        asked: the searches for runs: their filters and their other arguments.
    """

    tracking_uri = "http://store:5000"

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.artifacts: dict[tuple[str, str], Any] = {}
        self.datasets: dict[str, list[Any]] = {}
        self.versions: list[Any] = []
        self.aliases: dict[tuple[str, str], int] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def create_run(
        self, experiment: str, tags: dict[str, str], run_name: str, start_time: int = 0, status: str = "RUNNING"
    ) -> Any:
        run_id = f"id{len(self.runs)}"
        info = SimpleNamespace(
            run_id=run_id, run_name=run_name, experiment_id=experiment, status=status, start_time=start_time, end_time=None
        )  # fmt: skip
        data = SimpleNamespace(tags=dict(tags), params={}, metrics={})
        self.runs[run_id] = SimpleNamespace(info=info, data=data, outputs=None, history=[])
        return self.runs[run_id]

    def get_run(self, run_id: str) -> Any:
        return self.runs[run_id]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(params) <= 100, "MLflow's limit"
        data = self.runs[run_id].data
        for metric in metrics:
            data.metrics[metric.key] = metric.value
            self.runs[run_id].history.append((metric.key, metric.step, metric.timestamp, metric.value))
        for param in params:
            assert data.params.setdefault(param.key, param.value) == param.value
        data.tags.update({tag.key: tag.value for tag in tags})

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id].data.tags[key] = value

    def delete_tag(self, run_id: str, key: str) -> None:
        del self.runs[run_id].data.tags[key]

    def get_metric_history(self, run_id: str, name: str) -> list[Any]:
        rows = [row for row in self.runs[run_id].history if row[0] == name]
        return [SimpleNamespace(step=step, timestamp=at, value=value) for _, step, at, value in rows]

    def log_inputs(self, run_id: str, datasets: list[Any]) -> None:
        self.datasets[run_id] = datasets

    def log_dict(self, run_id: str, value: Any, file: str) -> None:
        self.artifacts[run_id, file] = value

    log_text = log_table = log_dict

    def log_figure(self, run_id: str, figure: Any, file: str, save_kwargs: Any) -> None:
        self.artifacts[run_id, file] = figure

    def list_artifacts(self, run_id: str) -> list[Any]:
        return [SimpleNamespace(path=file) for of, file in self.artifacts if of == run_id]

    def set_terminated(self, run_id: str, status: str, end_time: int | None = None) -> None:
        self.runs[run_id].info.status, self.runs[run_id].info.end_time = status, end_time

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].info.status = status

    def search_experiments(self) -> list[Any]:
        return [SimpleNamespace(experiment_id="1"), SimpleNamespace(experiment_id="2")]

    def get_logged_model(self, model_id: str) -> Any:
        return self.models[model_id]

    models: dict[str, Any] = {}  # noqa: RUF012  # id -> model, of all tests

    def search_model_versions(self, wanted: str) -> list[Any]:
        return [version for version in self.versions if wanted == f"run_id = '{version.run_id}'"]

    def create_registered_model(self, name: str) -> None:
        pass

    def create_model_version(self, name: str, source: str, run_id: str, tags: dict[str, str], model_id: str) -> Any:
        number = 1 + sum(version.name == name for version in self.versions)
        made = SimpleNamespace(name=name, version=number, run_id=run_id, tags=tags, source=source, model_id=model_id)
        self.versions.append(made)
        return made

    def set_registered_model_alias(self, name: str, alias: str, version: int) -> None:
        self.aliases[name, alias] = version
