// Size against under-coverage: the point of each method, and where it has been.
import { make, one, show, swatch } from "./dom.js";

// Places in the chart; its width is that of the window's part, so that text keeps its size.
const FRAME = { width: 680, height: 300, left: 46, right: 668, top: 12, bottom: 258 };
const MOST = 60;
const trace = [];

function ticks(low, high) {
  const rough = Math.max(high - low, 1e-9) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((unit) => unit * power).find((unit) => unit >= rough - 1e-12);
  const ticks = [];
  for (let i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); i += 1) ticks.push(+(i * step).toFixed(10));
  return ticks.length > 1 ? ticks : [ticks[0], ticks[0] + step];
}

function words(point) {
  const { size, under } = point;
  return `${point.name}, alpha ${+point.state.alpha.toFixed(4)}: mean size ${size.value.toFixed(2)}, shortfall ${under.value.toFixed(2)} points (noise floor ${under.floor.toFixed(2)})`;
}

// All that was shown, the newest last; numbers of a part of the samples are not kept.
function remember(answer) {
  const now = { state: answer.state, points: answer.points, names: answer.methods };
  const same = (item) => JSON.stringify(item.state) === JSON.stringify(now.state);
  const before = trace.length && same(trace.at(-1)) ? trace.slice(0, -1) : trace.slice(-MOST);
  if (answer.n[1] === answer.n[2]) trace.splice(0, trace.length, ...before, now);
  return [...before, now];
}

function scales(points) {
  const sizes = points.flatMap((item) => [item.size.lower, item.size.upper, item.size.value]).filter(Number.isFinite);
  const unders = points.flatMap((item) => [item.under.upper, item.under.floor, item.under.value]).filter(Number.isFinite);
  const [xs, ys] = [ticks(Math.min(...sizes), Math.max(...sizes)), ticks(0, Math.max(...unders, 0.5))];
  const { left, right, top, bottom } = FRAME;
  return {
    xs, ys,
    x: (value) => left + ((right - left) * (value - xs[0])) / (xs.at(-1) - xs[0]),
    y: (value) => bottom - ((bottom - top) * value) / ys.at(-1),
  };
}

function axes({ xs, ys, x, y }) {
  return [
    ...ys.flatMap((tick) => [make("line", { class: "grid", x1: FRAME.left, x2: FRAME.right, y1: y(tick), y2: y(tick) }), make("text", { x: FRAME.left - 8, y: y(tick) + 4, "text-anchor": "end" }, String(tick))]),
    ...xs.map((tick) => make("text", { x: x(tick), y: FRAME.bottom + 18, "text-anchor": "middle" }, String(tick))),
    make("text", { x: (FRAME.left + FRAME.right) / 2, y: FRAME.height - 4, "text-anchor": "middle" }, "Mean set size"),
  ];
}

function dot(point, scale, radius, act) {
  const choose = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  };
  const attributes = { cx: scale.x(point.size.value), cy: scale.y(point.under.value), r: radius, tabindex: 0, role: "button", "aria-label": words(point), "data-key": point.key };
  return make("circle", { ...attributes, onclick: choose, onkeydown: choose }, make("title", {}, words(point)));
}

// `goTo` restores an earlier state, `open` lists the samples of a method.
export function drawTrace(answer, goTo, open) {
  const past = remember(answer);
  FRAME.width = Math.min(Math.max(one("#trace-chart").clientWidth, 300), 760);
  FRAME.right = FRAME.width - 14;
  const series = answer.methods.map((name, index) => past.filter((item) => item.points[index]).map((item, i, all) => ({
    ...item.points[index], name: item.names[index], state: item.state, key: i === all.length - 1 ? `now-${index}` : `was-${index}-${i}`,
  })));
  const scale = scales(series.flat());
  const groups = series.map((points, index) => {
    const now = points.at(-1);
    const line = points.map((item) => `${scale.x(item.size.value)},${scale.y(item.under.value)}`).join(" ");
    const bars = [];
    if (Number.isFinite(now.size.lower)) bars.push(make("line", { x1: scale.x(now.size.lower), x2: scale.x(now.size.upper), y1: scale.y(now.under.value), y2: scale.y(now.under.value) }));
    bars.push(make("line", { x1: scale.x(now.size.value), x2: scale.x(now.size.value), y1: scale.y(now.under.lower), y2: scale.y(now.under.upper) }));
    return make("g", { class: `m${index}` }, make("polyline", { class: "way", points: line }), bars,
      points.slice(0, -1).map((item) => dot(item, scale, 3.5, () => goTo(item.state))), dot(now, scale, 7, () => open(index)));
  });
  const floor = scale.y(answer.points[0].under.floor);
  const chart = make("svg", { viewBox: `0 0 ${FRAME.width} ${FRAME.height}`, role: "group", "aria-label": "Mean set size against under-coverage" },
    axes(scale), make("line", { class: "floor", x1: FRAME.left, x2: FRAME.right, y1: floor, y2: floor }), groups);
  show(one("#trace-chart"), chart);
  one("#trace .keys").replaceChildren(...answer.methods.map((name, i) => make("span", {}, swatch(i), name)));
}
