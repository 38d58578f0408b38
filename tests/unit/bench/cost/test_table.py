"""Results: ratios within a model and length, JSON and back, and what people see."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from headway.bench.cost import CostConfig, CostTable, Measurement, Timing, print_table, published_ratio


def timing(*seconds, peak=2**20):
    return Timing(seconds=seconds, launched=seconds, flops=2_000_000_000, peak_bytes=peak)


def row(name, training, inference=None, length=128, **given):
    return Measurement(
        row=name,
        model="bert-small",
        length=length,
        batch=4,
        parameters=28_500_000,
        parity={"output": 0.5},
        training=training,
        inference=inference,
        **given,
    )


@pytest.fixture
def table():
    rows = (
        row("none", timing(1.0, 2.0, 1.0), timing(0.5, 0.5, 0.5)),
        row("shaw", timing(1.5, 3.0, 1.2), timing(0.6, 0.7, 0.8, peak=None)),
        row("diet-rel", None, problem="wrong, so it is not timed; error over what is allowed: output 7"),
        row("none", timing(4.0, 4.0, 4.0), timing(2.0, 2.0, 2.0), length=512),
        row("shaw", timing(5.0, 5.0, 5.0), timing(3.0, 3.0, 3.0), length=512),
    )
    config = CostConfig(
        encodings=("none", "shaw", "diet-rel"), models=("bert-small",), lengths=(128, 512), batch=4, device="cpu"
    )
    environment = {"torch": "2.13.0", "gpu": None, "threads": 2}
    return CostTable(config=config.resolved(cores=2), environment=environment, measurements=rows)


def test_ratios_are_to_the_baseline_of_the_same_length(table):
    none, shaw, red, _, long_shaw = table.measurements
    assert table.ratio(none, "training").median == 1.0
    assert table.ratio(shaw, "training").median == 1.5
    assert table.ratio(shaw, "inference").median == pytest.approx(1.4)
    assert table.ratio(long_shaw, "training").median == 1.25
    assert table.ratio(red, "training") is None
    assert table.ratio(none, "training", baseline="shaw").median == pytest.approx(2 / 3)
    assert table.ratio(shaw, "training", baseline="diet-rel") is None


def test_speed(table):
    assert table.measurements[0].tokens_per_second("training") == 4 * 128 / 1.0
    assert table.measurements[2].tokens_per_second("training") is None


@pytest.fixture
def beside_transformers(table):
    rows = (
        row("none", timing(1.0, 2.0, 1.0), timing(1.0, 1.0, 1.0)),
        row("transformers", timing(2.0, 3.0, 2.0), timing(2.0, 2.0, 2.0)),
        row("transformers:mask=false", timing(1.5, 3.0, 1.4), timing(3.0, 3.0, 3.0)),
        row("transformers:mask=false,head=masked", timing(1.2, 2.2, 1.1), timing(1.0, 1.0, 1.0)),
        row("transformers:compile=false", None, problem="RuntimeError: no memory"),
        row("none", timing(1.0, 1.0, 1.0), length=512),
    )
    return replace(table, measurements=rows)


def test_over_the_fastest_setting_of_transformers(beside_transformers):
    table = beside_transformers
    none, *_, alone = table.measurements
    assert table.fastest_transformers(none, "training") == "transformers:mask=false"
    assert table.fastest_transformers(none, "inference") == "transformers"
    assert table.fastest_transformers(none, "training", same_work=True) == "transformers:mask=false,head=masked"
    times = table.speed_over_transformers(none, "training")
    assert (times.median, times.low, times.high) == pytest.approx((1.5, 1.4, 1.5))
    assert table.speed_over_transformers(none, "training", same_work=True).median == pytest.approx(1.1)
    assert (
        table.fastest_transformers(alone, "training") is None
        and table.speed_over_transformers(alone, "training") is None
    )


def test_share_of_the_peak_rate(table):
    none, _, red, *_ = table.measurements
    assert table.mfu(none) is None  # a CPU
    config = replace(table.config, device="cuda", bf16=True)
    gpu = replace(table, config=config, environment={"gpu": "NVIDIA H200"})
    assert gpu.mfu(none) == pytest.approx(2e9 / 989e12)
    assert gpu.mfu(none, "inference") == pytest.approx(2e9 / 0.5 / 989e12)
    assert gpu.mfu(red) is None
    assert replace(gpu, environment={"gpu": "NVIDIA T4"}).mfu(none) is None
    assert replace(gpu, config=replace(config, bf16=False)).mfu(none) is None


def test_json_and_back(table):
    text = json.dumps(table.to_json(), allow_nan=False)
    assert CostTable.from_json(json.loads(text)) == table
    plain = json.loads(text)["measurements"]
    assert plain[1]["ratios"]["training"] == {"median": 1.5, "low": 1.2, "high": 1.5}
    assert plain[1]["steps_per_second"]["training"] == pytest.approx(1 / 1.5)
    assert plain[2]["ratios"] == plain[2]["steps_per_second"] == {"training": None, "inference": None}
    older = [{name: part for name, part in each.items() if name != "steps_per_second"} for each in plain]
    assert CostTable.from_json({**json.loads(text), "measurements": older}) == table


def shown(table):
    console = Console(file=io.StringIO(), width=80)
    print_table(table, console)
    return console.file.getvalue()


def test_people_see_times_ratios_and_the_paper(table):
    text = shown(table)
    lines = [line.split() for line in text.splitlines()]
    assert ["shaw", "1500.0", "1.500", "1.20-1.50", "341", "1", "2.0", "28.5M", "1.24"] in lines  # Table 1: +24 %
    assert ["shaw", "700.0", "1.400", "1.20-1.60", "731", "-", "2.0", "28.5M", "1.65"] in lines
    below = lines[lines.index(["shaw", "700.0", "1.400", "1.20-1.60", "731", "-", "2.0", "28.5M", "1.65"]) + 1]
    assert below == ["1.4"]  # steps a second
    assert ["encoding", "steps/s", "none", "20-80", "%", "tokens/s", "MiB", "GFLOP", "params", "paper"] in lines
    assert "Training step, bert-small, n = 512, 4 sequences" in text
    assert "Chen et al. (2021b), Table 1" in text
    assert "…" not in text


def test_a_red_row_has_no_numbers_and_says_why(table):
    text = shown(table)
    assert ["diet-rel", "-", "-", "-", "-", "-", "-", "28.5M", "1.00"] in [line.split() for line in text.splitlines()]
    assert "diet-rel, n = 128: wrong, so it is not timed" in text


def test_a_host_that_is_too_slow_is_named(table):
    config = replace(table.config, device="cuda")
    slow = replace(table, config=config, environment={"gpu": "NVIDIA H200", "threads": 2})
    assert "too slowly for the GPU: none, shaw" in " ".join(shown(slow).split())
    quick = [
        m if m.training is None else replace(m, training=replace(m.training, launched=(0.1,) * 3), inference=None)
        for m in slow.measurements
    ]
    assert "Limited by the host" not in shown(replace(slow, measurements=tuple(quick)))


def test_the_papers_table():
    """Chen et al. (2021b), Table 1, as percentages beyond 1."""
    rows = {
        ("bert-base", "training"): (13, 1, 0, 0),
        ("bert-base", "inference"): (33, 19, 0, 0),
        ("bert-small", "training"): (24, 4, 0, 0),
        ("bert-small", "inference"): (65, 27, 1, 0),
    }
    for (model, mode), percents in rows.items():
        for name, percent in zip(("shaw", "tupe-rel", "diet-abs", "diet-rel"), percents, strict=True):
            assert published_ratio(model, mode, name) == pytest.approx(1 + percent / 100)
    assert published_ratio("tiny", "training", "shaw") is None
    assert published_ratio("bert-base", "training", "t5") is None
