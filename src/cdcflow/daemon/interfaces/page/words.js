// Numbers and times as people say them, and elements whose content is text: what a row holds is never markup.

export const byId = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  let left = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(left) < 1000 || unit === "TB") return `${unit === "B" ? Math.round(left) : left.toFixed(1)} ${unit}`;
    left /= 1000;
  }
  return "";
}

export function count(number) {
  return number === null || number === undefined ? "unknown" : Math.round(number).toLocaleString("en");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

export function clock(seconds, withDate = false) {
  const when = new Date(seconds * 1000);
  const time = when.toLocaleTimeString("en-GB");
  return withDate && when.toDateString() !== new Date().toDateString() ? `${when.toLocaleDateString("sv")} ${time}` : time;
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  throw new Refused(answer.status, found);
}

export function send(method, path, body) {
  return ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

export class Refused extends Error {
  constructor(code, found) {
    super(found.detail || `the daemon answered ${code}`);
    this.code = code;
    this.remedy = found.remedy || "";
  }
  get sentence() {
    return this.remedy ? `${this.message}. ${this.remedy}` : this.message;
  }
}
