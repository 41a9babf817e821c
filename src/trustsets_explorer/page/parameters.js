// The parameters: native inputs made from what the data allow, and their state in the address.
import { all, make, one } from "./dom.js";

const LETTERS = ["A", "B"];
const NARROW = window.matchMedia("(max-width: 40rem)");
const unfolded = {};
const METHODS = {
  conditional: "CONDITIONAL", standard: "STANDARD", mondrian: "by cells of confidence and trust", groups: "by group",
  class: "by class", clustered: "by clusters of classes",
};
const SCORES = { auto: "automatic", aps: "APS", raps: "RAPS", saps: "SAPS", softmax: "Softmax", margin: "Margin", topk: "Top-k" };
const CHOICES = {
  scale: { raw: "raw", tail: "tail" },
  basis: { auto: "automatic", polynomial: "polynomial", bins: "bins", intercept: "constant" },
  per_class: { auto: "up-weight rare", yes: "guarantee each (slow)", no: "treat alike" },
};
const TITLES = {
  method: "Method", score: "Score", scale: "Score scale", basis: "Function class",
  degree: "Degree", penalty: "Penalty", statistics: "Statistics", groups: "Groups",
  per_class: "Classes", temperature: "Temperature",
};
const regression = (s) => s.method === "conditional";
const hasBasis = (s) => regression(s) && s.basis !== "auto";
// Whether a parameter matters for a setting; the server ignores it otherwise.
const USED = {
  scale: (s) => s.score !== "auto",
  basis: regression,
  degree: (s) => hasBasis(s) && s.basis === "polynomial",
  penalty: (s) => hasBasis(s) && s.basis === "polynomial",
  statistics: (s) => s.method === "mondrian" || (hasBasis(s) && s.basis !== "intercept"),
  groups: (s) => s.method === "groups" || hasBasis(s),
  per_class: (s) => s.method === "conditional",
};

const label = (id, text) => make("label", { for: id }, text);
const line = (...children) => make("div", { class: "parameter" }, ...children);

function select(id, name, choices, value) {
  const options = Object.entries(choices).map(([item, text]) => make("option", { value: item, selected: item === value }, text));
  return line(label(id, TITLES[name]), make("select", { id, "data-name": name, "data-key": id }, ...options));
}

function checks(id, name, names, chosen) {
  const boxes = names.map((item, i) => {
    const box = make("input", { type: "checkbox", id: `${id}-${i}`, "data-name": name, "data-key": `${id}-${i}` });
    box.value = item;
    box.checked = chosen.includes(item);
    return make("span", { class: "check" }, box, label(`${id}-${i}`, item));
  });
  return make("div", { class: "parameter", role: "group", "aria-label": TITLES[name] }, make("span", { class: "name" }, TITLES[name]), ...boxes);
}

function number(id, name, attributes, value) {
  const input = make("input", { type: "number", id, "data-name": name, "data-key": id, ...attributes });
  input.value = value ?? "";
  return line(label(id, TITLES[name]), input);
}

function degree(id, value) {
  const input = make("input", { type: "range", min: 0, max: 8, step: 1, id, "data-name": "degree", "data-key": id });
  input.value = value;
  const output = make("output", { for: id }, String(value));
  return line(label(id, TITLES.degree), input, output);
}

function temperature(id, value) {
  const kind = value === null ? "none" : value === "tuning" ? "tuning" : "own";
  const choices = { none: "as given", tuning: "fitted", own: "this number:" };
  const item = make("input", { type: "number", min: 0.05, max: 20, step: 0.05, "aria-label": "Temperature, number", "data-name": "own_temperature", "data-key": `${id}-own`, hidden: kind !== "own" });
  item.value = kind === "own" ? value : 1;
  const field = select(id, "temperature", choices, kind);
  field.append(item);
  return field;
}

