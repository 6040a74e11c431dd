"use strict";
// Hovering, tapping or focusing a mark shows its description. The page says the same without this.
(() => {
  const hint = document.getElementById("hint");
  const marked = '.picture [role="graphics-symbol"]';
  const show = (event) => {
    const mark = event.target instanceof Element ? event.target.closest(marked) : null;
    hint.hidden = mark === null;
    if (mark === null) return;
    hint.textContent = mark.getAttribute("aria-label");
    const room = document.documentElement.clientWidth - hint.offsetWidth - 8;
    hint.style.left = `${Math.max(8, Math.min(event.clientX + 12, room))}px`;
    const above = event.clientY - hint.offsetHeight - 12;
    hint.style.top = `${above > 4 ? above : event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("pointerleave", () => { hint.hidden = true; });
})();
