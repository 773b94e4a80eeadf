/* Drawing: which panels there are, what each shows now, one panel per frame, zoom for all of them together. */
"use strict";

(function (msmon) {
  msmon.traces = new Map(); // run key -> metric -> trace
  msmon.findings = {}; // run key -> {total, marks}
  const dirty = new Set(); // panel ids to be drawn
  const drawn = new WeakMap(); // graph element -> whether its zoom events are followed
  let scheduled = false;

  /** All panels: the standard ones, then those the user added. */
  msmon.panels = function () {
    const extra = msmon.state.extra.map((metric) => ({
      id: `metric:${metric}`, metrics: [metric], unit: msmon.units[metric] || "", log: false, band: true, companion: null, companion_axis: "same", finding_metrics: [metric],
    }));
    return msmon.standardPanels.concat(extra);
  };

  /** Every metric that some panel shows. */
  msmon.metrics = function () {
    const names = new Set();
    msmon.panels().forEach((panel) => panel.metrics.concat(panel.companion || []).forEach((name) => names.add(name)));
    return [...names];
  };

  /** The range of steps on every x axis. */
  msmon.xRange = function () {
    if (msmon.state.first !== null && msmon.state.last !== null) return [msmon.state.first, msmon.state.last];
    let low = Infinity, high = -Infinity;
    for (const run of msmon.selectedRuns()) {
      if (run.steps === null) continue;
      low = Math.min(low, run.first_step);
      high = Math.max(high, run.last_step ?? run.steps);
    }
    for (const byMetric of msmon.traces.values()) {
      for (const trace of byMetric.values()) {
        for (const segment of trace.segments) if (segment.last.length) high = Math.max(high, segment.last[segment.last.length - 1]);
      }
    }
    if (!(low <= high)) return undefined;
    const pad = Math.max(0.5, (high - low) * 0.01);
    return [low - pad, high + pad];
  };

  function look() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    return { ink: get("--ms-ink"), faint: get("--ms-faint"), grid: get("--ms-grid"), card: get("--ms-card"), font: getComputedStyle(document.body).fontFamily };
  }

  function partsOf(panel) {
    return msmon.selectedRuns().map((run) => {
      const byMetric = msmon.traces.get(run.key) || new Map();
      const metric = panel.metrics.find((name) => run.metrics.includes(name)) || panel.metrics[0];
      const companion = panel.companion && byMetric.get(panel.companion);
      return { run, metric, main: byMetric.get(metric) || null, companion: companion || null };
    });
  }

  /** Ask for panels to be drawn; without arguments all of them. */
  msmon.draw = function (ids) {
    (ids || msmon.panels().map((panel) => panel.id)).forEach((id) => dirty.add(id));
    schedule();
  };

  /** Ask for the panels that show one of these metrics. */
  msmon.drawMetrics = function (metrics) {
    msmon.draw(msmon.panels().filter((p) => p.metrics.concat(p.companion || []).some((name) => metrics.has(name))).map((p) => p.id));
  };

  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(frame);
  }

  /** One visible panel per frame, so that a tick never blocks the page for long. */
  function frame() {
    scheduled = false;
    const panel = msmon.panels().find((candidate) => dirty.has(candidate.id) && visible(candidate.id));
    if (!panel) return;
    dirty.delete(panel.id);
    try {
      show(panel);
    } catch (error) {
      msmon.debug.errors.push(String(error));
      console.error("msmon: a panel could not be drawn", panel.id, error);
    }
    if (dirty.size) schedule();
  }

  function card(id) {
    return [...document.querySelectorAll(".ms-panel")].find((element) => element.dataset.panel === id);
  }

  function visible(id) {
    const element = card(id);
    if (!element) return false;
    const box = element.getBoundingClientRect();
    return box.bottom > -200 && box.top < window.innerHeight + 200;
  }

  function show(panel) {
    const element = card(panel.id);
    const graph = element.querySelector(".js-plotly-plot");
    element.querySelector(".ms-panel-title").textContent = panel.id.startsWith("metric:") ? msmon.metricName(panel.metrics[0]) : msmon.text(`panel_${panel.id}`);
    if (!graph || !window.Plotly) { dirty.add(panel.id); setTimeout(schedule, 50); return; }
    const parts = partsOf(panel);
    const begun = performance.now();
    const figure = msmon.figure(panel, parts, look());
    window.Plotly.react(graph, figure.data, figure.layout).catch((error) => msmon.debug.errors.push(String(error)));
    msmon.debug.draws += 1;
    msmon.debug.drawMs = performance.now() - begun;
    follow(graph);
    legend(element, panel, parts);
    badge(element, panel, parts);
  }

  function legend(element, panel, parts) {
    const words = [];
    if (panel.unit === "samples/s") words.push(panel.unit);
    if (panel.companion && parts.some((p) => p.companion)) words.push(msmon.text(`legend_${panel.companion}`));
    if (panel.id === "memory" && parts.some((p) => p.main && p.metric === "host_memory")) words.push(msmon.text("host_memory_shown"));
    element.querySelector(".ms-legend").textContent = words.join(" \u00b7 ");
    const empty = !parts.length ? "no_selection" : parts.some((p) => p.main || p.companion) ? "" : "no_data";
    element.querySelector(".ms-note").textContent = empty ? msmon.text(empty) : "";
  }

  /** The honesty badge: what is drawn of what was read, and what is wrong or still to come. */
  function badge(element, panel, parts) {
    let shown = 0, points = 0, nonfinite = 0, age = null, loading = 0, problems = 0, missing = 0, ranks = 1, stretches = 0;
    for (const { run, main } of parts) {
      loading += run.files_loading;
      problems += run.problems;
      missing += run.missing;
      ranks = Math.max(ranks, run.ranks);
      if (run.status === "running" && run.last_time !== null) age = Math.max(age ?? 0, msmon.serverTime() - run.last_time);
      if (!main) continue;
      points += main.points;
      nonfinite += main.nonfinite;
      if (main.olderLeftOut) stretches = main.segments.length;
      for (const segment of main.segments) shown += segment.first.length + segment.markStep.length;
    }
    const words = [];
    if (points) words.push(shown >= points ? msmon.text("badge_all_points", { points: msmon.count(points) }) : msmon.text("badge_points", { shown: msmon.count(shown), points: msmon.count(points) }));
    if (stretches) words.push(msmon.text("badge_stretches", { count: msmon.count(stretches) }));
    if (nonfinite) words.push(msmon.text("badge_nonfinite", { count: msmon.count(nonfinite) }));
    if (age !== null && points) words.push(msmon.text("badge_age", { age: msmon.age(age) }));
    if (loading) words.push(msmon.text("badge_loading", { count: msmon.count(loading) }));
    if (missing) words.push(msmon.text("badge_missing", { count: msmon.count(missing) }));
    if (ranks > 1) words.push(msmon.text("badge_ranks", { count: msmon.count(ranks) }));
    if (problems) words.push(msmon.text("badge_problems", { count: msmon.count(problems) }));
    const place = element.querySelector(".ms-badge");
    place.textContent = words.join(" \u00b7 ");
    place.title = parts.map(({ run }) => run.problem).filter(Boolean).join("\n");
    place.classList.toggle("ms-alarm", problems > 0);
  }

  function follow(graph) {
    if (drawn.has(graph)) return;
    drawn.set(graph, true);
    graph.on("plotly_relayout", (change) => {
      const first = change["xaxis.range[0]"], last = change["xaxis.range[1]"];
      if (typeof first !== "number" || typeof last !== "number") return;
      msmon.zoom(Math.floor(Math.min(first, last)), Math.ceil(Math.max(first, last)));
    });
    graph.on("plotly_doubleclick", () => msmon.zoom(null, null));
  }

  /** The same steps in all panels, fetched anew at full resolution; null, null: everything. */
  msmon.zoom = function (first, last) {
    if (first !== null && last <= first) last = first + 1;
    if (msmon.state.first === first && msmon.state.last === last) return;
    Object.assign(msmon.state, { first, last });
    msmon.writeAddress();
    msmon.refetch();
    msmon.draw();
  };

  window.addEventListener("scroll", () => schedule(), { passive: true });
  window.addEventListener("resize", () => msmon.standardPanels && msmon.draw());
})(window.msmon);
