// The page: asks the daemon every two seconds while it is looked at, and shows what has changed in place, so that
// whoever works with a keyboard or a screen reader keeps their place.
import { ask, byId, clock, count, duration, make, Refused, send, setText, size } from "./words.js";
import { answered, begin, lost, signedOut, tone, welcome } from "./session.js";
import { draw } from "./plots.js";
import * as explorer from "./explorer.js";

const EVERY_MS = 2000, HISTORY_EVERY_MS = 10000, ROWS_MAX = 200;
const WORDS = {
  pause: ["Pause", (t) => `Stop reading existing rows of ${t}? Its changes are still captured.`],
  resume: ["Resume", (t) => `Continue reading the rows of ${t}?`],
  cancel: ["Cancel", (t) => `Cancel reading existing rows of ${t}? Rows that never change again will not be in the log.`],
  backfill: ["Read again", (t) => `Read all rows of ${t} again? This queries the source for the whole table; in the meantime changes are captured.`],
  reread: ["Read this row again", (t) => `Read this row of ${t} again from the source?`],
  adjust: ["Throttle", (t) => `How fast may ${t} be read, and before which others?`],
  "pause-capture": ["Pause capture", () => "Stop reading the source? It keeps its log until you resume, and in the meantime its disk fills."],
  "resume-capture": ["Resume capture", () => "Continue reading the source where it was paused?"],
  handover: ["Handover", () => "Stop at the next cut, and have the standby capture?"],
  stop: ["Stop daemon", () => "End the daemon at the next cut? Nothing is lost, but this page cannot start it again."],
};
const BY_STATE = { waiting: ["pause", "cancel", "adjust"], reading: ["pause", "cancel", "adjust"], paused: ["resume", "cancel"], done: ["backfill"], failed: ["backfill"], cancelled: ["backfill"] };
const TONES = { done: "good", failed: "bad", cancelled: "warn", paused: "warn" };
const CAPTURE_TONES = { capturing: "good", paused: "warn", waiting: "warn", halted: "bad", standby: "good" };
const rows = new Map();
const state = { may: [], headroom: {}, historyAt: 0, tables: {} };

async function refresh() {
  if (document.hidden || state.busy) return;
  state.busy = true;
  try {
    const found = await ask("api/v1/overview");
    answered();
    show(found);
    if (Date.now() - state.historyAt >= HISTORY_EVERY_MS) {
      state.historyAt = Date.now();
      draw(await ask("api/v1/history"), state.headroom.limit_bytes);
    }
  } catch (error) {
    if (error instanceof Refused && error.code === 401) { state.may = []; signedOut(); }
    else { lost(error); disableButtons(); }
  } finally {
    state.busy = false;
  }
}

function disableButtons() {
  for (const button of document.querySelectorAll("#capture button, #tables button, #findings button")) button.disabled = true;
}

function show(found) {
  const { status, headroom, disk, caller } = found;
  Object.assign(state, { may: caller.operations, headroom, tables: status.tables || {} });
  welcome(caller);
  tone(byId("state"), status.state, CAPTURE_TONES[status.state] || "");
  setText(byId("source"), `${found.source.kind} into ${found.source.log}`);
  setText(byId("version"), `cdcflow ${found.version}`);
  byId("readonly").hidden = caller.needs_token;
  captureButtons(status);
  showFindings(found.findings);
  showRecent(found.recent || []);
  showFigures(status, headroom, disk);
  showTables(state.tables);
  showMerges(status, found.merges);
  showConsumers(status.consumers || {});
  showTargets(status.targets || {});
  explorer.offer(Object.keys(state.tables).sort());
  explorer.mayReread(state.may.includes("reread"));
}

function captureButtons(status) {
  const active = [status.state === "paused" ? "resume-capture" : "pause-capture", ...(status.lease ? ["handover"] : [])];
  const wanted = [...(status.state === "standby" ? [] : active), "stop"];
  const names = wanted.filter((name) => state.may.includes(name));
  replaceButtons(byId("capture"), names, (name) => button(name, null));
}

function replaceButtons(place, names, made) {
  if (place.dataset.names !== names.join()) {
    place.dataset.names = names.join();
    place.replaceChildren(...names.map(made));
  }
  for (const one of place.children) one.disabled = false;
}

