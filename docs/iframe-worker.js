// A page that is opened as a file may start no worker, and the search is one: a hidden frame runs its script instead.
// The theme asks for this by the name IFrameWorker.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        self.postMessage = (data) => parent.dispatchEvent(new CustomEvent("from worker", {detail: data}));
        self.importScripts = async (...places) => {
          for (const place of places)
            await new Promise((loaded, failed) => {
              const script = document.createElement("script");
              Object.assign(script, {src: place, onload: loaded, onerror: failed});
              document.head.append(script);
            });
        };
      </script><script src="${address}"></script>`;
      this.window = new Promise((ready) => (frame.onload = () => ready(frame.contentWindow)));
      window.addEventListener("from worker", (event) => {
        this.dispatchEvent(new MessageEvent("message", {data: event.detail}));
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.window).dispatchEvent(new MessageEvent("message", {data}));
    }
  };
}
