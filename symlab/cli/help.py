"""The text of `symlab JOB --help`."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf, open_dict

from symlab.cli.arguments import Arguments
from symlab.cli.listing import config_dir, groups, jobs


def job_help(job: str, arguments: Arguments, config: DictConfig) -> str:
    """Groups with their options (the chosen one in brackets) and all keys with their values."""
    command = job.replace("_", "-")
    folders = [config_dir()] + ([arguments.config_dir] if arguments.config_dir is not None else [])
    options = groups(folders)
    choices = {key: chosen for key, chosen in config.hydra.runtime.choices.items() if key.partition("@")[0] in options}
    width = max((len(key) for key in choices), default=0)
    lines = [f"  {key:<{width}}  {_options(options[key.partition('@')[0]], choices[key])}" for key in choices]
    with open_dict(config):
        config.pop("hydra")
    keys = "\n".join(f"  {line}" for line in OmegaConf.to_yaml(config).splitlines())
    return "\n".join(
        [
            f"symlab {command}: {jobs()[command]}",
            "",
            f"usage: symlab {command} [GROUP=OPTION ...] [KEY=VALUE ...] [-m] [--cfg job] [--config-dir DIR]",
            "",
            "groups and their options, the chosen one in brackets (GROUP=OPTION chooses another):",
            *lines,
            "",
            "keys and their values (KEY=VALUE changes one; a dot goes inside: optimizer.lr=0.1):",
            keys,
            "",
            "-m KEY=A,B makes one run for each value; resume=DIR continues a run; --cfg job prints the configuration.",
            "A value with spaces or any of = , [ ] ( ) { } # ~ is quoted twice: 'data.root=\"a=1\"'.",
        ]
    )


def _options(options: list[str], chosen: str | None) -> str:
    return " ".join(f"[{option}]" if option == chosen else option for option in options)