function button(name, table) {
  const label = WORDS[name][0];
  return make("button", { type: "button", text: label, "aria-label": table ? `${label}: ${table}` : label, onclick: () => operate(name, table) });
}

function showFindings(findings) {
  const list = byId("findings");
  const key = JSON.stringify([findings, state.may.length]);
  if (list.dataset.key === key && !document.querySelector("#findings button:disabled")) return;
  list.dataset.key = key;
  list.replaceChildren(...(findings.length ? findings.map(finding) : [make("li", { class: "good", text: "All is well." })]));
}

function showRecent(recent) {
  const place = byId("recent");
  place.hidden = !recent.length;
  setText(place.querySelector("summary"), `What went wrong since the daemon started (${recent.length})`);
  const key = JSON.stringify(recent);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.querySelector("ul").replaceChildren(...recent.map((one) => {
    const times = one.times > 1 ? `${clock(one.first_at, true)} to ${clock(one.last_at, true)}, ${count(one.times)} times` : clock(one.last_at, true);
    return make("li", {}, make("span", { class: "quiet", text: `${times} ` }), `${one.text}${one.remedy ? ` ${one.remedy}` : ""}`);
  }));
}

function finding(one) {
  const item = make("li", { class: one.level }, make("b", { text: one.level === "note" ? "" : `${one.level[0].toUpperCase()}${one.level.slice(1)}: ` }), one.text);
  if (one.remedy) item.append(" ", one.remedy);
  if (one.operation && one.table && state.may.includes(one.operation)) item.append(button(one.operation, one.table));
  return item;
}

function showFigures(status, headroom, disk) {
  const held = status.held_rows ? `${count(status.held_rows)} rows (${size(status.held_bytes)}) are held back by an open window` : "";
  figure("lag", "Behind the source", size(status.lag_bytes), status.lag_seconds == null ? "" : `latest position ${duration(status.lag_seconds)} old`);
  figure("speed", "Rows a second", count(status.rows_per_second ?? null), held);
  const limit = headroom.limit_bytes;
  figure("kept", "The source keeps", size(headroom.retained_bytes), limit ? `of at most ${size(limit)}` : keeps(headroom), limit ? { value: headroom.retained_bytes, max: limit, low: limit * 0.5, high: limit * 0.8, optimum: 0 } : null);
  const total = disk.total_bytes;
  figure("disk", "Free on the log's disk", size(disk.free_bytes), total ? `of ${size(total)}, ${disk.folder}` : "", total ? { value: total - disk.free_bytes, max: total, low: total * 0.8, high: total * 0.9, optimum: 0 } : null);
  figure("cut", "Newest durable cut", count(status.cut ?? null), status.durable_offset == null ? "" : `offset ${count(status.durable_offset)}`);
}

function keeps(headroom) {
  if (headroom.kept_seconds) return `files of the last ${duration(headroom.kept_seconds)}`;
  return headroom.retained_bytes == null ? "" : "without a limit";
}

function figure(id, title, value, more, meter) {
  let place = byId(`figure-${id}`);
  if (!place) {
    place = make("div", { id: `figure-${id}` }, make("dt", { text: title }), make("dd", {}, make("span"), make("small")));
    byId("figures").append(place);
  }
  setText(place.querySelector("span"), value);
  setText(place.querySelector("small"), more);
  let bar = place.querySelector("meter");
  if (!meter) { bar?.remove(); return; }
  if (!bar) { bar = make("meter", { min: 0, "aria-label": title }); place.querySelector("span").after(bar); }
  for (const [key, number] of [["max", meter.max], ...Object.entries(meter)]) bar[key] = number;
  bar.setAttribute("aria-valuetext", `${value} ${more}`);
}

