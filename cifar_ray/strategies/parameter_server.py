"""A server holds the weights; every worker pushes its gradient and pulls the weights without waiting for others.

Label: different. A gradient is of weights that others have changed since: stale. It is applied at once, as an
optimizer step of the server with the learning rate divided by the number of workers, so that a push of every worker
moves the weights as far as one synchronous step (our own rule). With ``push_every k`` a worker
pushes the sum of k gradients, and what is left of them at the end of an epoch; in between it moves its own copy of
the weights by plain gradient steps. With ``max_staleness s`` a worker waits after a push as long
as it is more than s pushes ahead of the slowest (stale synchronous parallel, Ho et al. 2013: a push in each step).
With ``staleness_weighting inverse`` the learning rate of a push is also divided by 1 + the updates
by others since the worker's pull: our own rule, with the aim of SHAT (Ko and Kim 2022), which weighs by workers and
staleness. With ``servers`` each server holds some of the parameters, and applies what it gets
without the others.
Source: Dean et al. 2012, "Large Scale Distributed Deep Networks" (Downpour SGD, pulling with every push).
Cost per step: messages ``2 * S / K``, bytes ``2 * G / K``. In every K-th step, of ``push_every``,
each worker sends its gradients, G bytes, in a message to each of S servers and gets the weights, as many bytes, as
the answers; the servers send and receive W times that. Their optimizer steps and any waiting count as communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cifar_ray import data, models
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.schema import Count, Whole
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.strategies.asynchronous import Asynchronous
from cifar_ray.strategies.gradients import average, layout, places, views
from cifar_ray.strategies.protocol import Parts, StrategyContext
from cifar_ray.strategies.served_weights import Answer, Start, States

PushEvery = Annotated[Count, Field(description="Local optimizer steps between a worker's pushes and pulls")]
Servers = Annotated[
    Count,
    Field(description="Parameter servers, each with some of the parameters, on the workers' nodes in turn"),
]
Weighting = Annotated[
    Literal["none", "inverse"],
    Field(description="Weight of a gradient: 'inverse' is 1 / (1 + updates by others since its weights were pulled)"),
]


class ParameterServing(Asynchronous):
    """See the module."""

    needs_server = True
    cannot = frozenset({"dtype", "unused"})

    @staticmethod
    def check(config: ResolvedConfig, decided: Decided) -> None:
        """See the protocol."""
        pushes, servers = config.strategy_options["push_every"], config.strategy_options["servers"]
        if pushes > 1 and config.optimizer != "sgd":
            raise ConfigError(
                "strategy_options.push_every",
                f"must be 1 with --optimizer {config.optimizer}: its steps hardly depend on a gradient's size, so the "
                f"sum of {pushes} would move the weights as far as one",
            )
        parameters = list(models.outline(config, data.facts(config)).parameters())
        if not all(parameter.requires_grad for parameter in parameters):
            raise ConfigError("strategy", f"must be another for {config.model}, some of whose weights do not learn")
        if servers > (most := len(parameters)):
            raise ConfigError(
                "strategy_options.servers",
                f"must be at most {most}, the parameters of this {config.model}, got {servers}",
            )

    def __init__(
        self,
        context: StrategyContext,
        *,
        push_every: PushEvery = 1,
        servers: Servers = 1,
        max_staleness: Annotated[
            Whole | None,
            Field(description="Pushes that the fastest worker may be ahead of the slowest. Default: no limit"),
        ] = None,
        staleness_weighting: Weighting = "none",
    ) -> None:
        super().__init__(context)
        self._push_every, self._max_staleness, self._weighting = push_every, max_staleness, staleness_weighting
        assert context.server is not None, "the launcher starts one"
        self._server = context.server
        self._layout = layout(self.model)
        self._places = places(self.optimizer, self.model)
        self._gradient = torch.zeros_like(self.vector)
        self._unpushed = 0  # steps whose gradients are in it
        self._arrived = torch.empty_like(self.vector, device="cpu")
        self._states: States = {}

    def step(self) -> None:
        pushes = self._unpushed + 1 == self._push_every
        for parameter, view in zip(self.model.parameters(), views(self._gradient, self._layout)):
            if parameter.grad is None:
                raise ConfigError(
                    "strategy",
                    "must be other than parameter_server where a step leaves out a parameter, as one has just done; "
                    "ddp trains such a model",
                )
            view.add_(parameter.grad)
            if not pushes:
                parameter.detach().add_(parameter.grad, alpha=-self._lr)
        self.optimizer.zero_grad()
        self._unpushed += 1
        if pushes:
            self._push()
        self.context.mark("communication" if pushes else "optimizer")

    @property
    def may_pause(self) -> bool:
        return self._unpushed == 0

    def known_losses(self) -> Sequence[float | None]:
        return self._answer.losses

    def consolidate(self) -> None:
        if self._unpushed:
            self._push()
        self.barrier()  # the last push has arrived
        self._take(self._server.pull(self.rank))
        if self.rank == 0:
            self._states = self._server.states()
        average(self.model.buffers())
        self.barrier()  # rank 0 has the state, and the next push may come

    def state(self) -> dict[str, Any]:
        numbered = {index: self._states[at] for index, at in enumerate(self._places) if at in self._states}
        return {**self.optimizer.state_dict(), "state": numbered}

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        super().load(weights, None)
        if self.rank == 0:
            numbered = state["state"] if state else {}
            self._server.reset(
                Start(
                    weights=self.vector.cpu().numpy(),
                    layout=self._layout,
                    make_optimizer=self.context.make_optimizer,
                    states={self._places[index]: values for index, values in numbered.items()},
                    world_size=self.world_size,
                    max_staleness=self._max_staleness,
                    weighting=self._weighting,
                )
            )
        self.barrier()  # before the others ask
        self._gradient.zero_()
        self._unpushed = 0
        self._take(self._server.pull(self.rank))
        self.barrier()  # before rank 0 begins anew

    def figures(self, parts: Parts = ()) -> dict[str, float]:
        """Those of the latest :meth:`consolidate`, when no push was under way."""
        return self._answer.figures

    @property
    def _lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _push(self) -> None:
        gradient = self._gradient.cpu().numpy()
        self._take(self._server.push(self.rank, gradient, self._lr, self.loss.item()))
        self._gradient.zero_()
        self._unpushed = 0

    def _take(self, answer: Answer) -> None:
        self._answer = answer
        np.copyto(self._arrived.numpy(), answer.weights)  # torch would not have an array that is read-only
        self.vector.copy_(self._arrived)


STRATEGY = ParameterServing
