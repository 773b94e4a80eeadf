/* The run table and the findings list. */
"use strict";

(function (msmon) {
  const FIRST_RUNS = 10; // selected when nobody chose: the newest ones
  msmon.runs = new Map(); // key -> row of api/runs
  let clock = 0; // server's time minus ours, seconds
  const MAX_LISTED = 200; // findings in the list; the panels mark more
  const STATUS_SIGN = { running: "\u25cf", finished: "\u2713", stopped: "\u25a0", failed: "\u2715", vanished: "\u2715", unknown: "?" };
  let listed = "", told = "";

  msmon.serverTime = () => Date.now() / 1000 + clock;

  /** The chosen runs that exist, in order of choice. */
  msmon.selectedRuns = function () {
    const keys = msmon.state.runs === null ? newest() : msmon.state.runs;
    return keys.map((key) => msmon.runs.get(key)).filter(Boolean);
  };

  let automatic = [];
  function newest() {
    automatic = automatic.filter((key) => msmon.runs.has(key));
    const rest = [...msmon.runs.values()].filter((run) => !automatic.includes(run.key)).sort((a, b) => b.modified - a.modified);
    automatic = automatic.concat(rest.slice(0, Math.max(0, FIRST_RUNS - automatic.length)).map((run) => run.key));
    return automatic;
  }

  /** Take an answer of api/runs. */
  msmon.takeRuns = function (answer) {
    clock = answer.time - Date.now() / 1000;
    msmon.runs = new Map(answer.runs.map((run) => [run.key, run]));
    [...msmon.traces.keys()].forEach((key) => { if (!msmon.runs.has(key)) msmon.traces.delete(key); });
    // Colours go by name, so that they do not depend on which run was looked at first.
    [...msmon.runs.values()].sort((a, b) => (a.name < b.name ? -1 : 1)).forEach((run) => msmon.colour(run.key));
    showTable();
    showEmpty(answer);
    msmon.listFindings();
    msmon.offerMetrics();
  };

  function showTable() {
    const rows = [...msmon.runs.values()].map((run) => ({
      key: run.key, colour: msmon.colour(run.key), title: run.title, name: run.name, status: run.status, reason: run.reason, steps: run.steps, loss: run.loss,
      findings: run.findings, attempts: run.attempts, modified: run.modified, loading: run.loading ? run.bytes_read / Math.max(1, run.bytes_total) : null, language: msmon.state.language,
    })).sort((a, b) => b.modified - a.modified);
    const ids = msmon.selectedRuns().map((run) => run.key);
    const now = JSON.stringify([rows, ids]);
    if (now === listed) return;
    listed = now;
    window.dash_clientside.set_props("runs", { rowData: rows, columnDefs: columns(), selectedRows: { ids } });
  }

  function columns() {
    const number = { type: "rightAligned", cellDataType: false };
    return [
      { field: "title", headerName: msmon.text("column_name"), cellRenderer: "MsmonRun", flex: 1, minWidth: 130, tooltipField: "name", cellDataType: "text" },
      { field: "status", headerName: "\u25d4", headerTooltip: msmon.text("column_status"), cellRenderer: "MsmonStatus", width: 32, cellDataType: "text" },
      { field: "steps", headerName: msmon.text("column_steps"), cellRenderer: "MsmonCount", width: 55, ...number },
      { field: "loss", headerName: msmon.text("column_loss"), cellRenderer: "MsmonLoss", width: 62, ...number },
      { field: "findings", headerName: "\u26a0", headerTooltip: msmon.text("column_findings"), width: 36, ...number },
      { field: "attempts", headerName: "\u21bb", headerTooltip: msmon.text("column_attempts"), width: 32, ...number },
    ];
  }

  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  const make = (tag, props, ...children) => window.React.createElement(tag, props, ...children);
  components.MsmonRun = ({ data }) =>
    make("span", { className: "ms-run", title: `${data.title} (${data.name})` }, make("span", { className: "ms-swatch", style: { background: data.colour } }), make("span", { className: "ms-run-title" }, data.title));
  components.MsmonStatus = ({ data }) => {
    const word = msmon.text(`status_${data.status}`);
    const title = data.reason ? `${word}: ${data.reason}` : word;
    const shown = data.loading === null ? STATUS_SIGN[data.status] : `${Math.floor(100 * data.loading)}%`;
    return make("span", { className: `ms-sign ms-${data.status}`, title, role: "img", "aria-label": title }, shown);
  };
  components.MsmonCount = ({ value }) => make("span", { title: value === null ? "" : msmon.count(value) }, value === null ? "" : msmon.compact(value));
  components.MsmonLoss = ({ value }) => make("span", { className: typeof value === "string" ? "ms-bad" : "" }, typeof value === "number" ? Number(value.toPrecision(4)).toString() : value === null ? "" : value);

  /** What is missing, and what to do, when no run can be shown. */
  function showEmpty(answer) {
    const box = document.getElementById("empty");
    const reasons = answer.roots.map((root) => msmon.text(`empty_${root.code}`, { path: root.path }) + (root.detail ? ` (${root.detail})` : ""));
    answer.directory_problems.forEach((text) => reasons.push(msmon.text("directory_problem", { text })));
    const empty = answer.scanned && !answer.runs.length;
    box.style.display = empty || answer.directory_problems.length ? "" : "none";
    box.classList.toggle("ms-note-only", !empty);
    const list = box.querySelector(".ms-reasons");
    list.replaceChildren(...reasons.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
    document.getElementById("panels").style.display = empty ? "none" : "";
    document.querySelector(".ms-add").style.display = empty ? "none" : "";
  }

  /** Findings of the selected runs; a click goes to the place. */
  msmon.listFindings = function () {
    const list = document.getElementById("findings");
    const items = [], damaged = msmon.selectedRuns().filter((run) => run.problems);
    let total = 0;
    for (const run of msmon.selectedRuns()) {
      const found = msmon.findings[run.key];
      if (!found) continue;
      total += found.total;
      found.marks.forEach((mark) => items.push({ run, mark }));
    }
    const order = { error: 0, warning: 1, info: 2 };
    items.sort((a, b) => order[a.mark.severity] - order[b.mark.severity] || a.mark.first - b.mark.first);
    items.length = Math.min(items.length, MAX_LISTED);
    const now = JSON.stringify([msmon.state.language, total, damaged.map((run) => [run.key, run.problems]), items.map(({ run, mark }) => [run.key, run.title, mark])]);
    if (now === told) return; // a list that is built anew under the pointer swallows clicks
    told = now;
    const nodes = damaged.map(damage).concat(items.map(({ run, mark }) => entry(run, mark)));
    if (total > items.length) nodes.push(line("ms-faint", msmon.text("more_findings", { count: msmon.count(total - items.length) })));
    if (!items.length) nodes.push(line("ms-faint", msmon.text("no_findings")));
    const top = list.scrollTop;
    list.replaceChildren(...nodes);
    list.scrollTop = top;
  };

  function line(className, text) {
    return Object.assign(document.createElement("p"), { className, textContent: text });
  }

  /** "sign TITLE [colour] RUN" */
  function heading(sign, title, run) {
    const head = line("ms-finding-head", "");
    const swatch = Object.assign(document.createElement("span"), { className: "ms-swatch" });
    swatch.style.background = msmon.colour(run.key);
    head.append(`${sign} `, Object.assign(document.createElement("b"), { textContent: title }), " ", swatch, " ");
    head.append(Object.assign(document.createElement("bdi"), { textContent: run.title }));
    return head;
  }

  /** What of a run's files could not be read. */
  function damage(run) {
    const box = Object.assign(document.createElement("div"), { className: "ms-finding ms-damage" });
    box.append(heading("\u26a0", msmon.text("badge_problems", { count: msmon.count(run.problems) }), run), line("ms-faint", run.problem || ""), line("ms-faint", msmon.text("problem_hint")));
    return box;
  }

  function entry(run, mark) {
    const button = Object.assign(document.createElement("button"), { className: `ms-finding ms-${mark.severity}`, type: "button" });
    const head = heading({ error: "\u2716", warning: "\u25b2", info: "\u25cf" }[mark.severity], mark.title, run);
    const steps = msmon.text("steps", { first: msmon.count(mark.first), last: msmon.count(mark.last) });
    const where = run.ranks > 1 ? `${steps}, ${msmon.text("rank", { rank: mark.rank })}` : steps;
    button.append(head, line("ms-faint", where + (mark.ongoing ? ` \u00b7 ${msmon.text("ongoing")}` : "")), line("", mark.evidence));
    if (mark.advice.length) button.append(line("ms-advice", `\u2192 ${mark.advice[0]}`));
    button.title = mark.causes.map((cause) => `${msmon.text("causes")}: ${cause}`).join("\n");
    button.addEventListener("click", () => {
      const margin = Math.max(10, Math.ceil((mark.last - mark.first) * 0.5));
      msmon.zoom(Math.max(0, mark.first - margin), mark.last + margin);
    });
    return button;
  }

  let offered = "";
  /** Metrics of the selected runs that have no panel yet, for "add a panel". */
  msmon.offerMetrics = function () {
    const standard = new Set(msmon.standardPanels.flatMap((panel) => panel.metrics));
    const names = new Set(msmon.state.extra);
    msmon.selectedRuns().forEach((run) => run.metrics.forEach((name) => { if (!standard.has(name)) names.add(name); }));
    const options = [...names].sort();
    if (options.join("\n") === offered) return;
    offered = options.join("\n");
    window.dash_clientside.set_props("extra", { options });
  };
})(window.msmon);