function fieldset(letter, setting, allowed) {
  const id = (name) => `${letter}-${name}`;
  const methods = Object.fromEntries(allowed.methods.map((name) => [name, METHODS[name] ?? name]));
  const scores = Object.fromEntries(allowed.scores.map((name) => [name, SCORES[name] ?? name]));
  const lines = [
    select(id("method"), "method", methods, setting.method),
    select(id("score"), "score", scores, setting.score),
    select(id("scale"), "scale", CHOICES.scale, setting.scale),
    temperature(id("temperature"), setting.temperature),
    select(id("basis"), "basis", CHOICES.basis, setting.basis),
    degree(id("degree"), setting.degree),
    number(id("penalty"), "penalty", { min: 0, max: 1000, step: "any" }, setting.penalty),
    checks(id("statistics"), "statistics", allowed.statistics, setting.statistics),
    allowed.groups.length ? checks(id("groups"), "groups", allowed.groups, setting.groups) : null,
    select(id("per_class"), "per_class", CHOICES.per_class, setting.per_class),
  ];
  const title = make("legend", {}, make("span", { class: `swatch m${LETTERS.indexOf(letter)}` }), `Method ${letter}`);
  const [first, ...rest] = lines.filter(Boolean);
  // A narrow window has little room, so that all but the method is folded there.
  const more = make("details", { open: unfolded[letter] ?? !NARROW.matches, ontoggle: (event) => (unfolded[letter] = event.target.open) }, make("summary", { "data-key": id("more") }, "Its parameters"), ...rest);
  return make("fieldset", { "data-letter": letter }, title, first, more);
}

// A number within its limits, or null where the input holds none.
function numberOf(input) {
  const value = input.valueAsNumber;
  if (Number.isNaN(value)) return null;
  const bounded = Math.min(Math.max(value, +(input.min || value)), +(input.max || value));
  return input.step === "1" ? Math.round(bounded) : bounded;
}

function readSetting(box, before) {
  const value = (name) => one(`[data-name="${name}"]`, box)?.value;
  const chosen = (name) => all(`[data-name="${name}"]:checked`, box).map((item) => item.value);
  const kind = value("temperature");
  const statistics = chosen("statistics");
  return {
    method: value("method"),
    score: value("score"),
    scale: value("scale"),
    temperature: kind === "none" ? null : kind === "tuning" ? "tuning" : numberOf(one('[data-name="own_temperature"]', box)) ?? 1,
    basis: value("basis"),
    degree: +value("degree"),
    penalty: numberOf(one('[data-name="penalty"]', box)) ?? before.penalty,
    statistics: statistics.length ? statistics : before.statistics,
    groups: chosen("groups"),
    per_class: value("per_class"),
  };
}

// Parameters that a method does not have cannot be moved.
function disable(box, setting) {
  for (const [name, used] of Object.entries(USED)) {
    for (const input of all(`[data-name="${name}"]`, box)) input.disabled = !used(setting);
  }
  one('[data-name="own_temperature"]', box).hidden = one('[data-name="temperature"]', box).value !== "own";
  const statistics = all('[data-name="statistics"]', box);
  const chosen = statistics.filter((item) => item.checked);
  // One statistic must stay.
  if (chosen.length === 1) chosen[0].disabled = true;
  const output = one('[data-name="degree"] + output', box);
  output.textContent = one('[data-name="degree"]', box).value;
}

export class Parameters {
  constructor(box, start, changed) {
    [this.box, this.start, this.state] = [box, start, start.state];
    box.addEventListener("submit", (event) => event.preventDefault());
    box.addEventListener("input", () => {
      this.read();
      changed();
    });
    this.draw();
  }

