"""All encodings on one corpus: pretraining, the small tasks of GLUE, and texts longer than those trained on."""

from __future__ import annotations

from dataclasses import replace

from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans import recipes
from headway.bench.study.plans.glue_tables import builtin_column, builtin_tasks
from headway.bench.study.plans.rows import FASTER, FASTER_NOTE, linformer, local, performer
from headway.bench.tasks.finetune import Data, FinetuneConfig, Grid
from headway.bench.tasks.finetune.recipes import full
from headway.bench.tasks.pretrain import Intervals, Optimisation, PretrainConfig

# GLUE's other small task, WNLI, is in no paper's mean.
TASKS = {"sst2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE"}
WANG, LINEAR = linformer(32)


NO_QUERIES = {"attention": "synthesizer"}


def _renamed(row: Row, name: str) -> Row:
    """Return a row of another kind of attention under this table's name, with this table's learning rate."""
    added = "scores" in row.choice.kinds[0].places
    name = f"{name}, {row.choice.name}"
    return replace(row, name=name, position_rate=FASTER if added else row.position_rate)


def _per_head(name: str, encoding: str) -> Row:
    return Row(name=name, encoding=encoding, position_rate=FASTER)


ROWS: tuple[Row, ...] = (
    Row(name="none", encoding="none"),
    Row(name="learned", encoding="learned:segments=input"),
    _per_head("diet-rel", "diet-rel"),
    _per_head("diet-abs 64, shared", "diet-abs:rank=64,sharing=layer"),
    _per_head("tisa", "tisa"),
    _per_head("t5", "t5"),
    Row(name="shaw", encoding="shaw"),
    Row(name="rope", encoding="rope"),
    _per_head("diet-rel, shared by heads", "diet-rel:sharing=head"),
    _per_head("diet-rel, shared by layers", "diet-rel:sharing=layer"),
    _per_head("diet-abs 64", "diet-abs:rank=64,sharing=none"),
    _per_head("diet-abs 128, shared", "diet-abs:rank=128,sharing=layer"),
    _per_head("diet-abs 128", "diet-abs:rank=128,sharing=none"),
    Row(name="sinusoidal", encoding="sinusoidal:segments=input"),
    Row(name="sinusoidal, amplitude 0.03", encoding="sinusoidal:amplitude=0.03,segments=input"),
    Row(name="transformer-xl", encoding="transformer-xl"),
    Row(name="tupe-abs", encoding="tupe-abs"),
    Row(name="tupe-rel", encoding="tupe-rel"),
    _per_head("abs-scalar", "abs-scalar"),
    _per_head("rel-scalar", "rel-scalar"),
    Row(name="alibi", encoding="alibi"),
    _per_head("diet-rel, segments at the input", "diet-rel:segments=input"),
    _per_head("diet-abs 64, shared, segments at the input", "diet-abs:rank=64,sharing=layer,segments=input"),
    _per_head("tisa, 1 kernel", "tisa:kernels=1"),
    _per_head("tisa, 3 kernels", "tisa:kernels=3"),
    Row(name="learned + tisa", encoding="learned+tisa:segments=input"),
    Row(name="learned + diet-abs 64", encoding="learned+diet-abs:rank=64,segments=input"),
    WANG,
    replace(LINEAR, position_rate=FASTER),
    Row(name="music-transformer", encoding="music-transformer"),
    replace(_per_head("random synthesizer", "synthesizer"), changes=NO_QUERIES),
    replace(_per_head("factorised synthesizer, rank 8", "synthesizer:rank=8"), changes=NO_QUERIES),
    replace(_per_head("diet-rel without q and k", "diet-rel"), changes=NO_QUERIES),
    *(_renamed(row, "local") for row in local(16)),
    *(_renamed(row, "performer") for row in performer(64)),
)
INPUT = ("learned", "sinusoidal")
CLOSEST = ("learned", "diet-rel", "diet-abs 64, shared", "diet-abs 128, shared", "tisa", "t5", "tupe-abs", "tupe-rel")
PER_HEAD = ("diet-rel", "diet-abs 64, shared", "t5", "shaw", "rope", "tisa")


