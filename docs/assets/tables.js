// Tables that scroll sideways can be reached and scrolled with the keyboard.
const focusable = () =>
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap) => { wrap.tabIndex = 0; });
new MutationObserver(focusable).observe(document.documentElement, { childList: true, subtree: true });
focusable();
