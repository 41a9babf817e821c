// Browsers refuse workers to pages that were opened from disk. There, search runs in a hidden frame:
// what the page sends arrives as a message event of the frame, and the answers come back the same way.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        "<script>window.postMessage = (data) => window.answer(data)</script>" +
        `<script src="${new URL(address, location)}"></script>`;
      this.ready = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame)));
      document.body.append(frame);
    }

    async postMessage(data) {
      const inner = (await this.ready).contentWindow;
      inner.answer = (found) => this.dispatchEvent(new MessageEvent("message", { data: found }));
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }
  };
}
