"""What a command says when it cannot go on: a message and no traceback, for what a user can set right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told() -> Iterator[None]:
    """Turn errors that say what to do into messages; bad input ends with status 2, a run that broke with 1."""
    try:
        yield
    except (typer.BadParameter, typer.Exit):
        raise
    except (ValueError, NotImplementedError, FileExistsError, FileNotFoundError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    except (OSError, FloatingPointError) as error:
        _stop(error)
    except Exception as error:
        from safetensors import SafetensorError  # there, where it could have been raised

        from headway.bench.tasks.training.runs import RunStopped

        if isinstance(error, SafetensorError):
            raise typer.BadParameter(
                f"weights: expected a whole safetensors file, got: {error}. It is damaged: fetch or copy it again."
            ) from None
        if isinstance(error, RunStopped):
            _stop(error)
        raise


def _stop(error: Exception) -> None:
    typer.echo(f"headway: {error}", err=True)
    raise typer.Exit(1) from None
