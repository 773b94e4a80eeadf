/* Ranges, ticks and looks of axes. Pure. */
"use strict";

(function (msmon) {
  /**
   * The y range: what 99 % of the columns need; the whole, when that is not much more. In log space on log axes.
   * @returns {?number[]} null: let Plotly choose (nothing to show)
   */
  msmon.yRange = function (traces, log, full) {
    const low = [], high = [];
    for (const { trace } of traces) {
      for (const segment of trace.segments) {
        for (let i = 0; i < segment.first.length; i += 1) {
          const a = log ? Math.log10(segment.min[i]) : segment.min[i], b = log ? Math.log10(segment.max[i]) : segment.max[i];
          if (Number.isFinite(a)) low.push(a); else if (log && Number.isFinite(b)) low.push(b);
          if (Number.isFinite(b)) high.push(b);
        }
      }
    }
    if (!low.length || !high.length) return null;
    low.sort((a, b) => a - b);
    high.sort((a, b) => a - b);
    const at = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.max(0, Math.floor(share * sorted.length)))];
    let bottom = at(low, 0.005), top = at(high, 0.995);
    const whole = high[high.length - 1] - low[0];
    if (full || !(whole > 1.6 * (top - bottom))) { bottom = low[0]; top = high[high.length - 1]; }
    const pad = (top - bottom) * 0.06 || Math.abs(top) * 0.05 || 0.5;
    const range = [bottom - pad, top + pad * 2]; // room for the lanes on top
    return range.every(Number.isFinite) ? range : null;
  };

  /** An axis in the page's colours. */
  msmon.axis = function (look, more) {
    return Object.assign({
      gridcolor: look.grid, zeroline: false, linecolor: look.grid, tickfont: { size: 11, color: look.faint }, automargin: true, fixedrange: true, ticks: "",
    }, more);
  };

  /**
   * A logarithmic axis. Plotly writes powers of ten a quarter larger than other ticks, and would label all of 1 to 9 where one or two
   * powers are shown: 1, 2 and 5 do not run into each other.
   * @param {?number[]} range in log space
   */
  msmon.logTicks = function (look, range) {
    const powers = range ? range[1] - range[0] : 0;
    return { type: "log", dtick: powers > 0.75 && powers < 2 ? "D2" : null, exponentformat: "power", tickfont: { size: 9, color: look.faint } };
  };

  /** Tick texts of units that Plotly does not know. */
  msmon.unitTicks = function (unit, range) {
    if (unit === "share") return { tickformat: ",.0%", rangemode: "tozero" };
    if (unit === "s" || unit === "percent") return { ticksuffix: unit === "s" ? " s" : " %" };
    if (unit !== "bytes" || !range) return {};
    const size = [2 ** 30, 2 ** 20, 2 ** 10, 1].find((candidate) => Math.max(Math.abs(range[0]), Math.abs(range[1])) >= candidate) || 1;
    const name = { [2 ** 30]: "GiB", [2 ** 20]: "MiB", [2 ** 10]: "KiB", 1: "B" }[size];
    const rough = (range[1] - range[0]) / size / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const values = [];
    for (let v = Math.ceil(range[0] / size / step) * step; v <= range[1] / size && values.length < 9; v += step) values.push(v);
    return { tickvals: values.map((v) => v * size), ticktext: values.map((v) => `${v.toFixed(digits)} ${name}`) };
  };
})(window.msmon);
