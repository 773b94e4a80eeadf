/* One panel's figure out of traces: lines over their true min-max bands, marks, findings. Pure: nothing is drawn here. */
"use strict";

(function (msmon) {
  /* Colour-blind safe (after Okabe & Ito and Tol), readable on white and on near-black. */
  const PALETTE = ["#3b7ddd", "#e07b00", "#2a9d6f", "#c8499b", "#8a63d2", "#b5892b", "#d1495b", "#1fa3b8", "#7a8a99", "#6d9f2f"];
  const SEVERITY = {
    error: { colour: "#d1344b", symbol: "x" },
    warning: { colour: "#d98a00", symbol: "triangle-up" },
    info: { colour: "#4a7fb5", symbol: "circle" },
  };
  const LANE_MARKS = 0.975, LANE_FINDINGS = 0.92; // heights in the panel, as shares of it
  const MAX_SPANS = 60; // shapes per panel; more are drawn as marks only
  const colours = new Map();

  /** A run's colour: from its key, so that it is the same tomorrow; a taken one passes on to the next. */
  msmon.colour = function (key) {
    if (!colours.has(key)) {
      const taken = new Set([...colours.values()].slice(-(PALETTE.length - 1)));
      let place = parseInt(key.slice(0, 6), 16) % PALETTE.length || 0;
      for (let tries = 0; tries < PALETTE.length && taken.has(place); tries += 1) place = (place + 1) % PALETTE.length;
      colours.set(key, place);
    }
    return PALETTE[colours.get(key)];
  };
  msmon.severity = SEVERITY;

  function faded(colour, alpha) {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  }

  /** Exponential moving average without the bias of its start; a column of n points weighs as n points. Never changes the past. */
  msmon.smooth = function (mean, count, smoothing) {
    if (!smoothing) return mean;
    const out = new Float64Array(mean.length);
    let average = 0, weight = 0;
    for (let i = 0; i < mean.length; i += 1) {
      const alpha = 1 - Math.pow(smoothing, count[i]);
      average += alpha * (mean[i] - average);
      weight += alpha * (1 - weight);
      out[i] = average / weight;
    }
    return out;
  };

  /** Where a line must break: after a hole much wider than the usual distance of columns. */
  function holes(segment, width) {
    const distances = [];
    for (let i = 1; i < segment.first.length; i += 1) distances.push(segment.first[i] - segment.last[i - 1]);
    if (distances.length < 2) return new Set();
    const usual = distances.slice().sort((a, b) => a - b)[distances.length >> 1];
    const limit = Math.max(usual * 1.5, usual + width - 1);
    const found = new Set();
    distances.forEach((distance, i) => { if (distance > limit) found.add(i + 1); });
    return found;
  }

  function columnsOf(segment, y, width) {
    const breaks = holes(segment, width);
    const x = [], line = [], low = [], high = [], text = [];
    for (let i = 0; i < segment.first.length; i += 1) {
      if (breaks.has(i)) { x.push(segment.first[i]); line.push(null); low.push(null); high.push(null); text.push(""); }
      x.push((segment.first[i] + segment.last[i]) / 2);
      line.push(y[i]);
      low.push(segment.min[i]);
      high.push(segment.max[i]);
      text.push(i);
    }
    return { x, line, low, high, index: text, breaks };
  }

  function hover(segment, index, unit) {
    return index.map((i) => {
      if (i === "") return "";
      const steps = segment.first[i] === segment.last[i] ? msmon.count(segment.first[i]) : `${msmon.count(segment.first[i])}\u2013${msmon.count(segment.last[i])}`;
      const range = segment.min[i] === segment.max[i] ? msmon.value(segment.min[i], unit) : `${msmon.value(segment.mean[i], unit)} [${msmon.value(segment.min[i], unit)}, ${msmon.value(segment.max[i], unit)}]`;
      return `${msmon.escape(msmon.text("step"))} ${steps}: ${range}`;
    });
  }

  /** The band as closed polygons, one per stretch without a hole. */
  function band(columns, colour) {
    const x = [], y = [];
    let from = 0;
    const close = (to) => {
      for (let i = from; i < to; i += 1) { x.push(columns.x[i]); y.push(columns.high[i]); }
      for (let i = to - 1; i >= from; i -= 1) { x.push(columns.x[i]); y.push(columns.low[i]); }
      x.push(null); y.push(null);
    };
    for (let i = 0; i <= columns.x.length; i += 1) {
      if (i === columns.x.length || columns.line[i] === null) { if (i > from) close(i); from = i + 1; }
    }
    return { type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: faded(colour, 0.22), line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  }

  /** Points that no line reaches, because holes are on both sides, need a dot of their own. */
  function dots(columns) {
    const few = columns.x.length <= 40;
    return columns.line.map((value, i) => {
      const alone = (i === 0 || columns.line[i - 1] === null) && (i === columns.line.length - 1 || columns.line[i + 1] === null);
      return value !== null && (few || alone) ? 5 : 0;
    });
  }

  /** Part of a segment: steps below (or from) a bound. */
  function part(segment, keep) {
    const rows = [];
    for (let i = 0; i < segment.first.length; i += 1) if (keep(segment.first[i])) rows.push(i);
    const picked = {};
    for (const name of ["first", "last", "min", "max", "mean", "count"]) picked[name] = Float64Array.from(rows, (i) => segment[name][i]);
    return picked;
  }

  function curve(segment, run, panel, options) {
    const colour = msmon.colour(run.key);
    const y = options.ghost ? segment.mean : msmon.smooth(segment.mean, segment.count, msmon.state.smoothing);
    const columns = columnsOf(segment, y, options.width);
    const drawn = [];
    const spread = segment.min.some((low, i) => low !== segment.max[i]);
    if (options.band && spread && !options.ghost) drawn.push(band(columns, colour));
    if (!options.ghost && msmon.state.smoothing && !options.thin) {
      const raw = columnsOf(segment, segment.mean, options.width);
      drawn.push({ type: "scatter", mode: "lines", x: raw.x, y: raw.line, line: { width: 1, color: faded(colour, 0.35) }, hoverinfo: "skip", showlegend: false });
    }
    const sizes = dots(columns);
    drawn.push({
      type: "scatter", mode: sizes.some(Boolean) ? "lines+markers" : "lines", x: columns.x, y: columns.line, connectgaps: false,
      marker: { size: sizes, color: colour, line: { width: 0 } },
      line: { width: options.thin ? 1 : 1.8, color: options.ghost || options.thin ? faded(colour, options.ghost ? 0.4 : 0.65) : colour, dash: options.ghost ? "dot" : options.thin ? "3px,2px" : "solid" },
      name: msmon.escape(run.title) + (options.ghost ? ` (${msmon.escape(msmon.text("ghost"))})` : ""),
      text: hover(segment, columns.index, options.unit), hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
      showlegend: false, yaxis: options.axis,
      meta: { run: run.key, ghost: !!options.ghost, thin: !!options.thin },
    });
    return drawn;
  }

  function curves(trace, run, panel, options) {
    const drawn = [];
    const width = Math.pow(2, trace.shift);
    for (const segment of trace.segments) {
      const whole = Object.assign({ width }, options);
      if (Number.isNaN(segment.ghostFrom)) { drawn.push(...curve(segment, run, panel, whole)); continue; }
      const kept = part(segment, (step) => step < segment.ghostFrom), ghost = part(segment, (step) => step >= segment.ghostFrom);
      if (kept.first.length) drawn.push(...curve(kept, run, panel, whole));
      if (ghost.first.length) drawn.push(...curve(ghost, run, panel, Object.assign({}, whole, { ghost: true })));
    }
    return drawn.filter((one) => one.x.length);
  }

  /** NaN and infinities, in the lane along the upper edge. */
  function nonfinite(trace, run) {
    const x = [], text = [];
    for (const segment of trace.segments) {
      segment.markStep.forEach((step, i) => {
        x.push(step);
        text.push(msmon.escape(msmon.text("nonfinite_at", { value: String(segment.markValue[i]), step: msmon.count(step) })));
      });
    }
    return lane(x, text, run, LANE_MARKS, { symbol: "x-thin", size: 8, line: { width: 2, color: msmon.colour(run.key) } }, "nonfinite");
  }

  function lane(x, text, run, height, marker, kind) {
    if (!x.length) return [];
    return [{
      type: "scatter", mode: "markers", x, y: x.map(() => height), yaxis: "y2", marker, text, cliponaxis: false,
      hovertemplate: "%{text}<extra>%{fullData.name}</extra>", name: msmon.escape(run.title), showlegend: false, meta: { run: run.key, kind },
    }];
  }

  /** Arrows on the edges for columns that reach outside the range shown. */
  function outside(panelTraces, range, log, unit) {
    if (!range) return [];
    const [bottom, top] = log ? range.map((v) => Math.pow(10, v)) : range;
    const drawn = [];
    for (const { trace, run } of panelTraces) {
      const up = { x: [], text: [] }, down = { x: [], text: [] };
      const note = (side, step, value) => {
        side.x.push(step);
        side.text.push(msmon.escape(msmon.text("outside", { value: msmon.value(value, unit), step: msmon.count(step) })));
      };
      for (const segment of trace.segments) {
        for (let i = 0; i < segment.first.length; i += 1) {
          if (segment.max[i] > top) note(up, segment.first[i], segment.max[i]);
          if (segment.min[i] < bottom) note(down, segment.first[i], segment.min[i]);
        }
      }
      const marker = (symbol) => ({ symbol, size: 7, color: msmon.colour(run.key), opacity: 0.8 });
      drawn.push(...lane(up.x, up.text, run, 1.0, marker("arrow-up"), "outside"), ...lane(down.x, down.text, run, 0.0, marker("arrow-down"), "outside"));
    }
    return drawn;
  }

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

  function findingMarks(panel, runs, metrics) {
    const drawn = [], shapes = [];
    for (const run of runs) {
      const found = (msmon.findings[run.key] || { marks: [] }).marks.filter((mark) => metrics.has(mark.metric));
      for (const severity of Object.keys(SEVERITY)) {
        const mine = found.filter((mark) => mark.severity === severity);
        const style = SEVERITY[severity];
        drawn.push(...lane(
          mine.map((mark) => mark.first), mine.map((mark) => msmon.findingHover(mark)), run, LANE_FINDINGS,
          { symbol: style.symbol, size: 9, color: style.colour, line: { width: 1.5, color: msmon.colour(run.key) } }, "finding",
        ));
      }
      found.slice(-MAX_SPANS).forEach((mark) => shapes.push({
        type: "rect", xref: "x", yref: "paper", x0: mark.first - 0.5, x1: mark.last + 0.5, y0: 0, y1: 1, layer: "below", line: { width: 0 },
        fillcolor: faded(SEVERITY[mark.severity].colour, 0.13), name: `${run.key}:${mark.kind}`,
      }));
    }
    return { drawn, shapes };
  }

  /** A finding as a hover text. */
  msmon.findingHover = function (mark) {
    const steps = msmon.text("steps", { first: msmon.count(mark.first), last: msmon.count(mark.last) }) + (mark.ongoing ? ` (${msmon.text("ongoing")})` : "");
    const lines = [`<b>${msmon.escape(mark.title)}</b>`, msmon.escape(steps), msmon.escape(mark.evidence)];
    if (mark.causes.length) lines.push(`${msmon.escape(msmon.text("causes"))}: ${msmon.escape(mark.causes[0])}`);
    if (mark.advice.length) lines.push(`${msmon.escape(msmon.text("advice"))}: ${msmon.escape(mark.advice[0])}`);
    return lines.join("<br>");
  };

  function axis(look, more) {
    return Object.assign({
      gridcolor: look.grid, zeroline: false, linecolor: look.grid, tickfont: { size: 11, color: look.faint }, automargin: true, fixedrange: true, ticks: "",
    }, more);
  }

  /** Tick texts of units that Plotly does not know. */
  function unitTicks(unit, range) {
    if (unit === "share") return { tickformat: ",.0%", rangemode: "tozero" };
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
  }

  /**
   * The figure of a panel.
   * @param {Object} panel as dashboard/panels/definitions.py gives it
   * @param {Array<{run: Object, main: ?Object, companion: ?Object, metric: string}>} parts one per selected run
   */
  msmon.figure = function (panel, parts, look) {
    const main = parts.filter((p) => p.main).map((p) => ({ trace: p.main, run: p.run }));
    const companions = parts.filter((p) => p.companion).map((p) => ({ trace: p.companion, run: p.run }));
    const right = panel.companion_axis === "right";
    const ranged = right ? main : main.concat(companions);
    const range = panel.unit === "share" ? [0, Math.max(0.05, 1.25 * Math.min(1, topMean(main)))] : msmon.yRange(ranged, panel.log, msmon.state.full);
    const found = findingMarks(panel, parts.map((p) => p.run), new Set(panel.finding_metrics.length ? panel.finding_metrics : panel.metrics));
    const data = [];
    for (const { trace, run } of companions) data.push(...curves(trace, run, panel, { thin: true, unit: right ? "" : panel.unit, axis: right ? "y3" : "y" }));
    for (const { trace, run } of main) data.push(...curves(trace, run, panel, { band: panel.band, unit: panel.unit, axis: "y" }));
    if (panel.unit !== "share") data.push(...outside(main, range, panel.log, panel.unit));
    for (const { trace, run } of main.concat(companions)) data.push(...nonfinite(trace, run));
    data.push(...found.drawn);
    const layout = {
      uirevision: "msmon", autosize: true, margin: { l: 52, r: right && companions.length ? 52 : 30, t: 6, b: 30 }, dragmode: "zoom", hovermode: "closest",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: look.font, color: look.ink, size: 12 },
      hoverlabel: { align: "left", bgcolor: look.card, bordercolor: look.grid, font: { color: look.ink, size: 12 }, namelength: 40 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.faint, activecolor: look.ink }, shapes: found.shapes, showlegend: false,
      xaxis: axis(look, { fixedrange: false, range: msmon.xRange(), tickformat: ",d", nticks: 7 }),
      yaxis: axis(look, Object.assign({ type: panel.log ? "log" : "linear", nticks: 6 }, panel.log ? { dtick: null, exponentformat: "power" } : {}, unitTicks(panel.unit, range), range ? { range, autorange: false } : {})),
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true, tickmode: "auto" },
    };
    if (right && companions.length) {
      layout.yaxis3 = axis(look, { overlaying: "y", side: "right", type: "log", showgrid: false, tickmode: "auto", nticks: 4, exponentformat: "power", range: msmon.yRange(companions, true, true) || undefined });
    }
    if (!main.length && !companions.length) {
      // An axis without data would show numbers that mean nothing.
      for (const name of ["xaxis", "yaxis"]) Object.assign(layout[name], { showticklabels: false, showgrid: false });
    }
    return { data, layout };
  };

  function topMean(traces) {
    let top = 0;
    for (const { trace } of traces) for (const segment of trace.segments) for (const mean of segment.mean) top = Math.max(top, mean);
    return top;
  }
})(window.msmon);
