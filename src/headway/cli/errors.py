"""What a command says when it cannot go on: a message without a traceback, for what a user can set right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


def name_missing_package(error: ImportError) -> str:
    """Say which package has to be installed, and how, unless the message says how already."""
    if "pip install" in str(error) or error.name is None or error.name.startswith("headway"):
        return str(error)
    return f"{error.name.partition('.')[0]} is needed and not installed: pip install 'headway[all]'"


class Refusal(typer.BadParameter):
    """A message after the line of usage; the exit status is 2."""

    def format_message(self) -> str:
        return self.message


@contextmanager
def exit_with_message(*, when_stopped: str = "stopped") -> Iterator[None]:
    """Turn errors that a user can set right into a message and an exit status.

    Bad input ends with status 2, a run that broke with 1, and Ctrl-C with 130.

    Args:
        when_stopped: what Ctrl-C says.
    """
    try:
        yield
    except (typer.BadParameter, typer.Exit, BrokenPipeError):  # typer itself ends quietly when `| head` has enough
        raise
    except ModuleNotFoundError as error:
        raise Refusal(name_missing_package(error)) from None
    except (ValueError, NotImplementedError, FileExistsError, FileNotFoundError, ImportError) as error:
        raise Refusal(str(error)) from None
    except (OSError, FloatingPointError) as error:
        _exit(f"headway: {error}", 1)
    except KeyboardInterrupt:
        _exit(f"\n{when_stopped}", 130)
    except Exception as error:
        from safetensors import SafetensorError  # there, where it could have been raised

        from headway.bench.tasks.training.run_folder import RunStopped

        if isinstance(error, SafetensorError):
            raise Refusal(
                f"weights: expected a whole safetensors file, got: {error}. It is damaged: fetch or copy it again."
            ) from None
        if isinstance(error, RunStopped):
            _exit(f"headway: {error}", 1)
        raise


def _exit(message: str, status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(status) from None
