/* Colours of runs and findings; severities differ in shape too. */
"use strict";

(function (msmon) {
  /* Colour-blind safe (after Okabe & Ito and Tol), readable on white and on near-black. */
  const PALETTE = ["#3b7ddd", "#e07b00", "#2a9d6f", "#c8499b", "#8a63d2", "#b5892b", "#d1495b", "#1fa3b8", "#7a8a99", "#6d9f2f"];
  msmon.severity = {
    error: { colour: "#d1344b", symbol: "x" },
    warning: { colour: "#d98a00", symbol: "triangle-up" },
    info: { colour: "#4a7fb5", symbol: "circle" },
  };
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

  /** A colour with some transparency. */
  msmon.faded = function (colour, alpha) {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  };
})(window.msmon);
