/* Bytes of the live route to plain values, and the page's copy of each trace. The layout is documented in dashboard/stream.py. */
"use strict";
window.msmon = window.msmon || {};

(function (msmon) {
  const MAGIC = 0x314d534d;
  const COLUMNS = ["first", "last", "min", "max", "mean", "count"];

  /**
   * Decode one answer of api/live.
   * @param {ArrayBuffer} buffer
   * @returns {{version: number, time: number, findings: number, traces: Array}}
   */
  msmon.decode = function (buffer) {
    const view = new DataView(buffer);
    let at = 0;
    const u32 = () => { at += 4; return view.getUint32(at - 4, true); };
    const u16 = () => { at += 2; return view.getUint16(at - 2, true); };
    const u8 = () => { at += 1; return view.getUint8(at - 1); };
    const f64 = () => { at += 8; return view.getFloat64(at - 8, true); };
    const floats = (n) => { at += 8 * n; return new Float64Array(buffer, at - 8 * n, n); };
    if (u32() !== MAGIC) throw new Error("api/live: not a live answer");
    const answer = { version: u32(), time: f64(), findings: u32(), traces: [] };
    for (let left = u32(); left > 0; left -= 1) {
      const trace = { run: u16(), metric: u16() };
      const flags = u8();
      Object.assign(trace, { full: (flags & 1) !== 0, olderLeftOut: (flags & 2) !== 0, shift: u8() });
      const segments = u16();
      Object.assign(trace, { rows: u32(), layout: u32(), points: u32(), nonfinite: u32() });
      trace.segments = [];
      for (let s = 0; s < segments; s += 1) {
        const segment = { attempt: u32() };
        const bins = u32(), marks = u32();
        u32();
        segment.ghostFrom = f64();
        for (const name of COLUMNS) segment[name] = floats(bins);
        segment.markStep = floats(marks);
        segment.markValue = floats(marks);
        trace.segments.push(segment);
      }
      answer.traces.push(trace);
    }
    return answer;
  };

  /** Put `fresh` behind the part of `old` that lies below its first entry (by `key`). */
  function join(old, fresh, names, key, from) {
    let keep = old[key].length;
    while (keep > 0 && old[key][keep - 1] >= from) keep -= 1;
    const joined = {};
    for (const name of names) {
      joined[name] = new Float64Array(keep + fresh[name].length);
      joined[name].set(old[name].subarray(0, keep));
      joined[name].set(fresh[name], keep);
    }
    return joined;
  }

  /**
   * Merge an answer's trace into what the page has.
   * Bins are aligned, so everything from the first fresh bin's lower bound on is replaced.
   */
  msmon.merge = function (old, fresh) {
    if (fresh.full || !old) return fresh;
    const width = Math.pow(2, fresh.shift);
    const segments = fresh.segments.map((segment, number) => {
      const before = old.segments[number];
      if (!before) return segment;
      const starts = [];
      if (segment.first.length) starts.push(segment.first[0]);
      if (segment.markStep.length) starts.push(segment.markStep[0]);
      if (!starts.length) return Object.assign({}, before, { ghostFrom: segment.ghostFrom });
      const from = Math.floor(Math.min(...starts) / width) * width;
      return Object.assign(
        { attempt: segment.attempt, ghostFrom: segment.ghostFrom },
        join(before, segment, COLUMNS, "first", from),
        join(before, segment, ["markStep", "markValue"], "markStep", from),
      );
    });
    return Object.assign({}, fresh, { segments });
  };
})(window.msmon);