function showTables(tables) {
  const wanted = byId("filter").value.toLowerCase();
  const names = Object.keys(tables).filter((name) => name.toLowerCase().includes(wanted));
  names.sort((a, b) => rank(tables[a]) - rank(tables[b]) || a.localeCompare(b));
  byId("filter-row").hidden = Object.keys(tables).length <= 10;
  const body = byId("tables").tBodies[0];
  byId("tables").classList.toggle("no-fresh", !names.some((name) => tables[name].freshness));
  byId("tables").classList.toggle("no-do", !state.may.includes("pause"));
  const shown = names.slice(0, ROWS_MAX);
  for (const [name, row] of rows) if (!shown.includes(name)) { row.element.remove(); rows.delete(name); }
  shown.forEach((name, at) => {
    if (!rows.has(name)) rows.set(name, newRow(name));
    const row = rows.get(name);
    if (body.children[at] !== row.element) body.insertBefore(row.element, body.children[at] || null);
    fill(row, name, tables[name]);
  });
  setText(byId("tables-more"), names.length > ROWS_MAX ? `${count(names.length - ROWS_MAX)} more: narrow the names down.` : names.length ? "" : "No table is captured yet.");
}

function rank(fields) {
  return { failed: 0, cancelled: 1, paused: 2, reading: 3, waiting: 4 }[fields.state] ?? (fields.freshness === "not proven" ? 4 : 5);
}

function newRow(name) {
  const row = { tag: make("span", { class: "tag" }), why: make("small"), read: make("span"), bar: make("progress", { "aria-label": `Progress of ${name}` }), fresh: make("td", { class: "fresh", "data-name": "Fresh as of" }), buttons: make("div", { class: "buttons", role: "group", "aria-label": name }) };
  row.element = make("tr", {}, make("th", { scope: "row", text: name }), make("td", {}, row.tag, row.why), make("td", { "data-name": "Rows read" }, row.read, row.bar), row.fresh, make("td", { class: "do" }, row.buttons));
  return row;
}

function fill(row, name, fields) {
  setText(row.tag, fields.state);
  row.tag.className = `tag ${TONES[fields.state] || ""}`;
  setText(row.why, [fields.reason, throttle(fields)].filter(Boolean).join("; "));
  setText(row.read, count(fields.rows ?? 0));
  row.bar.hidden = !["waiting", "reading", "paused"].includes(fields.state);
  row.bar.max = Math.max(fields.units || 1, 1);
  row.bar.value = Math.min(fields.units_done || 0, row.bar.max);
  row.bar.setAttribute("aria-valuetext", `${Math.floor((100 * row.bar.value) / row.bar.max)} %`);
  setText(row.fresh, fields.freshness ? `${fields.fresh_as_of ? clock(fields.fresh_as_of, true) : "never"} (${fields.freshness})` : "");
  replaceButtons(row.buttons, (BY_STATE[fields.state] || []).filter((one) => state.may.includes(one)), (one) => button(one, name));
}

function throttle(fields) {
  if (!["waiting", "reading", "paused"].includes(fields.state)) return "";
  const rate = fields.rate_limit ?? fields.rows_per_second_max;
  const told = rate ? [`at most ${count(rate)} rows/s${fields.rate_limit_from ? ` by ${fields.rate_limit_from}` : ""}`] : [];
  return [...told, ...(fields.priority ? [`priority ${fields.priority}`] : [])].join(", ");
}

function showMerges(status, merges) {
  const windows = status.window || [];
  setText(byId("window"), windows.length ? `A window is open over ${windows.join(", ")}: rows are being read there, and later changes wait.` : "");
  const when = status.commit_clock ? `, committed ${clock(status.commit_clock / 1e6, true)}` : "";
  setText(byId("cut"), status.cut ? `The log's latest durable cut is ${count(status.cut)}${when}, source position ${status.position}.` : "The log has no cut yet.");
  const last = status.merge;
  const failed = last && last.failed ? ` The last merge failed: ${last.reason || last.error}.` : "";
  const process = last && last.process;
  const merging = process ? ` The daemon merges every ${process.every_seconds} s (${process.state}).` : "";
  const none = merges === null ? "No merge has written its cuts into the log's folder, and the warehouse is not on a disk of this machine." : merges.length ? "" : process ? "No merge has published a cut yet." : "No merge has published a cut yet: run `cdcflow merge`, or set merge.every.";
  setText(byId("merges-none"), `${none}${merging}${process && !process.failing ? "" : failed}`);
  byId("merges").hidden = !(merges && merges.length);
  byId("merges").tBodies[0].replaceChildren(...(merges || []).map((one) => make("tr", {},
    make("th", { scope: "row", text: clock(one.published / 1e6, true) }), make("td", { "data-name": "Cut", text: count(one.cut) }),
    make("td", { "data-name": "Shows the source as of", text: clock(one.commit_clock / 1e6, true) }),
    make("td", { "data-name": "Tables", text: one.incomplete.length ? `${one.tables}, not whole yet: ${one.incomplete.join(", ")}` : one.tables }),
    make("td", { "data-name": "Left out", text: Object.keys(one.left_out).join(", ") || "none" }))));
}

