"""Networks of texts: their sizes, and that they see the words in their order and no padding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from cifar_ray import models
from cifar_ray.config.train import TrainConfig
from cifar_ray.data import SPECS, Facts, modality
from cifar_ray.models.lstm import BothWays
from cifar_ray.models.text_network import positions

NAMES = [name for name, of in models.registry().items() if of.inputs == "tokens"]
SPEC = dataclasses.replace(
    SPECS["cifar10"], inputs="tokens", vocabulary=50, shape=(20,), num_classes=3, mean=(), std=()
)
SMALL: dict[str, dict[str, object]] = {
    "textcnn": {"dim": 8, "filters": 6},
    "lstm": {"dim": 8, "hidden": 6, "layers": 2},
    "text_transformer": {"dim": 8, "heads": 2, "dropout": 0.2},
}


def build(name: str, spec: Facts = SPEC, **options: object) -> tuple[TrainConfig, nn.Module]:
    torch.manual_seed(0)
    config = TrainConfig(model=name, model_options=SMALL[name] | options)  # type: ignore[arg-type]
    return config, models.build(config, spec)


def texts() -> Tensor:
    """Texts of 0 to 7 tokens and one of 20."""
    tokens = torch.randint(1, 50, (9, 20), generator=torch.Generator().manual_seed(0))
    for row in range(8):
        tokens[row, row:] = 0
    return tokens


@pytest.mark.parametrize(("width", "precision"), [(7, "fp32"), (12, "bf16"), (20, "fp32")])
@pytest.mark.parametrize("name", NAMES)
def test_logits_do_not_depend_on_the_padding_behind_a_text(name: str, precision: str, width: int) -> None:
    model, tokens = build(name)[1].eval(), texts()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        whole, short = model(tokens), model(tokens[:8, :width])
        alone = [model(tokens[row : row + 1, : max(row, 1)]) for row in range(8)]
    assert whole.shape == (9, 3)
    assert whole.isfinite().all()
    within = {"rtol": 0.02, "atol": 0.02} if precision == "bf16" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(short, whole[:8], **within)
    torch.testing.assert_close(torch.cat(alone), whole[:8], **within)
    assert precision == "bf16" or len(whole[:, 0].unique()) == 9  # no two texts are given the same


@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_of_a_text_does_not_depend_on_the_padding_behind_it(name: str) -> None:
    model, tokens = build(name)[1].eval(), texts()[:8]

    def gradients(width: int) -> list[Tensor]:
        model.zero_grad()
        model(tokens[:, :width]).square().sum().backward()
        return [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in model.parameters()]

    for one, other in zip(gradients(7), gradients(20), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_words_counts_every_parameter_learns_and_no_buffer_is_there_to_change(name: str) -> None:
    model, tokens = build(name)[1], texts()
    model(tokens).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert not list(model.buffers())
    model.eval()
    assert (model(tokens[7:8, :7]) - model(tokens[7:8, :7].flip(1))).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_layers_one_after_the_other_are_the_network(name: str) -> None:
    config, model = build(name)
    names, layers = list(model.state_dict()), models.layers(config, model)
    torch.manual_seed(1)
    x = tokens = texts()
    for layer in layers:
        x = layer(x)
    torch.manual_seed(1)
    assert torch.equal(x, model(tokens))
    theirs = [id(parameter) for layer in layers for parameter in layer.parameters()]
    assert sorted(theirs) == sorted(id(parameter) for parameter in model.parameters())
    assert list(model.state_dict()) == names
    assert len(layers) == {"textcnn": 3, "lstm": 4, "text_transformer": 4}[name]


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # an LSTM lists its weights a second time
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_any_number_of_texts_passes_through_the_exported_network(name: str) -> None:
    model, tokens = build(name)[1].eval(), texts()
    program = torch.export.export(model, (tokens[:2],), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    torch.testing.assert_close(program.module()(tokens), model(tokens))
    with torch.device("meta"):
        outline = models.outline(TrainConfig(model=name), SPEC)  # type: ignore[arg-type]
        assert outline(modality.of(SPEC).example(2)).shape == (2, 3)


def test_the_networks_have_the_parameters_of_their_descriptions() -> None:
    """In the transformer, a block has 12 dim² weights where its hidden layer is four times as wide, as in the paper."""
    classes, words, length = 2, 8000, 256
    spec = dataclasses.replace(SPEC, vocabulary=words, shape=(length,), num_classes=classes)

    def size(name: str, **options: object) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build(name, spec, **options)[1].parameters())

    kim = sum(300 * width * 100 + 100 for width in (3, 4, 5)) + 300 * classes + classes
    assert size("textcnn", dim=300, filters=100) == words * 300 + kim
    gates = 4 * (64 * 32 + 32 * 32 + 2 * 32)
    assert size("lstm", dim=64, hidden=32, layers=1) == words * 64 + 2 * gates + 64 * classes + classes
    block = 12 * 64**2 + (3 + 1 + 4 + 1) * 64 + 4 * 64
    others = length * 64 + 2 * 64 + 64 * classes + classes
    assert size("text_transformer", dim=64, heads=4, depth=3, mlp_ratio=4) == words * 64 + 3 * block + others


def test_a_direction_of_the_lstm_is_pytorchs_own_on_packed_texts() -> None:
    torch.manual_seed(0)
    layer, theirs = BothWays(8, 6, 0.0), nn.LSTM(8, 6, batch_first=True, bidirectional=True)
    for one, suffix in ((layer.forwards, ""), (layer.backwards, "_reverse")):
        for name, parameter in one.named_parameters():
            parameter.data.copy_(getattr(theirs, name + suffix))
    tokens = texts()[1:]
    x, lengths = torch.randn(8, 20, 8), (tokens != 0).sum(1)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    mask = positions(tokens)
    torch.testing.assert_close(layer(x, mask)[mask], expected[mask])
