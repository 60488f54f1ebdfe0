// Lines over time as SVG. A gap is a time of which nothing is known; zero is at the bottom of each.
import { byId, clock, count, duration, make, setText, size } from "./words.js";

const SPACE = "http://www.w3.org/2000/svg";
const KINDS = [
  { field: "lag_bytes", title: "Behind the source, bytes", say: size },
  { field: "lag_seconds", title: "Behind the source, time", say: duration },
  { field: "rows_per_second", title: "Rows a second", say: count },
  { field: "retained_bytes", title: "Log that the source keeps", say: size, limited: true },
];
const WIDTH = 600;
const HEIGHT = 100;
const plots = new Map();

export function draw(points, limit) {
  if (!points.time.length) return;
  for (const kind of KINDS) {
    if (!plots.has(kind.field)) plots.set(kind.field, begin(kind));
    update(plots.get(kind.field), kind, points.time, points[kind.field], kind.limited ? limit : null);
  }
}

function begin(kind) {
  const parts = { now: make("b"), top: make("span"), middle: make("span"), from: make("span"), to: make("span") };
  parts.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  parts.svg.append(svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: 0, y2: 0 }), svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }));
  for (const name of ["area", "line", "limit", "at"]) {
    parts[name] = svg("path", { class: name, d: "" });
    parts.svg.append(parts[name]);
  }
  const scale = make("div", { class: "scale", "aria-hidden": "true" }, parts.top, parts.middle, make("span", { text: "0" }));
  const times = make("div", { class: "times", "aria-hidden": "true" }, parts.from, parts.to);
  const figure = make("figure", {}, make("figcaption", {}, make("span", { text: kind.title }), parts.now), make("div", { class: "plot" }, parts.svg, scale, times));
  parts.svg.addEventListener("pointermove", (event) => point(parts, kind, event));
  parts.svg.addEventListener("pointerleave", () => { parts.at.setAttribute("d", ""); setText(parts.now, parts.last); });
  byId("plots").append(figure);
  return parts;
}

function update(parts, kind, times, values, limit) {
  const known = values.filter((value) => value !== null);
  const highest = Math.max(0, ...known);
  const top = nice(Math.max(highest, limit && limit < highest * 3 ? limit : 0));
  const first = times[0], span = Math.max(times[times.length - 1] - first, 1);
  const x = (at) => (((times[at] - first) / span) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(1);
  let line = "", area = "", began = null;
  values.forEach((value, at) => {
    if (value === null) { began = null; return; }
    line += `${began === null ? "M" : "L"}${x(at)} ${y(value)}`;
    if (began === null) { began = at; area += `M${x(at)} ${HEIGHT}`; }
    area += `L${x(at)} ${y(value)}`;
    if (at + 1 === values.length || values[at + 1] === null) area += `L${x(at)} ${HEIGHT}Z`;
  });
  parts.line.setAttribute("d", line);
  parts.area.setAttribute("d", area);
  parts.limit.setAttribute("d", limit && limit <= top ? `M0 ${y(limit)}H${WIDTH}` : "");
  Object.assign(parts, { times, values, x, last: known.length ? `now ${kind.say(values[values.length - 1])}` : "nothing is known yet" });
  setText(parts.now, parts.last);
  setText(parts.top, kind.say(top));
  setText(parts.middle, kind.say(top / 2));
  setText(parts.from, clock(first));
  setText(parts.to, clock(times[times.length - 1]));
  parts.svg.setAttribute("aria-label", `${kind.title}: ${parts.last}, at most ${kind.say(highest)} since ${clock(first)}`);
}

function point(parts, kind, event) {
  const box = parts.svg.getBoundingClientRect();
  const wanted = parts.times[0] + ((event.clientX - box.left) / box.width) * (parts.times[parts.times.length - 1] - parts.times[0]);
  let at = 0;
  parts.times.forEach((time, index) => { if (Math.abs(time - wanted) < Math.abs(parts.times[at] - wanted)) at = index; });
  parts.at.setAttribute("d", `M${parts.x(at)} 0V${HEIGHT}`);
  setText(parts.now, `${clock(parts.times[at])}: ${kind.say(parts.values[at])}`);
}

function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function svg(name, attributes) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
