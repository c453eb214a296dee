"""``anabranch show``: a configuration as TOML."""

from __future__ import annotations

import typer
from rich.console import Console

from anabranch.cli.common import SetOption, SourceArgument, errors

EXAMPLES = (
    "Examples:\n\n"
    "anabranch show imnist\n\n"
    "anabranch show imnist --set update.name=SLR > mine.toml\n\n"
    "anabranch show runs/long"
)


def show(source: SourceArgument, changes: SetOption = None) -> None:
    """Print a configuration as TOML: a preset with its comments, or all settings of a file after --set."""
    with errors(Console(stderr=True)):
        from anabranch.config.load import PRESETS, load, parse_override, preset_text

        if source in PRESETS and not changes:
            typer.echo(preset_text(source), nl=False)
        else:
            config = load(source, [parse_override(change, "--set") for change in changes or ()])
            typer.echo(config.to_toml(), nl=False)
