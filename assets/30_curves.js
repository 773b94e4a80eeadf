/* Curves out of traces: lines over their true min-max bands, holes, ghosts, smoothing. Pure: nothing is drawn here. */
"use strict";

(function (msmon) {
  const faded = msmon.faded;

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

  function curve(segment, run, options) {
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

  /** All curves of one trace: main line, band, ghosts. */
  msmon.curves = function (trace, run, options) {
    const drawn = [];
    const width = Math.pow(2, trace.shift);
    for (const segment of trace.segments) {
      const whole = Object.assign({ width }, options);
      if (Number.isNaN(segment.ghostFrom)) { drawn.push(...curve(segment, run, whole)); continue; }
      const kept = part(segment, (step) => step < segment.ghostFrom), ghost = part(segment, (step) => step >= segment.ghostFrom);
      if (kept.first.length) drawn.push(...curve(kept, run, whole));
      if (ghost.first.length) drawn.push(...curve(ghost, run, Object.assign({}, whole, { ghost: true })));
    }
    return drawn.filter((one) => one.x.length);
  };
})(window.msmon);
