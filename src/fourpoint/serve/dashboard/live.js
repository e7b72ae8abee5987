// The service's stream of server-sent events, read with fetch so that a token can be sent; it
// reconnects for ever and asks for what it has missed by the id of the last message.

const LONGEST_WAIT = 8000; // milliseconds between two attempts
const SILENCE = 30000; // without a single byte the connection counts as lost

export function follow({ path, headers, onMessage, onState }) {
  let lastId = null;
  let wait = 500;
  let stopped = false;
  let controller = null;
  let wake = null;

  async function read() {
    controller = new AbortController();
    const asked = { Accept: "text/event-stream", ...headers() };
    if (lastId !== null) asked["Last-Event-ID"] = lastId;
    let timer = setTimeout(() => controller.abort(), SILENCE);
    try {
      const response = await fetch(path, { headers: asked, signal: controller.signal, cache: "no-store" });
      if (!response.ok || !response.body) {
        onState(response.status === 401 || response.status === 403 ? "refused" : "lost");
        return;
      }
      wait = 500;
      onState("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => controller.abort(), SILENCE);
        rest += value.replace(/\r\n?/g, "\n");
        const blocks = rest.split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) dispatch(block);
      }
    } catch {
      // A lost connection: the loop below tries again.
    } finally {
      clearTimeout(timer);
    }
  }

  function dispatch(block) {
    let name = "message";
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      else if (line.startsWith("id:")) lastId = line.slice(3).trim();
    }
    if (!data.length) return;
    let content = null;
    try { content = JSON.parse(data.join("\n")); } catch { return; }
    onMessage(name, content);
  }

  async function forever() {
    while (!stopped) {
      await read();
      if (stopped) return;
      onState("lost");
      await new Promise((resolve) => { wake = resolve; setTimeout(resolve, wait); });
      wait = Math.min(LONGEST_WAIT, wait * 1.6);
    }
  }

  addEventListener("online", () => wake && wake());
  forever();
  return {
    stop() { stopped = true; if (controller) controller.abort(); if (wake) wake(); },
    retry() { wait = 500; if (wake) wake(); },
  };
}
