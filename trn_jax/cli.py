"""The command line, `trn-jax` or `python -m trn_jax`: a table of subcommands and what happens to their errors.

A subcommand is a dataclass whose fields are its flags, whose docstring is its help and whose `run()` does the work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

from trn_jax.commands.chips import Chips
from trn_jax.commands.profile import Profile
from trn_jax.commands.train import Train
from trn_jax.commands.validate import Validate
from trn_jax.errors import TrnJaxError

COMMANDS: dict[str, type] = {"train": Train, "profile": Profile, "chips": Chips, "validate": Validate}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one subcommand; the entry point of `trn-jax`.

    A wrong flag ends with exit code 2 and tyro's explanation, an error of trn_jax with exit code 2 and its message on one line of
    stderr, an interruption with 130. Anything else is a fault of trn_jax and keeps its traceback.

    Args:
        arguments: The words after the program's name; None takes those of the process.
    """
    import tyro

    words = sys.argv[1:] if arguments is None else arguments
    if list(words) == ["--version"]:
        print(f"trn_jax {metadata.version('trn_jax')}, jax {metadata.version('jax')}")
        return
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="trn-jax", description="Run, time and tune JAX programs on an emulated AWS Trainium.", args=arguments
        )
        command.run()
    except TrnJaxError as error:
        print(f"trn-jax: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("trn-jax: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe such as `| head` has gone: nobody is left to tell
        sys.exit(141)