def encodings(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan all encodings on one corpus: loss, small tasks of GLUE, and loss on texts longer than those trained on."""
    pretraining = _pretraining(size, data)
    length = pretraining.text.length
    lengths = tuple(times * length for times in (1, 2, 4, 8))
    tasks = _tasks(size, data)
    return Plan(
        name="encodings",
        size=size,
        title="Every encoding on the same text",
        rows=ROWS,
        columns=(
            Column(
                name="Loss",
                source="pretrain",
                value="evaluation_loss",
                measure="nats a masked word",
                scale=1.0,
                digits=3,
                higher=False,
            ),
            Column(name="Masked words", source="pretrain", value="masked_accuracy", measure="accuracy, %"),
            *_task_columns(size),
            *(
                Column(
                    name=f"{each} tokens",
                    source="lengths",
                    value=str(each),
                    measure="nats a masked word, in texts of that length",
                    scale=1.0,
                    digits=3,
                    higher=False,
                )
                for each in lengths
            ),
        ),
        baseline="learned",
        pretrain=pretraining,
        finetune=tasks,
        lengths=lengths,
        again=(*CLOSEST, "transformer-xl") if size == "gpu" else (),  # a run of transformer-xl collapsed
        analyse=True,
        claims=_claims(),
        notes=(
            f"Models have {length} positions and are trained on texts of that length. Longer texts are read by "
            "encodings that are defined there.",
            FASTER_NOTE,
        ),
    )


def _pretraining(size: str, data: str | None) -> PretrainConfig:
    if size == "quick":
        config = recipes.builtin_pretraining()
    else:
        config = recipes.pretraining(size, data)
    if size == "gpu":  # 119,603,200 places; of rows of whole sentences some five in six hold a token
        config = replace(
            config,
            optimisation=Optimisation(steps=3650, batch=256, learning_rate=5e-4, warmup=0.1),
            intervals=Intervals(log=50, evaluate=500, checkpoint=3650, keep=1),
        )
    changes = {**config.model.changes, "max_position_embeddings": config.text.length}
    return replace(config, model=replace(config.model, changes=changes))


def _tasks(size: str, data: str | None) -> dict[str, FinetuneConfig]:
    if size == "quick":
        return builtin_tasks(("builtin:acceptability",))
    where = Data(train=(recipes.source(data, "glue"),), on_error="skip")
    found = {task: full(task, recipes.ROW_MODEL, where) for task in TASKS}
    if size == "paper":
        return found
    grid, most = Grid(rates=(1e-4, 3e-4), seeds=(0, 1, 2, 3, 4)), {"sst2": recipes.LIMIT}
    return {
        task: replace(
            config,
            grid=grid,
            data=replace(where, limit=most.get(task)),
            protocol=replace(config.protocol, epochs=2 if task in most else 3, evaluate=None, metric=None),
        )
        for task, config in found.items()
    }


def _task_columns(size: str) -> tuple[Column, ...]:
    if size == "quick":
        return (builtin_column("builtin:acceptability"),)
    own = [
        Column(name=name, source="finetune", task=task, measure="GLUE's score of the task")
        for task, name in TASKS.items()
    ]
    return (*own, Column(name="GLUE", source="mean", task=",".join(TASKS.values()), measure="mean of the five"))


def _claims() -> tuple[RowClaim, ...]:
    diet = "Chen et al. (2021b)"
    return (
        RowClaim(says="position lowers the loss", column="Loss", better=("learned",), than=("none",), margin=0.1),
        RowClaim(says="per-head encodings are at or below position at the input", column="Loss", better=PER_HEAD,
              than=INPUT, paper=f"{diet}, Sec. 4.1"),
        RowClaim(says="sharing by heads is worse than by layers, for DIET-REL", column="Loss",
              better=("diet-rel, shared by layers",), than=("diet-rel, shared by heads",), paper=f"{diet}, App. D"),
        RowClaim(says="sharing does not hurt DIET-ABS", column="Loss", better=("diet-abs 64, shared",),
              than=("diet-abs 64",), paper=f"{diet}, Table 9"),
        RowClaim(says="rank 128 is at or below rank 64", column="Loss", better=("diet-abs 128, shared",),
              than=("diet-abs 64, shared",), paper=f"{diet}, Table 8"),
    )  # fmt: skip
