"""The page of /docs: all paths from the OpenAPI document, each with an example in a box and a button that sends it.

Self-contained: no other address is asked for anything, and its policy allows this one script only.
"""

SCRIPT = r"""
const key = document.getElementById("key"), list = document.getElementById("paths");
const authorization = () => key.value ? {authorization: "Bearer " + key.value} : {};
const headers = () => ({"content-type": "application/json", ...authorization()});
function make(name, text, parent) {
  const found = document.createElement(name);
  found.textContent = text;
  parent.append(found);
  return found;
}
async function send(method, path, body, shown) {
  shown.textContent = "...";
  try {
    const answer = await fetch(path, {method, headers: headers(), body});
    shown.textContent = answer.status + "\n";
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    for (let part = await reader.read(); !part.done; part = await reader.read())
      shown.textContent += decoder.decode(part.value, {stream: true});
  } catch (error) { shown.textContent = String(error); }
}
function show(path, method, described) {
  const box = make("details", "", list), content = described.requestBody?.content["application/json"];
  make("summary", method.toUpperCase() + " " + path, box);
  make("p", described.description || described.summary || "", box);
  let body;
  if (content) {
    body = make("textarea", JSON.stringify(content.example, null, 2), box);
    body.rows = Math.min(16, body.value.split("\n").length + 1);
    body.setAttribute("aria-label", "body of " + path);
  }
  const button = make("button", "Run", box), shown = make("pre", "", box);
  button.onclick = () => send(method.toUpperCase(), path, body?.value, shown);
}
async function load() {
  list.textContent = "";
  const answer = await fetch("/openapi.json", {headers: headers()});
  if (!answer.ok) { list.textContent = "This server needs a key: type it above."; return; }
  const found = await answer.json();
  for (const [path, methods] of Object.entries(found.paths))
    for (const [method, described] of Object.entries(methods))
      if (!path.includes("{")) show(path, method, described);
}
key.onchange = load;
load();
"""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
textarea, input { width: 100%; font: 14px monospace; box-sizing: border-box; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f4f4f4; color: #111; padding: .5rem;
  max-height: 30rem; overflow-y: auto; }
summary { font: 15px monospace; cursor: pointer; padding: .3rem 0; }
button { padding: .3rem 1rem; margin: .5rem 0; }
"""
PAGE = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Weft: the API</title>
<style>{STYLE}</style></head>
<body>
<h1>The API of this server</h1>
<p>Every path with an example that runs. The document behind this page: <a href="/openapi.json">openapi.json</a>.</p>
<label>Key, if the server needs one <input id="key" type="password" autocomplete="off"></label>
<main id="paths"></main>
<script>{SCRIPT}</script>
</body>
</html>
"""
