from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cifar_ray.config.errors import ConfigError
from cifar_ray.reporting import cautions, cost, figures, words
from cifar_ray.reporting.frame import Runs
from tests.support.studies import grid, study, trial
from tests.unit.reporting.test_tables import sections

CLUSTER = Path(__file__).parents[3] / "cluster.yaml"


def priced(usd: float) -> cost.Price:
    return replace(cost.find("g4dn.xlarge"), usd_per_hour=usd)


def test_a_type_has_two_prices_with_their_date_and_page() -> None:
    demand, spot = cost.find("g4dn.xlarge"), cost.find("g4dn.xlarge:spot")
    assert cost.find("g4dn.xlarge:on-demand") == demand
    assert demand.usd_per_hour == 0.526
    assert demand.words == (
        "g4dn.xlarge at 0.526 USD per hour (AWS us-east-1, on demand, as of 2025-06; "
        "https://aws.amazon.com/ec2/pricing/on-demand/)"
    )
    assert "spot, a typical value that moves" in spot.words


def test_every_type_of_the_list_can_be_used() -> None:
    for machine in cost._listed()["types"]:
        demand, spot = cost.find(machine), cost.find(f"{machine}:spot")
        assert 0 < spot.usd_per_hour < demand.usd_per_hour
        assert "; https://" in demand.words


@pytest.mark.parametrize("word", ["g4dn.xlrge", "t3.nano", "g5.xlarge:reserved", ""])
def test_an_unknown_type_or_market_is_refused(word: str) -> None:
    expected = r"^price must be USD per hour, c7i.large, .* with :spot or :on-demand, or a Ray cluster file, got "
    with pytest.raises(ConfigError, match=expected + repr(word)) as caught:
        cost.find(word)
    assert ("did you mean 'g4dn.xlarge'?" in str(caught.value)) == (word == "g4dn.xlrge")


def test_a_price_of_ones_own_is_for_any_device() -> None:
    own = cost.find("2.49")
    assert (own.usd_per_hour, own.words) == (2.49, "your price, 2.49 USD per node and hour")
    assert own.suits("cpu")
    assert own.suits("cuda")
    assert cost.assumption(own) == "Cost: your price, 2.49 USD per node and hour, paid by the second."
    assert own.paid(2, 1800.0) == pytest.approx(2.49)


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf", "0.0"])
def test_a_price_of_nothing_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"^price must be more than 0 USD per node and hour, got {word}$"):
        cost.find(word)


@pytest.mark.parametrize("word", ["2.49", "g4dn.xlarge", "g4dn.xlarge:spot", str(CLUSTER), f"{CLUSTER}:spot"])
def test_a_price_is_found_again_where_the_file_that_named_it_is_not(word: str) -> None:
    assert "/" not in cost.find(word).word
    assert cost.find(cost.find(word).word) == cost.find(word)


def test_the_price_of_a_machine_with_another_device_is_refused() -> None:
    for price, device in (("g4dn.xlarge", "cuda"), ("c7i.large", "cpu"), ("2.49", "cpu"), ("2.49", "cuda")):
        cost.check_device(cost.find(price), device)
    cost.check_device(None, "cuda")
    with pytest.raises(ConfigError, match=r"for runs on CPUs, and g4dn.xlarge has a GPU; your own price"):
        cost.check_device(cost.find("g4dn.xlarge"), "cpu")
    with pytest.raises(ConfigError, match=r"for runs on GPUs, and c7i.large has no GPU"):
        cost.check_device(cost.find("c7i.large"), "cuda")


def test_costs_at_ones_own_price_are_marked_on_any_device() -> None:
    for device in ("cpu", "cuda"):
        made = replace(grid(), trials=[replace(t, params={**t.params, "device": device}) for t in grid().trials])
        runs = Runs(made)
        (finding,) = words.findings(runs, cost.find("2.49"))
        assert "Lowest cost at your price (n = 1)" in [highlight.title for highlight in finding.highlights]
        assert not any("USD per hour" in caution for caution in cautions.cautions(runs, cost.find("2.49")))


