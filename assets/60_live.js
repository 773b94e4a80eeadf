/* The live loop and the controls: pull what is new, never two pulls at once, nothing while the tab is hidden. */
"use strict";

(function (msmon) {
  const WAIT_MS = 1000; // the server holds a pull this long for news
  const PAUSE_MS = 120; // between pulls: at most eight a second
  const TABLE_MS = 1000; // between refreshes of the run table
  const debug = (msmon.debug = { ticks: 0, draws: 0, drawMs: 0, bytes: 0, lastBytes: 0, latencyMs: 0, errors: [], inFlight: 0, mostInFlight: 0, ready: false });
  const cursors = new Map(); // run key -> "shift.rows.layout"
  let version = -1, tableVersion = -1, tableAt = 0, tableTag = "", findingsKey = "", question = "", abort = null, failures = 0;

  /** Forget how far each run was fetched: the next pull brings whole traces. */
  msmon.refetch = function () {
    cursors.clear();
    if (abort) abort.abort();
  };

  async function get(path, headers) {
    abort = new AbortController();
    debug.inFlight += 1;
    debug.mostInFlight = Math.max(debug.mostInFlight, debug.inFlight);
    try {
      const answer = await fetch(msmon.url(path), { headers, signal: abort.signal, cache: "no-store" }).catch((error) => {
        throw Object.assign(error, { unreached: true });
      });
      if (!answer.ok && answer.status !== 304) throw Object.assign(new Error(`${path.split("?")[0]}: ${answer.status}`), { status: answer.status });
      return answer;
    } finally {
      debug.inFlight -= 1;
    }
  }

  function columns() {
    const graph = document.querySelector(".ms-graph");
    return Math.max(200, Math.min(2000, Math.round((graph ? graph.clientWidth : 600) * Math.min(2, window.devicePixelRatio || 1))));
  }

  async function pull() {
    const runs = msmon.selectedRuns().map((run) => run.key), metrics = msmon.metrics();
    const query = new URLSearchParams({ metrics: metrics.join(","), columns: columns() });
    query.set("runs", runs.join(","));
    if (msmon.state.first !== null) { query.set("first", msmon.state.first); query.set("last", msmon.state.last); }
    const asked = query.toString();
    if (asked !== question) { cursors.clear(); question = asked; }
    const fresh = runs.some((key) => !cursors.has(key) && msmon.runs.get(key).rows > 0);
    if (cursors.size) query.set("cursor", runs.map((key) => cursors.get(key) || "").join(","));
    query.set("version", version);
    query.set("wait", fresh ? 0 : WAIT_MS);
    const begun = performance.now();
    const buffer = await (await get(`api/live?${query}`)).arrayBuffer();
    debug.lastBytes = buffer.byteLength;
    debug.bytes += buffer.byteLength;
    debug.latencyMs = performance.now() - begun;
    take(msmon.decode(buffer), runs, metrics);
  }

  /** Versions of one server count up by ones; a leap is another server, about which nothing is known yet. */
  function meetServer(answer) {
    if (version < 0 || (answer.version >= version && answer.version - version < 1e6)) return false;
    cursors.clear();
    forgetTable();
    findingsKey = "";
    return true;
  }

  function forgetTable() {
    tableVersion = -1;
    tableTag = "";
    tableAt = 0;
  }

  function take(answer, runs, metrics) {
    if (meetServer(answer)) { version = answer.version; return; }
    const changed = new Set();
    for (const trace of answer.traces) {
      const key = runs[trace.run], metric = metrics[trace.metric];
      if (!msmon.traces.has(key)) msmon.traces.set(key, new Map());
      const byMetric = msmon.traces.get(key);
      byMetric.set(metric, msmon.merge(byMetric.get(metric), trace));
      cursors.set(key, `${trace.shift}.${trace.rows}.${trace.layout}`);
      changed.add(metric);
    }
    // A run without any of these metrics has been asked too: it must not be asked again at once, for ever.
    runs.forEach((key) => { if (!cursors.has(key)) cursors.set(key, ""); });
    version = answer.version;
    if (changed.size) { msmon.drawMetrics(changed); if (msmon.state.first === null) msmon.draw(); }
    debug.findings = answer.findings;
  }

  async function pullTable() {
    if (version === tableVersion || Date.now() - tableAt < TABLE_MS) return;
    const asked = version;
    const answer = await get("api/runs", tableTag ? { "If-None-Match": tableTag } : {});
    tableAt = Date.now();
    tableVersion = asked;
    if (answer.status === 304) return;
    tableTag = answer.headers.get("ETag") || "";
    msmon.takeRuns(await answer.json());
    msmon.draw();
  }

  async function pullFindings() {
    const runs = msmon.selectedRuns().map((run) => run.key);
    const key = [debug.findings, msmon.state.language, ...runs].join();
    if (key === findingsKey || !runs.length) { if (!runs.length) msmon.listFindings(); return; }
    try {
      msmon.findings = await (await get(`api/findings?${new URLSearchParams({ runs: runs.join(","), language: msmon.state.language })}`)).json();
    } catch (error) {
      if (error.status !== 404) throw error;
      forgetTable(); // a run was deleted a moment ago: the table says which
      return;
    }
    findingsKey = key;
    msmon.listFindings();
    msmon.draw();
  }

  function status(kind) {
    const element = document.getElementById("status");
    element.className = `ms-status ms-is-${kind}`;
    element.querySelector(".ms-state").textContent = msmon.text(kind);
    element.querySelector(".ms-state").dataset.text = kind;
  }

  async function loop() {
    for (;;) {
      let wait = PAUSE_MS;
      if (document.hidden || msmon.state.paused) {
        status(msmon.state.paused ? "paused" : "live");
      } else {
        try {
          await pull();
          await pullTable();
          await pullFindings();
          failures = 0;
          debug.ticks += 1;
          debug.ready = true;
          status("live");
        } catch (error) {
          if (error.name !== "AbortError") {
            failures += 1;
            wait = Math.min(5000, 500 * failures);
            status(error.status === 401 ? "denied" : "offline");
            if (!error.unreached) debug.errors.push(String(error));
            cursors.clear();
          }
        }
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  function applyTheme() {
    document.documentElement.dataset.theme = msmon.isDark() ? "dark" : "light";
    window.dash_clientside.set_props("provider", { forceColorScheme: msmon.isDark() ? "dark" : "light" });
    msmon.draw();
  }

  const none = () => window.dash_clientside.no_update;
  const changed = () => { msmon.writeAddress(); return none(); };

  const controls = {
    /** Called once, when the page's tree is there. */
    boot(data) {
      if (msmon.booted || !data) return none();
      msmon.booted = true;
      msmon.texts = data.texts;
      msmon.standardPanels = data.panels;
      msmon.units = data.units;
      msmon.readAddress(data);
      msmon.translate();
      applyTheme();
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
      if (msmon.state.smoothing) window.dash_clientside.set_props("smoothing", { value: msmon.state.smoothing });
      if (msmon.state.extra.length) window.dash_clientside.set_props("extra", { value: msmon.state.extra, options: msmon.state.extra });
      loop();
      return true;
    },
    onSelect(rows) {
      if (!msmon.booted || !Array.isArray(rows)) return none();
      const keys = rows.map((row) => row.key);
      const before = msmon.selectedRuns().map((run) => run.key);
      if (keys.length === before.length && keys.every((key) => before.includes(key))) return none();
      msmon.state.runs = before.filter((key) => keys.includes(key)).concat(keys.filter((key) => !before.includes(key)));
      [...msmon.traces.keys()].forEach((key) => { if (!keys.includes(key)) msmon.traces.delete(key); });
      msmon.refetch();
      msmon.listFindings();
      msmon.offerMetrics();
      msmon.draw();
      return changed();
    },
    onSearch(text) {
      const api = window.dash_ag_grid && window.dash_ag_grid.getApi("runs");
      if (api) api.setGridOption("quickFilterText", text || "");
      return none();
    },
    onSmoothing(value) {
      if (!msmon.booted || value === msmon.state.smoothing) return none();
      msmon.state.smoothing = value || 0;
      msmon.draw();
      return changed();
    },
    onExtra(metrics) {
      if (!msmon.booted) return none();
      msmon.state.extra = metrics || [];
      msmon.refetch();
      setTimeout(() => msmon.draw(), 100);
      return changed();
    },
    onPause(clicks) {
      if (!clicks) return none();
      msmon.state.paused = !msmon.state.paused;
      const button = document.getElementById("pause");
      button.textContent = msmon.state.paused ? "\u25b6" : "\u2016";
      button.dataset.title = msmon.state.paused ? "resume" : "pause";
      msmon.translate();
      return none();
    },
    onReset(clicks) {
      if (clicks) msmon.zoom(null, null);
      return none();
    },
    onFullRange(clicks) {
      if (!clicks) return none();
      msmon.state.full = !msmon.state.full;
      document.getElementById("full-range").dataset.title = msmon.state.full ? "robust_range" : "full_range";
      document.getElementById("full-range").classList.toggle("ms-on", msmon.state.full);
      msmon.translate();
      msmon.draw();
      return changed();
    },
    onTheme(clicks) {
      if (!clicks) return none();
      msmon.state.theme = msmon.isDark() ? "light" : "dark";
      applyTheme();
      return changed();
    },
    onLanguage(clicks) {
      if (!clicks) return none();
      msmon.state.language = msmon.state.language === "zh" ? "en" : "zh";
      msmon.translate();
      forgetTable();
      msmon.draw();
      return changed();
    },
    onHelp(clicks) {
      if (clicks) msmon.toggleHelp();
      return none();
    },
    onMenu(clicks) {
      if (!clicks) return none();
      document.body.classList.toggle("ms-menu-open");
      return none();
    },
  };

  msmon.toggleHelp = function (open) {
    const box = document.getElementById("help-box");
    const show = open === undefined ? box.style.display === "none" : open;
    box.style.display = show ? "" : "none";
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, { msmon: controls });
})(window.msmon);
