"""`remediator run`: flags made from the settings' one definition, then the application."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from remediator.cli.failure import Failure
from remediator.cli.options import guarded
from remediator.settings import Option, SettingsError, load_settings, options


def run_app() -> typer.Typer:
    """Return a program whose only command is `run`, with a flag for each setting."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    def run(**given: str | None) -> None:
        guarded(run_controller, given)

    parameters = [_parameter(option) for option in options()]
    run.__doc__ = (
        "Run the controller: watch the nodes, decide by the policies, act.\n\n"
        "A flag wins over its variable (--lease-name: REMEDIATOR_LEASE_NAME). Without a"
        " RemediatorConfig that says `mode: Enforce`, everything is a dry-run."
    )
    # typer reads flags from a signature; ours is made at run time.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    app.command()(run)
    return app


def run_controller(given: dict[str, str | None]) -> None:
    """Run until stopped.

    Raises:
        Failure: the settings cannot be used (2), or the application ended with an error.
    """
    try:
        settings = load_settings(given)
    except SettingsError as error:
        lines = (f"error: {line}" for line in str(error).splitlines())
        raise Failure(*lines, code=2) from error
    from remediator.app import run  # noqa: PLC0415 - only when it is really run

    code = run(settings)
    if code:
        raise typer.Exit(code)


def _parameter(option: Option) -> inspect.Parameter:
    words = f" One of: {', '.join(option.choices)}." if option.choices else ""
    default = f" Default: {option.default}." if option.default else ""
    kind: Any = Annotated[
        str | None,
        typer.Option(
            option.flag, help=option.help + words + default, metavar="", show_default=False
        ),
    ]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
    )
