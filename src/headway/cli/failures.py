"""What a command says when it cannot go on: a message and no traceback, for what a user can set right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told() -> Iterator[None]:
    """Turn errors that say what to do into messages; bad input ends with status 2, a run that broke with 1."""
    try:
        from safetensors import SafetensorError

        from headway.bench.tasks.training.runs import RunStopped
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{error}: expected the packages of models. pip install 'headway[models]'.") from None
    try:
        yield
    except (ValueError, NotImplementedError, FileExistsError, FileNotFoundError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    except SafetensorError as error:
        raise typer.BadParameter(
            f"weights: expected a whole safetensors file, got: {error}. It is damaged: fetch or copy it again."
        ) from None
    except (RunStopped, OSError, FloatingPointError) as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(1) from None