  draw() {
    const { state, start } = this;
    const second = state.settings.length > 1;
    const alpha = make("input", { type: "range", id: "alpha-range", min: 0.005, max: 0.5, step: 0.005, "data-key": "alpha" });
    alpha.value = state.alpha;
    const exact = make("input", { type: "number", id: "alpha-number", min: 0.001, max: 0.999, step: 0.001, "aria-label": "Alpha, number", "data-key": "alpha-number" });
    exact.value = state.alpha;
    alpha.addEventListener("input", () => (exact.value = alpha.value));
    exact.addEventListener("input", () => (alpha.value = exact.value));
    const seed = make("input", { type: "number", id: "seed", min: 0, max: 2147483647, step: 1, "data-key": "seed" });
    seed.value = state.seed;
    const both = make("input", { type: "checkbox", id: "second", "data-key": "second" });
    both.checked = second;
    one("#alpha-bar", this.box).replaceChildren(line(label("alpha-range", "Alpha"), alpha, exact));
    one("#parameters", this.box).replaceChildren(
      line(label("seed", "Split seed"), seed),
      ...state.settings.map((item, i) => fieldset(LETTERS[i], item, start.parameters)),
      make("div", { class: "check" }, both, label("second", "Compare with a second method")),
    );
    all("fieldset", this.box).forEach((box, i) => disable(box, state.settings[i]));
  }

  read() {
    const before = this.state;
    const boxes = all("fieldset", this.box);
    const settings = boxes.map((box, i) => readSetting(box, before.settings[i]));
    const alpha = numberOf(one("#alpha-number", this.box)) ?? before.alpha;
    const seed = numberOf(one("#seed", this.box)) ?? before.seed;
    const wanted = one("#second", this.box).checked ? 2 : 1;
    this.state = { settings, alpha, seed };
    if (wanted !== settings.length) {
      const other = this.start.state.settings[1];
      this.state.settings = wanted === 1 ? settings.slice(0, 1) : [settings[0], other];
      this.draw();
      one("#second", this.box).focus();
    } else {
      boxes.forEach((box, i) => disable(box, settings[i]));
    }
  }

  write(state) {
    this.state = state;
    this.draw();
  }
}

// ---- The state in the address ---------------------------------------------------------------

export function toAddress(state) {
  const query = new URLSearchParams({ alpha: state.alpha, seed: state.seed });
  state.settings.forEach((setting, i) => {
    for (const [name, value] of Object.entries(setting)) {
      for (const item of Array.isArray(value) ? value : [value ?? ""]) query.append(`${"ab"[i]}.${name}`, item);
    }
  });
  return `#${query}`;
}

// What the address says, with the first state for what it leaves out or has wrong.
export function fromAddress(hash, start) {
  const query = new URLSearchParams(hash.slice(1));
  const letters = ["a", "b"].filter((item) => [...query.keys()].some((key) => key.startsWith(`${item}.`)));
  if (!letters.includes("a")) return start.state;
  const inside = (text, low, high, other) => (text !== null && text.trim() !== "" && +text >= low && +text <= high ? +text : other);
  const setting = (letter, plain) => {
    const first = (name) => query.get(`${letter}.${name}`);
    const listed = (name, allowed) => query.getAll(`${letter}.${name}`).filter((item) => allowed.includes(item));
    const choice = (name, allowed) => (allowed.includes(first(name)) ? first(name) : plain[name]);
    const statistics = [...new Set(listed("statistics", start.parameters.statistics))];
    const heat = first("temperature");
    return {
      method: choice("method", start.parameters.methods),
      score: choice("score", start.parameters.scores),
      scale: choice("scale", Object.keys(CHOICES.scale)),
      temperature: heat === "tuning" ? heat : inside(heat, 0.05, 20, null),
      basis: choice("basis", Object.keys(CHOICES.basis)),
      degree: Math.round(inside(first("degree"), 0, 8, plain.degree)),
      penalty: inside(first("penalty"), 0, 1000, plain.penalty),
      statistics: statistics.length ? statistics : plain.statistics,
      groups: [...new Set(listed("groups", start.parameters.groups))],
      per_class: choice("per_class", Object.keys(CHOICES.per_class)),
    };
  };
  return {
    settings: letters.map((letter, i) => setting(letter, start.state.settings[i])),
    alpha: inside(query.get("alpha"), 0.001, 0.999, start.state.alpha),
    seed: Math.round(inside(query.get("seed"), 0, 2147483647, start.state.seed)),
  };
}
