/* What is marked in a panel besides its curves: non-finite values, what is out of range, findings. Pure. */
"use strict";

(function (msmon) {
  const LANE_MARKS = 0.975, LANE_FINDINGS = 0.92; // heights in the panel, as shares of it
  const MAX_SPANS = 60; // shapes per panel; more are drawn as marks only
  const SEVERITY = msmon.severity;

  /** NaN and infinities, in the lane along the upper edge. */
  msmon.nonfiniteMarks = function (trace, run) {
    const x = [], text = [];
    for (const segment of trace.segments) {
      segment.markStep.forEach((step, i) => {
        x.push(step);
        text.push(msmon.escape(msmon.text("nonfinite_at", { value: String(segment.markValue[i]), step: msmon.count(step) })));
      });
    }
    return lane(x, text, run, LANE_MARKS, { symbol: "x-thin", size: 8, line: { width: 2, color: msmon.colour(run.key) } }, "nonfinite");
  };

  function lane(x, text, run, height, marker, kind) {
    if (!x.length) return [];
    return [{
      type: "scatter", mode: "markers", x, y: x.map(() => height), yaxis: "y2", marker, text, cliponaxis: false,
      hovertemplate: "%{text}<extra>%{fullData.name}</extra>", name: msmon.escape(run.title), showlegend: false, meta: { run: run.key, kind },
    }];
  }

  /** Arrows on the edges for columns that reach outside the range shown. */
  msmon.outsideMarks = function (panelTraces, range, log, unit) {
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
  };

  /** Marks and spans of the findings about some metrics. */
  msmon.findingMarks = function (runs, metrics) {
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
        fillcolor: msmon.faded(SEVERITY[mark.severity].colour, 0.13), name: `${run.key}:${mark.kind}`,
      }));
    }
    return { drawn, shapes };
  };

  /** A finding as a hover text. */
  msmon.findingHover = function (mark) {
    const steps = msmon.text("steps", { first: msmon.count(mark.first), last: msmon.count(mark.last) }) + (mark.ongoing ? ` (${msmon.text("ongoing")})` : "");
    const lines = [steps, mark.evidence];
    if (mark.causes.length) lines.push(`${msmon.text("causes")}: ${mark.causes[0]}`);
    if (mark.advice.length) lines.push(`${msmon.text("advice")}: ${mark.advice[0]}`);
    return [`<b>${msmon.escape(mark.title)}</b>`, ...lines.flatMap(msmon.wrap).map(msmon.escape)].join("<br>");
  };
})(window.msmon);
