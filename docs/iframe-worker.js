// The search runs in a Worker, and browsers start none for a page that was opened from the disk. There, a worker is a
// hidden frame instead: its script runs in the frame, and both sides hand each other copies of their messages.
"use strict";
(() => {
  if (location.protocol !== "file:") return;
  const load = (inside, url) => new Promise((done, failed) => {
    const script = inside.document.createElement("script");
    script.src = url;
    script.onload = done;
    script.onerror = () => failed(new Error(`${url} cannot be loaded`));
    inside.document.head.append(script);
  });
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame;
      const inside = frame.contentWindow;
      const told = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.postMessage = (data) => queueMicrotask(() => told(structuredClone(data)));
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
      this.ready = load(inside, new URL(url, location.href).href);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      const copy = structuredClone(data);
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: copy })));
    }

    terminate() {
      this.frame.remove();
    }
  };
})();