function showConsumers(consumers) {
  const names = Object.keys(consumers).sort((a, b) => consumers[b].behind_rows - consumers[a].behind_rows || a.localeCompare(b));
  byId("consumers-section").hidden = !names.length;
  byId("consumers").tBodies[0].replaceChildren(...names.map((name) => {
    const { state, offset, behind_rows } = consumers[name];
    return make("tr", {}, make("th", { scope: "row", text: name }),
      make("td", { "data-name": "Reads", text: state === "backfill" ? "the rows that are there" : "changes" }),
      make("td", { "data-name": "Committed up to offset", text: count(offset) }), make("td", { "data-name": "Rows behind", text: count(behind_rows) }));
  }));
}

function showTargets(targets) {
  const names = Object.keys(targets).sort();
  byId("targets-section").hidden = !names.length;
  byId("targets").tBodies[0].replaceChildren(...names.map((name) => {
    const { kind, process, ended_at, behind_rows, stopped, is_failing } = targets[name];
    const doing = process ? `${process.state}${process.table ? ` (${process.table})` : ""}` : "not by this daemon";
    const stops = [...(is_failing ? ["all: see Findings"] : []), ...Object.keys(stopped || {})];
    return make("tr", {}, make("th", { scope: "row", text: `${name} (${kind})` }), make("td", { "data-name": "State", text: doing }),
      make("td", { "data-name": "Last delivery", text: ended_at ? clock(ended_at, true) : "none" }),
      make("td", { "data-name": "Rows behind", text: count(behind_rows ?? null) }),
      make("td", { "data-name": "Not delivered", text: stops.join(", ") || "none" }));
  }));
}

async function operate(name, table, body = null) {
  const [label, text] = WORDS[name];
  const fields = name === "adjust" ? [["rows_per_second_max", "Rows a second at most (0: no limit)"], ["priority", "Priority (higher is read first)"]] : [];
  const given = await confirmed(label, text(table), fields);
  if (given === null) return;
  try {
    const found = await send("POST", `api/v1/operations/${name}`, body || { ...(table ? { tables: [table] } : {}), ...given });
    say(outcome(label, found));
  } catch (error) {
    say(error.sentence || "The daemon does not answer.");
  }
  refresh();
}

function outcome(label, found) {
  if (found.tables && !Array.isArray(found.tables)) return Object.entries(found.tables).map(([name, one]) => `${name}: ${one.outcome}${one.reason ? `, ${one.reason}` : ""}`).join("; ");
  if (found.capture) return `The capture: ${found.capture.outcome || found.capture}${found.capture.reason ? `, ${found.capture.reason}` : ""}`;
  return `${label}: ordered${found.tables && found.tables.length ? ` for ${found.tables.join(", ")}` : ""}`;
}

function confirmed(label, text, fields) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), label);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), label);
  const inputs = fields.map(([name, title]) => make("input", { id: `field-${name}`, name, type: "number", min: 0, step: 1, "aria-label": title }));
  byId("confirm-fields").replaceChildren(...fields.map(([name, title], at) => make("p", {}, make("label", { for: `field-${name}`, text: title }), inputs[at])));
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    const given = inputs.filter((input) => input.value !== "").map((input) => [input.name, Number(input.value)]);
    resolve(dialog.returnValue === "yes" && (!fields.length || given.length) ? Object.fromEntries(given) : null);
  }, { once: true }));
}

function say(text) {
  setText(byId("said"), text);
  byId("said").hidden = false;
  clearTimeout(state.silence);
  state.silence = setTimeout(() => { byId("said").hidden = true; }, 8000);
}

byId("filter").addEventListener("input", () => showTables(state.tables));
document.addEventListener("looked", () => explorer.mayReread(state.may.includes("reread")));
explorer.begin(operate);
begin("The daemon", refresh);
await refresh();
setInterval(refresh, EVERY_MS);
