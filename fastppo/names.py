"""What settings are called elsewhere, and how a flag is spelt that can be pasted into a shell."""

import json
import shlex
from typing import Any


def json_flag(name: str, value: dict[str, Any]) -> str:
    """The flag that gives setting `name` a JSON object; an empty one is better left out.

    Values that JSON does not know are shown as Python does.
    """
    text = shlex.quote(json.dumps(value, default=repr))
    return f"--{name}={text}" if value else f"leave --{name} out"
