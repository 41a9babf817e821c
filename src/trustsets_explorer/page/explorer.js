// The page: asks for what a state shows, drops what came too late, and draws.
import { drawTrace } from "./charts.js";
import { grouped, make, one } from "./dom.js";
import { fromAddress, Parameters, toAddress } from "./parameters.js";
import { drawGaps, drawLists, drawMaps, drawNumbers, drawSizes, hideTip } from "./maps.js";
import { drawRegions, openList } from "./samples.js";

const results = one("#results");
const status = one("#status");
const client = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
let generation = 0;
let parameters = null;
let shown = null;
let waiting = null;
let moves = 0;

async function send(action, body) {
  generation += 1;
  return fetch(`/api/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ client, generation, ...body }),
  });
}

// The answer to a question about the state that is shown; null, with a message, if it failed.
async function ask(action, more = {}) {
  try {
    const reply = await send(action, { state: shown.state, ...more });
    if (reply.ok) return await reply.json();
    say(await reply.text());
  } catch {
    say("The server does not answer. Is it still running?");
  }
  return null;
}

function say(text) {
  status.textContent = text;
}

// ---- Moving --------------------------------------------------------------------------------

async function update() {
  history.replaceState(null, "", toAddress(parameters.state));
  results.setAttribute("aria-busy", "true");
  moves += 1;
  const [asked, started] = [moves, performance.now()];
  waiting = asked;
  const late = setTimeout(() => waiting === asked && say("Computing …"), 1000);
  try {
    // Where numbers take long, those of the first test samples come before those of all.
    for (const action of ["first", "answer"]) {
      const reply = await send(action, { state: parameters.state });
      if (waiting !== asked) return;
      if (!reply.ok) return say(await reply.text());
      const answer = await reply.json();
      // A newer state has been asked for; its answer comes.
      if (waiting !== asked || answer.superseded) return;
      shown = answer;
      draw(answer);
      const rest = isWhole(answer) ? `${Math.round(performance.now() - started)} ms.` : `The first ${grouped(answer.n[1])} of ${grouped(answer.n[2])} test samples …`;
      say(`${answer.spoken} ${rest}`);
      if (isWhole(answer)) return void tell(asked);
    }
  } catch {
    if (waiting === asked) say("The server does not answer. Is it still running?");
  } finally {
    clearTimeout(late);
    if (waiting === asked) results.setAttribute("aria-busy", "false");
  }
}

// The verdict takes longer than the numbers; that of the state before is faint until it is there.
async function tell(asked) {
  one("#verdict").setAttribute("aria-busy", "true");
  const words = await ask("words");
  if (waiting !== asked || !words?.verdict) return;
  const parts = words.verdict.map(([heading, sentences]) => make("div", {}, make("dt", {}, heading), sentences.map((sentence) => make("dd", {}, sentence))));
  one("#verdict dl").replaceChildren(...parts);
  one("#verdict").setAttribute("aria-busy", "false");
}

function goTo(state) {
  parameters.write(structuredClone(state));
  update();
}

const isWhole = (answer) => answer.n[1] === answer.n[2];
// Cells of the first samples are other cells than those of all.
const open = (index, table, bin) => isWhole(shown) && openList(ask, shown.methods[index], { index, ...(table === undefined ? {} : { table, bin }) });

function draw(answer) {
  hideTip();
  one("#facts").textContent = `${grouped(answer.n[0])} calibration and ${grouped(answer.n[1])} test samples${parameters.start.source ? ` of ${parameters.start.source}` : ""}, target coverage ${answer.target}.`;
  drawTrace(answer, goTo, open);
  drawMaps(answer, open);
  drawNumbers(answer);
  drawGaps(answer);
  drawSizes(answer);
  drawLists(answer, open);
  drawButtons(answer);
}

// ---- Regions, and what leaves the page ---------------------------------------------------------

function drawButtons(answer) {
  const region = answer.methods.map((name, index) => make("button", { type: "button", "data-key": `regions-${index}`, onclick: async () => {
    one("#region-list").replaceChildren(make("p", {}, "Searching …"));
    drawRegions(await ask("regions", { index }), name, ask, index);
  } }, `Search for ${name}`));
  one("#region-buttons").replaceChildren(...region);
  const kinds = [
    ["Copy as Python", (index) => copyCode("python", index)],
    ["Copy as command", (index) => copyCode("command", index)],
    ["Save this predictor", save],
  ];
  const lines = answer.methods.map((name, index) => make("div", { class: "tools" }, make("span", { class: "name" }, name), kinds.map(([text, act], i) => make("button", { type: "button", "data-key": `export-${i}-${index}`, onclick: () => act(index) }, text))));
  one("#exports").replaceChildren(...lines);
}

async function copy(text, what) {
  one("#exported").textContent = "";
  try {
    await navigator.clipboard.writeText(text);
    one("#exported").textContent = `${what} is in the clipboard.`;
  } catch {
    one("#exported").textContent = `The browser does not allow copying; ${what} is below.`;
  }
}

async function copyCode(kind, index) {
  const code = await ask("code", { index });
  if (!code) return;
  await copy(code[kind], "The code");
  one("#exports .code")?.remove();
  one("#exports").append(make("pre", { class: "code", tabindex: 0 }, code[kind]));
}

async function save(index) {
  one("#exported").textContent = "Preparing the file …";
  const reply = await send("predictor", { state: shown.state, index });
  if (!reply.ok) return (one("#exported").textContent = await reply.text());
  if (reply.headers.get("content-type").startsWith("application/json")) return (one("#exported").textContent = "Cancelled, because a parameter changed.");
  const link = make("a", { href: URL.createObjectURL(await reply.blob()), download: "model.trustsets" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  one("#exported").textContent = "model.trustsets is in your downloads.";
}

// ---- Page ----------------------------------------------------------------------------------

function prepareThemes() {
  const [sheet, button] = [one("#dark"), one("#theme")];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  button.setAttribute("aria-pressed", dark.matches);
  button.addEventListener("click", () => {
    const next = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", next);
    sheet.media = next ? "screen" : "not all";
  });
  one("#link").addEventListener("click", () => copy(location.href, "The link"));
}

async function begin() {
  prepareThemes();
  const reply = await fetch("/start");
  if (!reply.ok) return say(await reply.text());
  const start = await reply.json();
  const first = fromAddress(location.hash, start);
  parameters = new Parameters(one("#controls"), start, update);
  if (first !== start.state) parameters.write(first);
  window.addEventListener("hashchange", () => goTo(fromAddress(location.hash, start)));
  await update();
}

begin();