def test_a_cluster_file_has_the_price_of_its_workers() -> None:
    assert cost.find(str(CLUSTER)) == cost.find("g6.xlarge")
    assert cost.find(f"{CLUSTER}:spot") == cost.find("g6.xlarge:spot")


def test_a_cluster_on_aws_with_spot_machines_alone(tmp_path: Path) -> None:
    file, node = tmp_path / "aws.yaml", "{InstanceType: g4dn.xlarge, InstanceMarketOptions: {MarketType: spot}}"
    file.write_text(f"available_node_types: {{a: {{node_config: {node}}}}}")
    assert cost.find(str(file)) == cost.find("g4dn.xlarge:spot")
    assert [cost.find(name).gpus for name in ("m7i.xlarge", "g4dn.xlarge", "g4dn.12xlarge")] == [0, 1, 4]


GCP = """
head_node_type: head
available_node_types:
  head: {node_config: {machineType: e2-standard-4}}
  gpu:
    node_config:
      machineType: zones/us-central1-a/machineTypes/n1-standard-4
      guestAccelerators: [{acceleratorType: nvidia-tesla-t4, acceleratorCount: 1}]
      scheduling: {preemptible: true}
"""


@pytest.mark.parametrize(
    ("scheduling", "market"),
    [
        ("{preemptible: true}", "spot"),
        ("{provisioningModel: SPOT}", "spot"),
        ("{provisioningModel: STANDARD}", "on-demand"),
    ],
)
def test_a_cluster_on_gcp_with_spot_machines(scheduling: str, market: str, tmp_path: Path) -> None:
    file = tmp_path / "gcp.yaml"
    text = GCP.replace("{preemptible: true}", scheduling)
    for gpus in ("nvidia-tesla-t4, acceleratorCount: 1", "projects/p/zones/z/acceleratorTypes/nvidia-tesla-t4"):
        file.write_text(text.replace("nvidia-tesla-t4, acceleratorCount: 1", gpus))
        assert cost.find(str(file)) == cost.find(f"n1-standard-4+t4:{market}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1", "whose available_node_types have one machine type for its workers; .* has none"),
        ("available_node_types: {a: {node_config: {}}}", "have one machine type for its workers; .* has none"),
        (
            "available_node_types: {a: {node_config: {InstanceType: x}}, b: {node_config: {InstanceType: y}}}",
            "has x, y",
        ),
        ("available_node_types: {a: {node_config: {InstanceType: x}}}", "got 'x'"),
        ("{", "must be a machine type or a Ray cluster file: cannot read"),
    ],
)
def test_a_cluster_file_without_a_price_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        cost.find(str(file))
    assert caught.value.key == "price"


def test_a_run_costs_its_nodes_for_all_its_phases() -> None:
    run = trial("2x2", training_s=3560.0)  # and 4 x 10 s
    assert figures.cost_of_run(priced(3.0)).measure(run) == pytest.approx(6.0)
    timed = replace(run, metrics={**run.metrics, "time/wall_s": 5400.0})
    assert figures.cost_of_run(priced(3.0)).measure(timed) == pytest.approx(9.0)
    partly = replace(run, metrics={k: v for k, v in run.metrics.items() if k != "time/startup_s"})
    assert figures.cost_of_run(priced(3.0)).measure(partly) is None


def test_there_are_no_costs_without_a_price() -> None:
    def costs(price: cost.Price | None) -> set[str]:
        (section,) = sections(grid(), (), price)
        headings = {title for table in (*section.tables, *section.folded) for title in table.columns}
        return {title for title in headings if "USD" in title}

    assert costs(None) == set()
    assert costs(priced(1.0)) == {"Cost (USD)"}


def test_a_cost_says_what_it_assumes() -> None:
    (section,) = sections(study(trial()), (), priced(36.0))
    (main,) = section.tables
    assert dict(zip(main.columns[1:], main.rows[0][1]))["Cost (USD)"].text == "1.40"  # 140 s
    assert any("as of 2025-06" in note and "paid by the second" in note for note in main.notes)
