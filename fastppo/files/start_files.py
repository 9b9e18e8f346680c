"""The files of a run's folder on its start: command.txt, and system.json with the machine."""

import json
import logging
import re
import shlex
from pathlib import Path
from typing import Sequence

from fastppo.arguments.command_line import flag_of_each_word
from fastppo.files.system_facts import system_facts
from fastppo.files.tensor_file import write_file
from fastppo.machine.child_env import without_secrets
from fastppo.machine.file_access import open_regular
from fastppo.settings.file_names import COMMAND_FILE, SYSTEM_FILE
from fastppo.settings.fixes import program

log = logging.getLogger("fastppo")


def write_start_files(folder: Path, argv: Sequence[str], torch_threads: int) -> None:
    """Adds the command to command.txt, and writes the facts on the machine to system.json.

    A warning says if one cannot be written.
    """
    try:
        append_command(folder / COMMAND_FILE, argv)
        facts = json.dumps(system_facts(torch_threads), indent=1)
        write_file(folder / SYSTEM_FILE, f"{facts}\n".encode())
    except Exception as error:  # whatever it is, a run does not end for it
        reason = getattr(error, "strerror", None) or getattr(error, "what", error)
        log.warning("%s has no complete record of its start: %s", folder, reason)


def append_command(path: Path, argv: Sequence[str]) -> None:
    """Adds a line to a file: the command with the words `argv`, as it is typed in a shell."""
    with open(path, "a", encoding="utf-8", errors="surrogateescape", opener=open_regular) as file:
        file.write(f"{program()} {shlex.join(public_words(argv))}\n")


def public_words(argv: Sequence[str]) -> list[str]:
    """The words of a command; what may be a password in env_kwargs becomes ***."""
    return [public_word(word) if name == "env_kwargs" else word
            for name, word in flag_of_each_word(argv)]


def public_word(word: str) -> str:
    """A word that is, or ends with, the value of env_kwargs, without what may be a password."""
    start, text = re.findall(r"(?s)^(--[\w-]+=?)?(.*)", word)[0]
    try:
        return start + json.dumps(without_secrets(json.loads(text))) if text else word
    except ValueError:
        return f"{start}***"
