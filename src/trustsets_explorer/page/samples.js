// What is behind a number: samples of a cell, one sample with its reasons, regions of the audit.
import { grouped, make, one, show } from "./dom.js";

const panel = one("#panel");
let opener = null;

export function openPanel() {
  if (panel.open) return;
  opener = document.activeElement?.dataset.key;
  panel.showModal();
}

panel.addEventListener("close", () => {
  if (opener) one(`[data-key="${CSS.escape(opener)}"]`)?.focus();
});
panel.addEventListener("click", (event) => event.target === panel && panel.close());

const button = (text, act, key) => make("button", { type: "button", onclick: act, "data-key": key }, text);
const bar = (title, ...buttons) => make("div", { class: "head" }, make("h2", { id: "panel-title" }, title), make("div", { class: "tools" }, buttons, button("Close", () => panel.close(), "close")));

function setInWords(size, names) {
  if (size === 0) return "(empty)";
  const rest = size - names.length;
  return names.join(", ") + (rest > 0 ? ` and ${grouped(rest)} more` : "");
}

const trustText = (value) => (value === null ? "–" : value >= 1e6 ? value.toExponential(1) : String(+value.toPrecision(3)));

export async function openList(ask, method, request) {
  openPanel();
  show(panel, bar("Samples"), make("p", { role: "status" }, "Looking for the samples …"));
  const list = await ask("list", request);
  if (!list || list.superseded) return panel.close();
  const heads = ["Row", "True class", "Result", "Set", "Size", "Conf", "Trust"];
  const rows = list.rows.map((item) => {
    const cells = [
      ["", button(String(item.number), () => openSample(ask, method, { index: request.index, row: item.row }, () => openList(ask, method, request)), `row-${item.row}`)],
      ["name", item.label],
      [item.covered ? "name" : "name missed", item.covered ? "covered" : "missed"],
      ["set", setInWords(item.size, item.set)],
      ["", grouped(item.size)],
      ["", item.confidence.toFixed(3)],
      ["", trustText(item.trust)],
    ];
    return make("tr", { "data-row": item.row }, cells.map(([kind, content], i) => make("td", { class: kind, "data-head": heads[i] }, content)));
  });
  const table = make("table", {}, make("thead", {}, make("tr", {}, heads.map((text) => make("th", { scope: "col" }, text)))), make("tbody", {}, rows));
  show(panel, bar(`${method}, ${list.title}`),
    make("p", { class: "note" }, `${list.rows.length} of ${grouped(list.count)} samples. Those whose set misses the true class come first, then the largest sets. Choose a row for its reasons.`),
    make("div", { class: "scroll samples" }, table));
  one("button[data-key^=row]", panel)?.focus();
}

const picture = (source, text) => [
  source ? make("img", { src: source, alt: "The sample’s image" }) : null,
  text !== null && text !== undefined ? make("pre", {}, text) : null,
];

export async function openSample(ask, method, request, back) {
  openPanel();
  const sample = await ask("sample", request);
  if (!sample || sample.superseded) return panel.close();
  const facts = [
    ["True class", sample.label], ["Predicted class", sample.predicted], ["Result", sample.covered ? "covered" : "missed"],
    ["Set", setInWords(sample.size, sample.set)], ["Size", grouped(sample.size)],
    ["Threshold", sample.threshold === null ? "infinite" : String(+sample.threshold.toPrecision(4))], ["Status", sample.status],
    ["Alpha of this set", String(+sample.alpha.toPrecision(4))], ["Conf", sample.confidence.toFixed(3)], ["Trust", trustText(sample.trust)],
    ...Object.entries(sample.groups),
  ];
  const list = make("dl", { class: "facts" }, facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const near = sample.neighbours.map((other) => make("li", {}, make("b", {}, other.label), ` (${other.kind}, training row ${grouped(other.row)}, distance ${other.distance.toFixed(4)})`, picture(other.image, other.text)));
  show(panel, bar(`Sample ${sample.number}, ${method}`, back ? button("Back to the list", back, "back") : []),
    picture(sample.image, sample.text), list,
    make("h3", {}, "Why"), make("pre", { class: "why" }, sample.why),
    near.length ? make("h3", {}, "Nearest training samples") : null,
    near.length ? make("p", { class: "note" }, "Trust is the distance to the nearest other class over the distance to the predicted class.") : null,
    make("ul", { class: "near" }, near));
  one("button", panel).focus();
}

export function drawRegions(search, method, ask, index) {
  const list = one("#region-list");
  if (!search || search.superseded) return list.replaceChildren(make("p", {}, "The search was given up, because a parameter was moved."));
  if (!search.regions.length) return list.replaceChildren(make("p", {}, `${method}: no region is significantly under-covered, among conditions on ${search.searched}.`));
  list.replaceChildren(make("h3", {}, method), ...search.regions.map((region, i) => make("div", { class: "region" },
    make("p", {}, region.sentence),
    region.rows.length ? make("p", { class: "note" }, "Missed samples: ", ...region.rows.flatMap((row) => [make("button", { type: "button", "data-key": `region-${i}-${row}`, onclick: () => openSample(ask, method, { index, row }, null) }, String(row)), " "])) : null)));
}
