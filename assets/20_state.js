/* What the user chose, kept in the address, so that a link is a view; and the words of the page. */
"use strict";

(function (msmon) {
  const state = {
    runs: null, // keys in order of choice; null: not chosen yet
    first: null, // zoomed step range, null: everything
    last: null,
    smoothing: 0,
    extra: [], // metrics in panels of their own
    theme: "auto",
    language: "en",
    full: false, // full instead of robust y range
    paused: false,
    search: "",
  };
  msmon.state = state;
  const NONE = "none"; // in the address: no run at all is a choice too

  /** Read the choices out of the address; `defaults` are the server's. */
  msmon.readAddress = function (defaults) {
    const query = new URLSearchParams(window.location.search);
    const whole = (name) => (/^-?\d{1,15}$/.test(query.get(name) || "") ? Number(query.get(name)) : null);
    state.runs = query.has("runs") ? query.get("runs").split(",").filter((key) => key && key !== NONE) : null;
    state.first = whole("first");
    state.last = whole("last");
    const smoothing = Number(query.get("smoothing"));
    state.smoothing = smoothing > 0 && smoothing < 1 ? smoothing : 0;
    state.extra = query.getAll("panel");
    state.full = query.get("range") === "full";
    const theme = query.get("theme") || defaults.theme;
    state.theme = ["light", "dark"].includes(theme) ? theme : "auto";
    const spoken = (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
    const language = query.get("language") || defaults.language;
    state.language = ["en", "zh"].includes(language) ? language : spoken;
  };

  /** Write the choices into the address, without a history entry per slider move. */
  msmon.writeAddress = function () {
    const query = new URLSearchParams(window.location.search);
    const put = (name, value) => (value === null || value === "" ? query.delete(name) : query.set(name, value));
    put("runs", state.runs === null ? null : state.runs.join(",") || NONE);
    put("first", state.first);
    put("last", state.last);
    put("smoothing", state.smoothing || null);
    put("range", state.full ? "full" : null);
    put("theme", state.theme === "auto" ? null : state.theme);
    put("language", state.language);
    query.delete("panel");
    state.extra.forEach((metric) => query.append("panel", metric));
    query.delete("token"); // it is in a cookie by now and must not be shared with a link
    const text = query.toString().replace(/%2C/g, ",");
    window.history.replaceState(null, "", window.location.pathname + (text ? "?" + text : ""));
  };

  /** Whether the page is dark now. */
  msmon.isDark = function () {
    if (state.theme !== "auto") return state.theme === "dark";
    return window.matchMedia("(prefers-color-scheme: dark)").matches;
  };

  /** The text of a key in the page's language, with {names} filled in. */
  msmon.text = function (key, values) {
    const catalogue = (msmon.texts || {})[state.language] || {};
    const one = values && values.count === "1" ? catalogue[`${key}_one`] : undefined; // "1 problem", not "1 problems"
    return (one || catalogue[key] || key).replace(/\{(\w+)\}/g, (whole, name) => (values && name in values ? values[name] : whole));
  };

  /** A metric in words; one that nobody foresaw keeps its own name. */
  msmon.metricName = function (metric) {
    const catalogue = (msmon.texts || {})[state.language] || {};
    return Object.hasOwn(catalogue, `metric_${metric}`) ? catalogue[`metric_${metric}`] : metric;
  };

  /** Put words into all elements that ask for them. */
  msmon.translate = function () {
    document.documentElement.lang = state.language === "zh" ? "zh-CN" : "en";
    document.querySelectorAll("[data-text]").forEach((element) => {
      element.textContent = msmon.text(element.dataset.text);
    });
    document.querySelectorAll("[data-title]").forEach((element) => {
      element.title = msmon.text(element.dataset.title);
      element.setAttribute("aria-label", element.title);
    });
    const search = document.getElementById("search");
    if (search) {
      search.placeholder = msmon.text("search");
      search.setAttribute("aria-label", msmon.text("search"));
    }
    document.getElementById("language").textContent = state.language === "zh" ? "EN" : "中";
  };

  /** Path of a route below the path prefix. */
  msmon.url = function (path) {
    const config = JSON.parse(document.getElementById("_dash-config").textContent);
    return config.requests_pathname_prefix + path;
  };

  /** Text as Plotly must get it: its labels are pseudo-HTML. */
  msmon.escape = function (text) {
    const shown = String(text).length > 120 ? String(text).slice(0, 119) + "\u2026" : String(text);
    return shown.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/[\r\n\u2028\u2029]+/g, " ")
      .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, ""); // direction marks would mirror the rest of the label
  };

  /** Text in lines of at most 72 columns (Chinese characters take two): Plotly does not wrap. */
  msmon.wrap = function (text) {
    const lines = [];
    let line = "", width = 0;
    for (const word of String(text).match(/[\u2e80-\uffef]|[^\s\u2e80-\uffef]+|\s+/g) || []) {
      const size = /^[\u2e80-\uffef]/.test(word) ? 2 : word.length;
      if (width + size > 72 && line.trim()) { lines.push(line.trim()); line = ""; width = 0; }
      line += word;
      width += size;
    }
    return line.trim() ? lines.concat(line.trim()) : lines;
  };

  const GROUPED = { en: new Intl.NumberFormat("en-US"), zh: new Intl.NumberFormat("zh-CN") };
  /** 12,040 */
  msmon.count = (number) => GROUPED[state.language].format(number);

  /** 12040 as it is, 1234567 as 1.235M: for narrow columns. */
  msmon.compact = function (number) {
    if (Math.abs(number) < 1e5) return String(number);
    const [size, letter] = Math.abs(number) >= 1e9 ? [1e9, "G"] : Math.abs(number) >= 1e6 ? [1e6, "M"] : [1e3, "k"];
    return Number((number / size).toPrecision(4)) + letter;
  };

  /** A value with its unit, short. */
  msmon.value = function (number, unit) {
    if (!Number.isFinite(number)) return String(number);
    if (unit === "bytes") {
      const size = Math.abs(number);
      const [power, name] = size >= 2 ** 30 ? [30, "GiB"] : size >= 2 ** 20 ? [20, "MiB"] : size >= 2 ** 10 ? [10, "KiB"] : [0, "B"];
      return `${Number((number / 2 ** power).toPrecision(4))} ${name}`;
    }
    if (unit === "share") return `${Number((100 * number).toPrecision(4))} %`;
    const text = Math.abs(number) >= 1e6 || (number !== 0 && Math.abs(number) < 1e-3) ? number.toExponential(3) : String(Number(number.toPrecision(5)));
    return unit === "percent" ? `${text} %` : unit ? `${text} ${unit}` : text;
  };

  /** A duration in words a person reads at a glance. */
  msmon.age = function (seconds) {
    if (seconds < 60) return `${Math.max(0, seconds).toFixed(seconds < 10 ? 1 : 0)} s`;
    if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
  };
})(window.msmon);
