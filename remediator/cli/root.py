"""The program: its commands and flags. Only typer is imported: bodies import what they need.

Exit codes: 0 done; 1 the cluster or the controller said no, or nothing; 2 bad input.
"""
# PLC0415: bodies import lazily, so that --help stays quick.
# ruff: noqa: PLC0415

from __future__ import annotations

import typer

from remediator.cli.authors import authors_app
from remediator.cli.people import people_app


app = typer.Typer(
    name="remediator",
    help="Takes GPU nodes out of service by tested policies, and brings them back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(people_app)
app.add_typer(authors_app)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def run(context: typer.Context) -> None:
    """Run the controller: watch the nodes, decide by the policies, act (dry-run by default)."""
    # Its flags are the settings, whose one definition takes 0.4 s to import: they are read
    # by a command of their own, made when it is needed.
    from remediator.cli.run import run_app

    run_app()(args=context.args, prog_name=f"{context.command_path}")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"remediator {installed('gpu-remediator')}")
