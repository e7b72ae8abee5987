// The theme that was chosen, set before the first paint; "system" follows the browser.
"use strict";
(() => {
  let kept = null;
  try { kept = localStorage.getItem("fourpoint-theme"); } catch { /* storage may be forbidden */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
