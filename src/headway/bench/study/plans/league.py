"""The league: encodings on the same text, each at learning rates of its own; docs/league.md is its design."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from headway.bench.cost import CostConfig
from headway.bench.study.plan import Column, Longer, Plan, RateGrid, Row
from headway.bench.study.plans import recipes
from headway.bench.study.plans.glue_tables import builtin_column, builtin_tasks
from headway.bench.tasks.finetune import Data, FinetuneConfig, Grid, Protocol, Spans
from headway.bench.tasks.pretrain import Intervals, Optimisation, PretrainConfig

ROWS = tuple(
    Row(name=name, encoding=f"{encoding}segments=input")
    for name, encoding in (
        ("none", "none:"),
        ("learned", "learned:"),
        ("sinusoidal", "sinusoidal:amplitude=0.03,"),
        ("rope", "rope:"),
        ("alibi", "alibi:"),
        ("t5", "t5:"),
        ("shaw", "shaw:"),
        ("transformer-xl", "transformer-xl:"),
        ("tisa", "tisa:"),
        ("diet-rel", "diet-rel:"),
        ("diet-abs 128, shared", "diet-abs:rank=128,sharing=layer,"),
        ("diet-abs 128", "diet-abs:rank=128,sharing=none,"),
        ("tupe-rel", "tupe-rel:"),
        ("learned + tisa", "learned+tisa:"),
    )
)
QUICK = ("none", "learned", "rope", "tisa", "diet-rel")
NOISE = ("learned", "diet-rel")
BASE = ("learned", "rope", "t5", "diet-rel")
BASE_SHARE = 0.2  # of the learning rate of BERT-small
RATES, POSITION_RATES = (5e-4, 1e-3, 2e-3), (1.0, 3.0, 10.0, 30.0)
TOKENS_A_STEP = 27_700  # of 256 rows of 128 places, in whole sentences, as measured in results/studies/encodings
PLATEAU = {"quick": 3.7, "gpu": 5.5}  # nats; encodings that do not learn order end at 4.0 and at 6.1
PROBES = {"probe:swap": "Swapped words", "probe:order": "Sentence order", "probe:distance": "Distance"}
GLUE = {"sst2": "SST-2", "cola": "CoLA", "stsb": "STS-B"}
LENGTHS = {"quick": (1, 2, 4), "gpu": (1, 2, 4, 8, 16)}  # times that of training
REACHES = ("none", "sinusoidal", "rope", "alibi", "t5", "shaw", "transformer-xl", "tisa", "diet-rel")  # any length
SITTING = 1000  # steps between checkpoints, from which a pretraining that was stopped goes on
LONGER = 4  # times the length of training: texts of a further training, and what scaled angles of RoPE are made for
PHENOMENA = ("island_effects", "filler_gap_dependency", "subject_verb_agreement", "determiner_noun_agreement")


def league(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan the league: which encoding learns a text best, for the same tokens and for the same time."""
    pretraining = _pretraining(size, data, tokens=300e6)
    tasks = _tasks(size, data, seeds=(0,))
    length = pretraining.text.length
    model = pretraining.model.preset
    timed = (length,) if size == "quick" else (length, 512, 2048)
    times = [length * times for times in LENGTHS[size]]
    return Plan(
        name="league",
        size=size,
        title="The league: encodings at learning rates of their own",
        rows=tuple(row for row in ROWS if size == "gpu" or row.name in QUICK),
        columns=(
            *loss_columns(size),
            Column(name="Loss at equal time", source="equal-time", value="evaluation_loss",
                   measure="nats a masked word", scale=1.0, digits=3, higher=False),
            *_task_columns(size, tasks),
            Column(name="Minimal pairs", source="minimal-pairs", value="all", chance=50.0,
                   measure="accuracy by pseudo-likelihood, %", order=size == "quick"),
            *(
                Column(name=f"Pairs: {name.replace('_', ' ')}", source="minimal-pairs", value=name, chance=50.0,
                       measure="accuracy, %")
                for name in (PHENOMENA if size == "gpu" else ())
            ),
            *(
                Column(name=f"{each} tokens", source="lengths", value=str(each), scale=1.0, digits=3, higher=False,
                       measure="nats a masked word, in texts of that length")
                for each in times
            ),
            *(
                Column(name=f"Time, {each} tokens", source="cost", value=f"training/{model}/{each}", scale=1.0,
                       digits=3, higher=False, measure="training step over that of learned")
                for each in timed
            ),
        ),
        baseline="learned",
        pretrain=pretraining,
        rates=rate_grid(size),
        finetune=tasks,
        cost=CostConfig(models=(model,), lengths=timed, modes=("training",), rounds=3 if size == "quick" else 7),
        seeds=(0, 1) if size == "quick" else (0, 1, 2, 3),
        lengths=tuple(times),
        minimal_pairs=_minimal_pairs(size, data),
        pooled=True,
        plateau=PLATEAU[size],
        notes=_notes(size),
    )  # fmt: skip


