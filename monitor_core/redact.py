"""Takes secrets out of text that is going to be stored: command lines and addresses. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_SECRET_WORDS = r"token|secret|password|passwd|pwd|passphrase|credentials?|auth|cookie|apikey|(?:api|access|private|secret|account)[-_]?key"
#: Whole words of an option's name, so that --tokenizer and --max_tokens keep their values.
_SECRET_NAME = re.compile(rf"(?:^|[-_.])(?:{_SECRET_WORDS})(?:$|[-_.])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ASSIGNED = re.compile(r"^(?P<name>-{0,2}[\w.-]+)(?P<sign>[=:])(?P<value>.*)$", re.DOTALL)
_USER_IN_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@]+@", re.I)
_SECRET_IN_ADDRESS = re.compile(
    r"(?P<name>[?&][^=&\s]*(?:token|secret|key|passw(?:or)?d|sig|auth)[^=&\s]*=)[^&\s#]+", re.I
)
#: What issuers put in front of their tokens, so that such leaks are found.
_KNOWN_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[\w-]{8,}")


def redact_text(text: str) -> str:
    """Hide credentials in addresses and tokens of known issuers."""
    text = _USER_IN_ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _SECRET_IN_ADDRESS.sub(rf"\g<name>{HIDDEN}", text)
    return _KNOWN_TOKEN.sub(HIDDEN, text)


def redact_endpoint(address: str) -> str:
    """The address without user, password and query, whatever a service calls its keys there."""
    text, mark, _ = redact_text(address).partition("?")
    return f"{text}?{HIDDEN}" if mark else text


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Hide the values of options whose names speak of secrets (``--token X``, ``--password=X``), and what ``redact_text`` hides."""
    found: list[str] = []
    hide_next = False
    for argument in arguments:
        assigned = _ASSIGNED.match(argument)
        if hide_next and not argument.startswith("--"):
            found.append(HIDDEN)
            hide_next = False
        elif assigned and _names_a_secret(assigned["name"]):
            found.append(f"{assigned['name']}{assigned['sign']}{HIDDEN}")
            hide_next = False
        else:
            hide_next = argument.startswith("-") and _names_a_secret(argument) and "=" not in argument
            found.append(redact_text(argument))
    return found


def _names_a_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(_CAMEL.sub("_", name)))
