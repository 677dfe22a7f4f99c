"""Serve a run's model with Ray Serve: the application of `cifar-ray serve` as replicas over a Ray cluster.

    pip install 'ray[serve]'
    python examples/ray_serve.py RUN
    curl --data-binary @IMAGE http://127.0.0.1:8000/predict

RUN is a run's name or MLflow id. Every replica reads the run itself, so that on several nodes its storage and the
tracking store (MLFLOW_TRACKING_URI) must be reachable from all of them. RAY_ADDRESS names a cluster to join;
without it, Ray starts on this machine.
"""

import os
import sys

import ray
from fastapi import FastAPI
from ray import serve

REPLICAS, CPUS, PORT = 2, 1, 8000


def main(run: str, port: int = PORT) -> None:
    """Serve until Ctrl-C."""

    def build() -> FastAPI:  # called in every replica
        from cifar_ray.serving import app

        return app.of_run(run)

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="classifier",
        num_replicas=REPLICAS,
        max_ongoing_requests=1024,  # the application batches what comes together
        ray_actor_options={"num_cpus": CPUS},
    )
    ray.init(os.environ.get("RAY_ADDRESS", "local"))
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(deployment.bind(), name="cifar_ray", blocking=True)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
