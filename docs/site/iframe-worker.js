// Search from disk: browsers start no Worker for a page of file://, so a hidden frame does a worker's work.
(() => {
  if (location.protocol !== "file:") return;
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      this.waiting = [];
      window.addEventListener("message", (event) => {
        if (event.source === inside && "worker" in Object(event.data)) {
          const told = new MessageEvent("message", { data: event.data.worker });
          this.dispatchEvent(told);
          this.onmessage?.(told);
        }
      });
      inside.document.open();
      inside.document.write(
        `<script>
          postMessage = (data) => parent.postMessage({ worker: data }, "*");
          importScripts = (...addresses) => addresses
            .reduce((before, each) => before.then(() => new Promise((done, failed) => {
              const script = document.createElement("script");
              script.src = each; script.onload = done; script.onerror = failed;
              document.body.append(script);
            })), Promise.resolve());
        <\/script><body><script src="${new URL(address, location)}"><\/script>`
      );
      inside.document.close();
      this.frame.onload = () => {
        this.ready = true;
        for (const data of this.waiting) this.send(data);
      };
    }
    send(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.ready) this.send(data);
      else this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
})();
