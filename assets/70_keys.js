/* The keyboard. Keys typed into a field belong to the field. */
"use strict";

(function (msmon) {
  const press = (id) => document.getElementById(id).click();
  const KEYS = {
    "/": () => document.getElementById("search").focus(),
    r: () => press("reset"),
    p: () => press("pause"),
    f: () => press("full-range"),
    t: () => press("theme"),
    "?": () => msmon.toggleHelp(),
    Escape: () => msmon.toggleHelp(false),
  };

  document.addEventListener("keydown", (event) => {
    if (!msmon.booted || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("input, textarea, select, [contenteditable=true]");
    if (typing && event.key !== "Escape") return;
    if (typing) event.target.blur();
    const action = KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  document.addEventListener("click", (event) => {
    if (event.target.id === "help-box") msmon.toggleHelp(false);
  });
})(window.msmon);
