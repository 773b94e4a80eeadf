/* One panel's figure out of curves, marks and axes. Pure. */
"use strict";

(function (msmon) {
  /**
   * The figure of a panel.
   * @param {Object} panel as dashboard/panels/definitions.py gives it
   * @param {Array<{run: Object, main: ?Object, companion: ?Object, metric: string}>} parts one per selected run
   * @param {Object} look the page's colours and font
   */
  msmon.figure = function (panel, parts, look) {
    const main = parts.filter((p) => p.main).map((p) => ({ trace: p.main, run: p.run }));
    const companions = parts.filter((p) => p.companion).map((p) => ({ trace: p.companion, run: p.run }));
    const right = panel.companion_axis === "right";
    const share = panel.unit === "share";
    const range = share ? shareRange(main) : msmon.yRange(right ? main : main.concat(companions), panel.log, msmon.state.full);
    const found = msmon.findingMarks(parts.map((p) => p.run), new Set(panel.finding_metrics.length ? panel.finding_metrics : panel.metrics));
    const data = [];
    for (const { trace, run } of companions) data.push(...msmon.curves(trace, run, { thin: true, unit: right ? "" : panel.unit, axis: right ? "y3" : "y" }));
    for (const { trace, run } of main) data.push(...msmon.curves(trace, run, { band: panel.band, unit: panel.unit, axis: "y" }));
    if (!share) data.push(...msmon.outsideMarks(main, range, panel.log, panel.unit));
    for (const { trace, run } of main.concat(companions)) data.push(...msmon.nonfiniteMarks(trace, run));
    data.push(...found.drawn);
    const layout = frame(panel, look, range);
    layout.shapes = found.shapes;
    if (right && companions.length) {
      layout.margin.r = 52;
      const scale = msmon.yRange(companions, true, true);
      layout.yaxis3 = msmon.axis(look, Object.assign({ overlaying: "y", side: "right", showgrid: false, tickmode: "auto", nticks: 4 }, msmon.logTicks(look, scale), scale ? { range: scale } : {}));
    }
    if (!main.length && !companions.length) {
      // An axis without data would show numbers that mean nothing.
      for (const name of ["xaxis", "yaxis"]) Object.assign(layout[name], { showticklabels: false, showgrid: false, title: undefined });
    }
    return { data, layout };
  };

  /** All of a layout but what depends on the data. */
  function frame(panel, look, range) {
    return {
      uirevision: "msmon", autosize: true, margin: { l: 52, r: 30, t: 6, b: 36 }, dragmode: "zoom", hovermode: "closest", showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: look.font, color: look.ink, size: 12 },
      hoverlabel: { align: "left", bgcolor: look.card, bordercolor: look.grid, font: { family: look.font, color: look.ink, size: 12 }, namelength: 40 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.faint, activecolor: look.ink },
      xaxis: msmon.axis(look, {
        fixedrange: false, range: msmon.xRange(), tickformat: ",d", nticks: 7, title: { text: msmon.escape(msmon.text("step")), standoff: 4, font: { size: 11, color: look.faint } },
      }),
      yaxis: msmon.axis(look, Object.assign({ type: "linear", nticks: 6 }, panel.log ? msmon.logTicks(look, range) : {}, msmon.unitTicks(panel.unit, range), range ? { range, autorange: false } : {})),
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true, tickmode: "auto" }, // the lanes of marks
    };
  }

  /** From nothing to a little above the highest share. */
  function shareRange(traces) {
    let top = 0;
    for (const { trace } of traces) for (const segment of trace.segments) for (const mean of segment.mean) top = Math.max(top, mean);
    return [0, Math.max(0.05, 1.25 * Math.min(1, top))];
  }
})(window.msmon);
