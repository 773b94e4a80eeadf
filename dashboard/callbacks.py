"""The only file with callbacks. Controls call the scripts in the browser; one server callback makes the cards of added panels."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output

from dashboard import ids
from dashboard.layout import panel_card

MAX_EXTRA_PANELS = 24
MAX_METRIC_CHARS = 256


def register(app: Dash) -> None:
    """Add all callbacks to the app."""

    def script(function: str, *inputs: Input) -> None:
        app.clientside_callback(
            ClientsideFunction("msmon", function), Output(ids.BOOTED, "data", allow_duplicate=True), *inputs,
            prevent_initial_call=True,
        )  # fmt: skip

    app.clientside_callback(ClientsideFunction("msmon", "boot"), Output(ids.BOOTED, "data"), Input(ids.BOOT, "data"))
    script("onSelect", Input(ids.GRID, "selectedRows"))
    script("onSearch", Input(ids.SEARCH, "value"))
    script("onSmoothing", Input(ids.SMOOTHING, "value"))
    script("onExtra", Input(ids.EXTRA, "value"))
    script("onPause", Input(ids.PAUSE, "n_clicks"))
    script("onReset", Input(ids.RESET, "n_clicks"))
    script("onFullRange", Input(ids.FULL_RANGE, "n_clicks"))
    script("onTheme", Input(ids.THEME, "n_clicks"))
    script("onLanguage", Input(ids.LANGUAGE, "n_clicks"))
    script("onHelp", Input(ids.HELP, "n_clicks"))
    script("onMenu", Input(ids.BURGER, "n_clicks"))

    @app.callback(Output(ids.EXTRA_PANELS, "children"), Input(ids.EXTRA, "value"), prevent_initial_call=True)  # type: ignore[untyped-decorator]
    def show_extra_panels(metrics: list[str] | None) -> list[Any]:
        return extra_panels(metrics)


def is_expected(body: object) -> bool:
    """Whether a request to Dash's callback route is what the page sends: anything else would raise deep inside Dash."""
    if not isinstance(body, dict) or body.get("output") != f"{ids.EXTRA_PANELS}.children" or body.get("state"):
        return False
    inputs, changed = body.get("inputs"), body.get("changedPropIds", [])
    return (
        isinstance(inputs, list) and len(inputs) == 1 and isinstance(inputs[0], dict)
        and (inputs[0].get("id"), inputs[0].get("property")) == (ids.EXTRA, "value")
        and isinstance(inputs[0].get("value"), list | None)
        and body.get("outputs") == {"id": ids.EXTRA_PANELS, "property": "children"}
        and isinstance(changed, list) and all(isinstance(item, str) for item in changed)
    )  # fmt: skip


def extra_panels(metrics: list[str] | None) -> list[Any]:
    """A card for each metric that the user added; what is no metric's name is left out."""
    wanted = [name for name in metrics or [] if isinstance(name, str) and 0 < len(name) <= MAX_METRIC_CHARS]
    return [panel_card(f"metric:{name}", f"extra-{number}") for number, name in enumerate(wanted[:MAX_EXTRA_PANELS])]
