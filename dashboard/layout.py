"""The page's tree. Words are put in by the scripts (``data-text``), so that switching the language needs no round trip."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import ids
from dashboard.panels.definitions import METRIC_UNITS, PANELS, as_data
from dashboard.settings import Settings
from dashboard.texts import TEXTS

_GRAPH_CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,  # Plotly 7 would upload the figure to a cloud service
    "doubleClick": False,  # the scripts reset the zoom of all panels together
    "scrollZoom": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d", "pan2d"],
}
#: AG Grid's own theme with the page's colours, which change with light and dark.
_GRID_THEME = (
    "themeQuartz.withParams({backgroundColor: 'var(--ms-card)', foregroundColor: 'var(--ms-ink)', "
    "headerBackgroundColor: 'var(--ms-card)', headerTextColor: 'var(--ms-faint)', borderColor: 'var(--ms-grid)', "
    "accentColor: 'var(--ms-accent)', rowHoverColor: 'var(--ms-bg)', selectedRowBackgroundColor: 'transparent', "
    "fontFamily: 'inherit', fontSize: 12.5, headerFontSize: 12, cellHorizontalPadding: 6, wrapperBorderRadius: 8})"
)
_EXAMPLE = """from monitor_core import Model, Monitor

monitor = Monitor(log_dir="./logs/my_run")
model = Model(network, loss_fn, optimizer, monitor=monitor)
model.train(10, dataset)"""


def page(settings: Settings) -> Any:
    """The whole page."""
    boot = {
        "texts": TEXTS, "panels": as_data(), "units": METRIC_UNITS, "theme": settings.theme, "language": settings.language,
    }  # fmt: skip
    return dmc.MantineProvider(
        id=ids.PROVIDER,
        forceColorScheme=None if settings.theme == "auto" else settings.theme,
        defaultColorScheme="auto",
        theme={"primaryColor": "indigo", "defaultRadius": "md"},
        children=[
            dcc.Store(id=ids.BOOT, data=boot),
            dcc.Store(id=ids.BOOTED),
            dmc.AppShell(
                [_header(settings), _sidebar(), dmc.AppShellMain(_main()), _help()],
                id=ids.SHELL,
                header={"height": {"base": 104, "sm": 60}},
                navbar={"width": 460, "breakpoint": "sm", "collapsed": {"mobile": True}},
                padding="md",
            ),
        ],
    )


def _word(key: str, **kwargs: Any) -> Any:
    return html.Span(**{"data-text": key, **kwargs})


def _button(id_: str, key: str, icon: str) -> Any:
    """A small button; its accessible name and tooltip come from the texts."""
    return html.Button(icon, id=id_, className="ms-button", n_clicks=0, **{"data-title": key, "aria-label": key})


def _header(settings: Settings) -> Any:
    smoothing = dcc.Slider(
        id=ids.SMOOTHING, min=0, max=0.99, step=0.01, value=0, marks=None, updatemode="drag", included=True,
        tooltip={"placement": "bottom", "always_visible": False},
    )  # fmt: skip
    return dmc.AppShellHeader(
        html.Div(
            [
                _button(ids.BURGER, "menu", "☰"),
                html.H1(settings.window_title, className="ms-title"),
                html.Span(
                    [html.Span(className="ms-dot"), _word("starting", className="ms-state")], id=ids.STATUS,
                    className="ms-status", role="status", **{"aria-live": "polite"},
                ),
                html.Div(className="ms-space"),
                html.Div([_word("smoothing", className="ms-label"), html.Div(smoothing, className="ms-slider")],
                         className="ms-control"),
                _button(ids.PAUSE, "pause", "‖"),
                _button(ids.RESET, "reset", "⤢"),
                _button(ids.FULL_RANGE, "full_range", "⇕"),
                _button(ids.THEME, "theme", "◐"),
                _button(ids.LANGUAGE, "language", "中"),
                _button(ids.HELP, "help", "?"),
            ],
            className="ms-header",
        )
    )  # fmt: skip


def _sidebar() -> Any:
    grid = dag.AgGrid(
        id=ids.GRID,
        rowData=[],
        columnDefs=[],
        getRowId="params.data.key",
        defaultColDef={"sortable": True, "resizable": False, "suppressMovable": True},
        dashGridOptions={
            "rowSelection": {"mode": "multiRow", "enableClickSelection": False, "headerCheckbox": True},
            "selectionColumnDef": {"width": 36, "minWidth": 36, "maxWidth": 36, "pinned": "left"},
            "rowHeight": 34,
            "headerHeight": 32,
            "suppressCellFocus": False,
            "animateRows": False,
            "suppressNoRowsOverlay": True,  # the page says in its own words what is missing
            "theme": {"function": _GRID_THEME},
        },
        className="ms-grid",
        style={"height": None},
    )
    return dmc.AppShellNavbar(
        [
            html.H2(_word("runs"), className="ms-heading"),
            dcc.Input(id=ids.SEARCH, type="search", className="ms-search", value=""),
            grid,
            html.H2(_word("findings"), className="ms-heading"),
            html.Div(id=ids.FINDINGS, className="ms-findings", **{"aria-live": "polite"}),
        ],
        className="ms-sidebar",
    )


def _main() -> Any:
    return html.Div(
        [
            html.Div(
                [
                    html.H2(_word("empty_title"), className="ms-heading"),
                    html.Div(className="ms-reasons"),
                    html.P(_word("empty_how")),
                    html.Pre(_EXAMPLE, className="ms-code"),
                ],
                id=ids.EMPTY,
                className="ms-empty",
                style={"display": "none"},
            ),
            html.Div(
                [
                    html.Div(
                        [panel_card(panel.id, panel.id) for panel in PANELS], id=ids.PANELS, className="ms-inline"
                    ),
                    html.Div([], id=ids.EXTRA_PANELS, className="ms-inline"),
                    html.Div(
                        [
                            _word("add_panel", className="ms-label"),
                            dcc.Dropdown(id=ids.EXTRA, options=[], value=[], multi=True, placeholder=""),
                        ],
                        className="ms-add",
                    ),
                ],
                className="ms-panels",
            ),
        ]
    )


def panel_card(panel: str, name: str) -> Any:
    """One panel: title, legend, badge, graph; ``name`` ends the graph's id. The scripts fill all but the frame."""
    return html.Section(
        [
            html.Div(
                [html.H3(className="ms-panel-title"), html.Span(className="ms-legend")], className="ms-panel-head"
            ),
            html.Div(className="ms-badge"),
            html.Div(className="ms-note"),
            dcc.Graph(
                id=ids.graph(name),
                figure=_BLANK,
                config=_GRAPH_CONFIG,
                className="ms-graph",
                responsive=True,
                style={"height": "var(--ms-graph-height)"},  # the style sheet fits five panels on a screen
            ),
        ],
        className="ms-panel",
        **{"data-panel": panel},
    )


_BLANK: dict[str, Any] = {
    "data": [],
    "layout": {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"visible": False}, "yaxis": {"visible": False}, "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
    },
}  # fmt: skip


def _help() -> Any:
    keys = [
        ("/", "help_search"), ("r", "help_reset"), ("p", "help_pause"), ("f", "help_full"), ("t", "help_theme"),
        ("?", "help_help"),
    ]  # fmt: skip
    return html.Div(
        html.Div(
            [
                html.H2(_word("help_title"), className="ms-heading"),
                html.Dl([item for key, text in keys for item in (html.Dt(html.Kbd(key)), html.Dd(_word(text)))]),
                html.P(_word("help_zoom")),
                html.P(_word("help_band")),
                html.P(_word("help_marks")),
            ],
            className="ms-help-card",
        ),
        id=ids.HELP_BOX,
        className="ms-help",
        role="dialog",
        **{"aria-modal": "true"},
        style={"display": "none"},
    )
