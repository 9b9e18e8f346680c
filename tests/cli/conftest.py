"""The command as a function."""

import pytest

from fastppo.cli import main


@pytest.fixture
def command(capsys):
    """A function from argv to (exit code, stdout, stderr) of the command in this process."""
    def run(*argv):
        code = 0
        try:
            main.main(argv)
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()
    return run