def league_noise(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan the league's noise: how much the seeds of pretraining and of fine-tuning change each measure."""
    pretraining = _pretraining(size, data, tokens=100e6)
    tasks = _tasks(size, data, seeds=(0, 1, 2))
    return Plan(
        name="league-noise",
        size=size,
        title="What seeds alone change in the league",
        rows=tuple(row for row in ROWS if row.name in NOISE),
        columns=(*loss_columns(size), *_task_columns(size, tasks)),
        baseline="learned",
        pretrain=pretraining,
        rates=rate_grid(size),
        finetune=tasks,
        seeds=tuple(range(3 if size == "quick" else 18)),
        pooled=True,
        plateau=PLATEAU[size],
        notes=_notes(size),
    )


def league_length(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan the league on longer texts than those of training, for encodings that are defined for any length."""
    pretraining = _pretraining(size, data, tokens=300e6)
    length = pretraining.text.length
    reach = length * 7 // 8
    rows = [row for row in ROWS if row.name in REACHES]
    at = next(number for number, row in enumerate(rows) if row.name == "rope") + 1
    rows[at:at] = [
        Row(name=f"rope, {name}", encoding=f"rope:{options},segments=input", pretrained_as="rope")
        for name, options in (
            ("base times 10", "base=100000"),
            *((scaling, f"scaling={scaling},factor={LONGER}") for scaling in ("linear", "ntk", "yarn")),
        )
    ]
    rows.append(Row(name=f"diet-rel, reach {reach}", encoding=f"diet-rel:reach={reach},segments=input"))
    if size == "quick":
        rows = [row for row in rows if row.name in ("none", "rope", "rope, yarn") or row.name.startswith("diet-rel")]
    times = [length * each for each in LENGTHS[size]]
    after = f", after 2 % more training on texts of {LONGER * length} tokens"
    return Plan(
        name="league-length",
        size=size,
        title="Texts longer than those of training",
        rows=tuple(rows),
        columns=tuple(
            Column(name=f"{each} tokens{', trained on' if task else ''}", source="lengths", task=task, value=str(each),
                   scale=1.0, digits=3, higher=False,
                   measure=f"nats a masked word, in texts of that length{after if task else ''}")
            for task in ("", "longer")
            for each in times
        ),
        baseline="rope",
        pretrain=pretraining,
        rates=rate_grid(size),
        seeds=(0, 1) if size == "quick" else (0, 1, 2, 3),
        lengths=tuple(times),
        longer=Longer(times=LONGER, share=0.02, rate=0.1),
        pooled=True,
        plateau=PLATEAU[size],
        notes=(
            *_notes(size),
            f"“Trained on”: after 2 % more steps on texts of {LONGER * length} tokens, with as many tokens a step, at "
            "a tenth of the rates.",
            "Rows “rope, ...” are the models of rope with other angles, which they were not trained with.",
        ),
    )  # fmt: skip


def league_conversion(size: str = "gpu", data: str | None = None, models: tuple[str, ...] = ()) -> Plan:
    """Plan what pretrained models gain or lose when their positions are supplemented or replaced.

    Args:
        models: one pretrained encoder with learned positions, folder or name on the Hub, in place of headway's own.
    """
    if len(models) > 1:
        raise ValueError(f"models: expected one model to convert, got {', '.join(models)}. Make a study for each.")
    given = str(Path(models[0]).expanduser()) if models and Path(models[0]).expanduser().is_dir() else "".join(models)
    pretraining = _pretraining(size, data, tokens=50e6 if given else 300e6)
    biases: tuple[str, ...] = ("tisa:kernels=1", "tisa:kernels=3", "tisa:kernels=5", "t5", "diet-rel", "alibi")
    if size == "quick":
        biases = ("tisa:kernels=3", "alibi")
    steps = {"50 steps": 50} if size == "quick" else {"10M tokens": _steps(10e6), "50M tokens": _steps(50e6)}
    batch = pretraining.optimisation.batch
    further = {
        name: Optimisation(steps=count, batch=batch, learning_rate=2e-4, warmup=0.1, position_rate=10.0)
        for name, count in steps.items()
    }
    if given:
        last = list(further.values())[-1]
        text = replace(pretraining.text, tokenizer=given, kind=None, vocab_size=None)
        pretraining = replace(pretraining, text=text, optimisation=replace(last, position_rate=1.0))
    return Plan(
        name="league-conversion",
        size=size,
        title="Other positions for pretrained models",
        rows=(
            Row(name="control", encoding="learned:segments=input"),
            *(
                Row(name=f"{mode} {bias.replace(':kernels=', ', S = ')}",
                    encoding=f"{kept}{bias}{',' if ':' in bias else ':'}segments=input")
                for mode, kept in (("supplement", "learned+"), ("replace", ""))
                for bias in biases
            ),
        ),
        columns=tuple(
            Column(name=f"{name}: {what}", source="further", task=task, value=value, scale=scale, digits=digits,
                   higher=higher, measure=f"{measure}, {name}")
            for value, what, measure, scale, digits, higher in (
                ("evaluation_loss", "loss", "nats a masked word", 1.0, 3, False),
                ("masked_accuracy", "words", "masked words named, %", 100.0, 1, True),
            )
            for task, name in (("", "as converted"), *((each, f"after {each}") for each in steps))
        ),
        baseline="control",
        pretrain=pretraining,
        original=given or None,
        rates=None if given else rate_grid(size),
        seeds=(0, 1) if size == "quick" else (0, 1, 2, 3),
        converted=True,
        further=further,
        pooled=True,
        plateau=PLATEAU[size],
        notes=(
            f"Control: {given}, which first learned to name masked words of this text, trained further in the same way."
            if given
            else "Control: the models of “learned” as they are, trained further in the same way.",
            "Supplement: the position table stays, and a bias is added to the scores; replace: the bias takes its "
            "place (Wennberg and Henter 2021, Eq. 4). Biases begin at a fit to the model's own position scores; ALiBi "
            "has nothing to fit.",
            "S: number of TISA's kernels.",
        ),
    )  # fmt: skip


def league_base(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan four encodings in a larger encoder, to see whether they stand in the same order."""
    small = _pretraining(size, data, tokens=650e6)
    changes = {**small.model.changes, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4}
    large = replace(small.model, changes=changes) if size == "quick" else replace(small.model, preset="bert-base")
    return Plan(
        name="league-base",
        size=size,
        title="The league in a larger encoder",
        rows=tuple(row for row in ROWS if row.name in (BASE if size == "gpu" else ("learned", "rope"))),
        columns=(
            *loss_columns(size),
            Column(name="Minimal pairs", source="minimal-pairs", value="all", chance=50.0,
                   measure="accuracy by pseudo-likelihood, %", order=size == "quick"),
        ),
        baseline="learned",
        pretrain=replace(small, model=large),
        rates=replace(rate_grid(size), model=small.model, share=BASE_SHARE),
        seeds=(0, 1),
        minimal_pairs=_minimal_pairs(size, data),
        pooled=True,
        plateau=PLATEAU[size],
        notes=(
            "The design, with what would count against each claim, is docs/league.md.",
            f"Each row has the rates that it chose in the league, the learning rate times {BASE_SHARE:g}, because "
            "larger encoders need lower ones.",
        ),
    )  # fmt: skip


def _minimal_pairs(size: str, data: str | None) -> str:
    return "builtin" if size == "quick" else str(Path(recipes.folder(data, "glue"), "blimp"))


def rate_grid(size: str) -> RateGrid:
    if size == "quick":
        return RateGrid(rates=(1e-3, 3e-3), position_rates=(1.0, 10.0), steps=200)
    return RateGrid(rates=RATES, position_rates=POSITION_RATES, steps=_steps(50e6))


def _steps(tokens: float) -> int:
    return round(tokens / TOKENS_A_STEP)


def _pretraining(size: str, data: str | None, *, tokens: float) -> PretrainConfig:
    if size == "quick":
        config = recipes.builtin_pretraining()
        config = replace(config, intervals=replace(config.intervals, evaluate=50))
    elif size == "gpu":
        config = recipes.small_pretraining(wikipedia(recipes.folder(data))[:-1], kind="wordpiece", length=128)
        steps = _steps(tokens)
        config = replace(
            config,
            optimisation=Optimisation(steps=steps, batch=256, learning_rate=RATES[0], warmup=0.1),
            intervals=Intervals(log=50, evaluate=200, checkpoint=SITTING, keep=1),
        )
    else:
        raise ValueError(f"size: expected quick or gpu, because no paper has this study, got {size!r}.")
    changes = {**config.model.changes, "max_position_embeddings": config.text.length}
    return replace(config, model=replace(config.model, changes=changes))


def wikipedia(data: str) -> tuple[str, ...]:
    """Return the files of English Wikipedia in a folder of data, in order; the last one is kept for probes."""
    files = [Path(source) for source in recipes.corpora(data, english=True)]
    files = [path for path in files if path.name.startswith("en-wiki-")]
    if len(files) < 2:
        raise FileNotFoundError(
            f"data: expected at least two files such as en-wiki-00.txt in {Path(data) / 'corpus'}, because the last is "
            f"kept for probes, got {len(files)}."
        )
    twice = [name for name, count in Counter(path.name.split(".")[0] for path in files).items() if count > 1]
    if twice:
        raise ValueError(
            f"data: expected each text once in {Path(data) / 'corpus'}, got {twice[0]} in several files. Remove the "
            f"packed or the unpacked one."
        )
    return tuple(map(str, files))


def _tasks(size: str, data: str | None, *, seeds: tuple[int, ...]) -> dict[str, FinetuneConfig]:
    if size == "quick":
        tasks = builtin_tasks(("builtin:acceptability",))
        return {name: replace(task, grid=replace(task.grid, seeds=seeds)) for name, task in tasks.items()}
    folder = recipes.folder(data, "glue", "xtreme")
    grid = Grid(rates=(1e-4, 3e-4), seeds=seeds)
    made = {}
    for task in PROBES:
        text = wikipedia(folder)[-1]
        source = Data(train=(text,), dev=(f"{task}@dev={text}",), transfer=(f"{task}@test={text}",))
        made[task] = FinetuneConfig(
            task=task, start=recipes.ROW_MODEL, data=source, grid=grid, protocol=Protocol(epochs=2, length=128)
        )
    shifts = Path(folder, "xtreme", "squadshifts")
    made["squad"] = FinetuneConfig(
        task="squad",
        start=recipes.ROW_MODEL,
        data=Data(
            train=tuple(str(shifts / f"{name}_v1.0.json") for name in ("new_wiki", "reddit")),
            dev=(str(shifts / "amazon_reviews_v1.0.json"),),
        ),
        grid=replace(grid, rates=(3e-4,)),
        protocol=Protocol(epochs=3, length=128, evaluate=1_000_000),  # only after the last step: nothing is chosen
        spans=Spans(overlap=32, max_question=24),
    )
    where = Data(train=(str(Path(folder, "glue")),))
    for task in GLUE:
        epochs, limit = (2, recipes.LIMIT) if task == "sst2" else (3, None)
        made[task] = FinetuneConfig(
            task=task,
            start=recipes.ROW_MODEL,
            data=replace(where, limit=limit),
            grid=grid,
            protocol=Protocol(epochs=epochs, length=128),
        )
    return made


def loss_columns(size: str, plateau: float | None = None) -> tuple[Column, ...]:
    """Return the columns of a pretraining's loss, of the tokens until its plateau is left, and of named words."""
    plateau = PLATEAU[size] if plateau is None else plateau
    unit, scale = ("thousand", 1e-3) if size == "quick" else ("million", 1e-6)
    return (
        Column(name="Loss", source="pretrain", value="evaluation_loss", measure="nats a masked word, held out",
               scale=1.0, digits=3, higher=False),
        Column(name="Off the plateau", source="pretrain", value=f"below/{plateau}", scale=scale, digits=1,
               higher=False, measure=f"{unit} tokens until the held-out loss is below {plateau}"),
        Column(name="Masked words", source="pretrain", value="masked_accuracy", measure="accuracy, %"),
    )  # fmt: skip


def _task_columns(size: str, tasks: dict[str, FinetuneConfig]) -> tuple[Column, ...]:
    if size == "quick":
        return tuple(builtin_column(task) for task in tasks)
    chances = {task: 100 / len(tasks[task].task_spec.labels) for task in PROBES}
    return (
        *(
            Column(name=name, source="finetune", task=task, value=f"transfer/{task}/accuracy", chance=chances[task],
                   order=True, measure="accuracy on test, %")
            for task, name in PROBES.items()
        ),
        Column(name="Questions", source="finetune", task="squad", value="dev/f1", measure="F1 on Amazon's questions"),
        *(
            Column(name=name, source="finetune", task=task, measure="GLUE's score of the task")
            for task, name in GLUE.items()
        ),
    )  # fmt: skip


def _notes(size: str) -> tuple[str, ...]:
    return (
        "The design, with what would count against each claim, is docs/league.md.",
        f"Each row is pretrained at its own rates, chosen among {len(rate_grid(size).rates)} learning rates and "
        f"{len(rate_grid(size).position_rates)} rates of positions by the held-out loss of short trainings.",
        "All rows see the same texts in the same order with the same masks, for one seed; held-out articles are not "
        "trained on.",
    )
