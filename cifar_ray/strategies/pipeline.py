"""Pipelines: every rank computes one stage of the model, on every image of the global batch.

Every rank holds the whole model, for evaluations and checkpoints, but has gradients and an optimizer's state for
its own stage alone. The stages come from PyTorch's ``torch.distributed.pipelining``; where the model is cut is
measured on rank 0. Each strategy's label, source and cost open the docstring of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from cifar_ray import data, models
from cifar_ray.config.decided import Decided
from cifar_ray.config.errors import ConfigError
from cifar_ray.config.model import USUAL
from cifar_ray.config.option import is_own
from cifar_ray.config.schema import Count
from cifar_ray.config.train import ResolvedConfig
from cifar_ray.data import modality
from cifar_ray.data.loader import DataShard, MicroBatch
from cifar_ray.models import convolution
from cifar_ray.models import own as own_models
from cifar_ray.strategies import stages
from cifar_ray.strategies.gradients import flat, numbered, on_cpu
from cifar_ray.strategies.protocol import Parts, Strategy, StrategyContext
from cifar_ray.strategies.worker import Worker, autocast


class Stage(PipelineStage):
    """A stage that marks when it computes; the rest of a step is communication."""

    def __init__(
        self, layers: stages.Layers, worker: Worker, inputs: Tensor, outputs: Tensor, mark: Callable[[str], None]
    ) -> None:
        """Take the shapes of what the stage is given and what it makes from two tensors.

        With them, PyTorch needs no passes of its own to find them out.
        """
        super().__init__(layers, worker.rank, worker.world_size, worker.device, input_args=inputs, output_args=outputs)
        self._layers, self._mark = layers, mark

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._layers.chunk = fwd_chunk_id
        self._mark("communication")
        outputs = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._mark("forward")
        return outputs

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._mark("communication")
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._mark("backward")


class Pipeline(Strategy):
    """A pipeline with one stage per rank; a subclass says in which order the micro-batches pass through it."""

    cut: str | None = "strategy_options.micro_batches"
    schedule: ClassVar[type[PipelineScheduleSingle]] = ScheduleGPipe

    def __init__(
        self,
        context: StrategyContext,
        *,
        micro_batches: Annotated[Count, Field(description="Micro-batches per global batch")] = 4,
    ) -> None:
        super().__init__(context)
        config, worker, precision = context.config, context.worker, context.decided.precision
        self._count = self.micro_batches(config)
        units = stages.units(models.layers(config, context.model))
        # Those that every rank has: a forward pass, such as those that are timed, may make others on some.
        modules = context.model.modules()
        self._buffers = {module: [name for name, _ in module.named_buffers(recurse=False)] for module in modules}
        plan: list[Any] = [None]
        if worker.rank == 0:  # each unit's cost and each stage's units
            costs = stages.measure(units, self._example(worker.device), precision)
            plan = [(stages.cut([cost.seconds for cost in costs], worker.world_size), costs)]
        dist.broadcast_object_list(plan, src=0, device=worker.device)
        slices, costs = plan[0]
        self._stages = [nn.Sequential(*units[part]) for part in slices]
        part = slices[worker.rank]
        self._layers = stages.Layers(units, part, precision, worker.device)
        inputs = _like(costs[part.start - 1]) if part.start else self._example("meta")
        stage = Stage(self._layers, worker, inputs, _like(costs[part.stop - 1]), context.mark)
        self._schedule = self.schedule(stage, self._count, loss_fn=self._loss)

    @staticmethod
    def micro_batches(config: ResolvedConfig) -> int:
        return config.strategy_options["micro_batches"]

    @classmethod
    def check(cls, config: ResolvedConfig, decided: Decided) -> None:
        """See the protocol."""
        workers = decided.world_size
        if workers < 2:
            raise ConfigError(
                "topology",
                f"must have at least 2 workers for --strategy {config.strategy}, got {decided.topology}: a pipeline of "
                "one stage is plain training, --strategy ddp",
            )
        model = models.outline(config, data.facts(config))
        if not all(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(  # PyTorch's stages differentiate by every parameter
                "strategy",
                f"must keep the model whole for --model {config.model}, some of whose weights do not learn, "
                f"got {config.strategy}",
            )
        if is_own(config.model):
            own_models.check_layers(config, data.facts(config))
        most = len(stages.units(models.layers(config, model)))
        if workers > most:
            raise ConfigError(
                "topology",
                f"must have at most {most} workers for --strategy {config.strategy} with this {config.model}, one for "
                f"each layer that has parameters, got {decided.topology}",
            )
        images, parts = config.global_batch_size, cls.micro_batches(config)
        if images % parts:
            raise ConfigError(
                "strategy_options.micro_batches", f"must divide the global batch of {images} images, got {parts}"
            )
        if cls.schedule is Schedule1F1B and parts < workers:
            raise ConfigError(
                "strategy_options.micro_batches",
                f"must be at least the number of workers ({workers}) for --strategy {config.strategy}, got {parts}",
            )

    @classmethod
    def at_once(cls, config: ResolvedConfig) -> int:
        return config.global_batch_size // cls.micro_batches(config)

    @staticmethod
    def data_shard(config: ResolvedConfig, worker: Worker) -> DataShard:
        """All of it: the first stage takes the inputs, the last one the targets."""
        return DataShard(inputs=worker.rank == 0, one_shape=True)

    @property
    def incomparable(self) -> str:
        return "each rank of a pipeline computes another part of the model"

    def gradients(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        (micro_batch,) = micro_batches
        context, last = self.context, self.world_size - 1
        context.mark("data")
        self._layers.seed = micro_batch.seed
        losses: list[Tensor] = []
        inputs = [micro_batch.inputs] if context.worker.rank == 0 else []
        targets = micro_batch.targets if context.worker.rank == last else None
        self._divisor = micro_batch.divisor / self._count
        self._schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
        loss = torch.stack(losses).detach().mean() if losses else torch.zeros((), device=context.worker.device)
        context.mark("communication")
        dist.broadcast(loss, src=last)
        context.mark("other")  # no stage idles for it
        return loss

    def consolidate(self) -> None:
        """Broadcast the parameters and buffers of every stage to all ranks."""
        for owner, stage in enumerate(self._stages):
            buffers = (getattr(each, name) for each in stage.modules() for name in self._buffers.get(each, ()))
            for tensor in (*stage.parameters(), *buffers):
                dist.broadcast(flat(tensor.detach()), src=owner)

    def state(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        mine = {number: on_cpu(values) for number, values in state["state"].items()}
        first = self.context.worker.rank == 0
        gathered: list[Any] = [None] * self.world_size
        dist.gather_object(mine, gathered if first else None, dst=0)
        if not first:
            return state
        whole = {number: values for found in gathered for number, values in found.items()}
        return {**state, "state": dict(sorted(whole.items()))}

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any] | None) -> None:
        if state is not None:
            mine = {id(parameter) for parameter in self._stages[self.context.worker.rank].parameters()}
            every = numbered(self.optimizer)
            kept = {at: values for at, values in state["state"].items() if id(every[at]) in mine}
            state = {**state, "state": kept}
        super().load(weights, state)

    def figures(self, parts: Parts = ()) -> dict[str, float]:
        """Share of the ranks' time in a step in which they do not compute.

        Rank 0 begins and ends every schedule, so that its times are the schedule's. The theory has stages of equal
        cost and no communication (GPipe, section 2.3).
        """
        waits = self.world_size - 1
        figures = {"bubble/theory": waits / (self._count + waits)}
        computing = [rank.get("forward", 0.0) + rank.get("backward", 0.0) for rank in parts]
        if computing and computing[0]:
            took = computing[0] + parts[0].get("communication", 0.0)
            figures["bubble/measured"] = 1 - sum(computing) / (len(computing) * took)
        return figures

    def _example(self, device: torch.device | str) -> Tensor:
        """One micro-batch of noise, as the loader gives them."""
        config = self.context.config
        return convolution.laid_out(modality.of(data.facts(config)).example(self.at_once(config), device), USUAL)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        context = self.context
        context.mark("communication")
        with autocast(context.decided.precision, context.worker.device):
            loss = context.task.loss(outputs, targets, self._divisor)
        context.mark("forward")
        return loss


class GPipe(Pipeline):
    """A pipeline: all micro-batches pass forward through the stages, then all of them backward.

    Label: close. The gradient is that of one worker with the whole global batch, added up over the micro-batches;
    batch-norm statistics are those of each micro-batch, and dropout draws otherwise. It is bit-identical at any number
    of stages, and to one worker with ``--accumulate`` micro-batches where their number is a power of two and nothing
    is dropped.
    Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism".
    Cost per step: messages ``2 * M * (W - 1) + 1``, bytes ``2 * M * A + 4``. Over all ranks: each of M micro-batches
    passes the W - 1 cuts between W stages as an activation and again as its gradient, of the same size; A bytes are
    the activations of one micro-batch at all cuts. At the end the loss is broadcast. A rank holds the activations of
    M micro-batches.
    """


class OneFOneB(Pipeline):
    """A pipeline: as soon as a stage can, it takes one micro-batch forward and one backward by turns.

    Label: close. As ``gpipe``, and bit-identical to it.
    Source: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training", with the flush after
    every global batch of Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training".
    Cost per step: messages ``2 * M * (W - 1) + 1``, bytes ``2 * M * A + 4``. As ``gpipe``, over all ranks: M
    micro-batches pass W - 1 cuts between W stages twice, A bytes for one micro-batch at all cuts, and the loss is
    broadcast. Stage r of W, from 0, holds the activations of at most W - r micro-batches.
    """

    schedule = Schedule1F1B


class ModelParallel(Pipeline):
    """The model cut into one stage per worker, and the whole global batch passed from one to the next and back.

    Label: exact. Bit-identical to one worker with the whole global batch, batch norm included, where nothing is
    dropped: on CPUs of one kind, with the same number of threads.
    Source: Huang et al. 2019, "GPipe", which names it naive model parallelism: one stage computes while the others
    wait.
    Cost per step: messages ``2 * (W - 1) + 1``, bytes ``2 * A + 4``. Over all ranks: the activations at the W - 1 cuts
    between W stages, A bytes at all cuts together, are sent forward, and their gradients backward. At the end the loss
    is broadcast.
    """

    cut = None

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)  # without options

    @staticmethod
    def micro_batches(config: ResolvedConfig) -> int:
        return 1


def _like(cost: stages.Cost) -> Tensor:
    """A tensor without memory that looks like what a unit hands on."""
    return torch.empty(cost.shape, dtype=cost.dtype, device="meta", requires_grad=True)
